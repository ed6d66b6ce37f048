"""A plan as boxes and arrows: what is drawn can be followed, from the box that a line leaves to the one it reaches."""

from __future__ import annotations

import re

from hypothesis import given

from hookflow.cli.graph import only_points
from hookflow.graph.plan import Plan, Trigger
from hookflow.graph.render.boxes import as_boxes
from hookflow.graph.why import stated
from tests.golden_files import check_golden
from tests.graph.render.plans import EXAMPLE, HOSTILE, RICH, node, packed, plan, plans, wide

WAYS = {
    **dict.fromkeys("─╌═┈", "lr"),
    **dict.fromkeys("│╎║┊", "ud"),
    **dict.fromkeys("╭╔", "rd"),
    **dict.fromkeys("╮╗", "ld"),
    **dict.fromkeys("╰╚", "ru"),
    **dict.fromkeys("╯╝", "lu"),
    **dict.fromkeys("├╠", "udr"),
    **dict.fromkeys("┤╣", "udl"),
    **dict.fromkeys("┬╦", "lrd"),
    **dict.fromkeys("┴╩", "lru"),
    **dict.fromkeys("┼╬", "lrud"),
}
STEP = {"l": (0, -1), "r": (0, 1), "u": (-1, 0), "d": (1, 0)}
BACK = {"l": "r", "r": "l", "u": "d", "d": "u"}


def followed(image: list[str]) -> set[tuple[int, int]]:
    """Follow every line of one point's image; return which box it leaves and which it reaches, as they are read."""
    tops = [(y, found.start(), found.end()) for y, line in enumerate(image) for found in re.finditer("╭─{3,}╮", line)]
    boxes = [box for box in tops if re.match("│|║", image[box[0] + 1][box[1]])]
    boxes = [box for box in boxes if image[box[0] + 1][box[2] - 1] in "│║" and _closes(image, box)]
    found = set()
    for k, box in enumerate(boxes):
        bottom = _closes(image, box)
        for x in range(box[1], box[2]):
            if image[bottom][x] in "┬╥":
                found |= {(k, _box_at(boxes, *end)) for end in _ends(image, bottom, x)}
    return found


def _closes(image: list[str], box: tuple[int, int, int]) -> int:
    y, left, right = box
    for below in range(y + 1, len(image)):
        if re.fullmatch("╰[─┬╥]+╯", image[below][left:right]):
            return below
        if not re.match("[│║] .* [│║]$", image[below][left:right]):
            return 0
    return 0


def _ends(image: list[str], y: int, x: int) -> set[tuple[int, int]]:
    """Return every arrowhead that the line below (y, x) leads to."""
    ends, seen, going = set(), set(), [(y, x, "d")]
    while going:
        y, x, way = going.pop()
        y, x = y + STEP[way][0], x + STEP[way][1]
        sign = image[y][x] if x < len(image[y]) else " "
        if (y, x, way) in seen:
            continue
        seen.add((y, x, way))
        if sign == "▼":
            ends.add((y, x))
        elif way in "lr" and WAYS[sign] == "ud":
            going.append((y, x, way))  # it passes below another line
        else:
            assert BACK[way] in WAYS[sign], f"{way} leads into {sign!r} at {y}, {x}"
            going += [(y, x, on) for on in WAYS[sign] if on != BACK[way]]
    return ends


def _box_at(boxes: list[tuple[int, int, int]], y: int, x: int) -> int:
    (found,) = [k for k, (top, left, right) in enumerate(boxes) if top == y + 1 and left < x < right - 1]
    return found


def closure(links: set[tuple[int, int]]) -> set[tuple[int, int]]:
    closed = set(links)
    while more := {(a, d) for a, b in closed for c, d in closed if b == c} - closed:
        closed |= more
    return closed


def check(drawn: Plan, width: int = 80) -> None:
    for point in drawn.points:
        bound = drawn.at(point.name)
        if bound:
            lines = as_boxes(only_points(drawn, [point.name]), width=width).split("\n")[3:]
            end = lines.index("") if "" in lines else len(lines)
            place = {binding.id: k for k, binding in enumerate(bound)}
            links = {(place[link.first.id], place[link.then.id]) for link in stated(drawn, point.name)}
            assert closure(followed(lines[:end])) == closure(links), "\n".join(lines)


def test_every_line_of_these_leads_where_it_must() -> None:
    for drawn in (EXAMPLE, RICH, HOSTILE, packed(30, 3), wide(60)):
        check(drawn)
    check(RICH, width=160)


def test_lines_that_a_box_pushes_aside_stay_apart() -> None:
    widths = dict(zip("abcdefghijk", (10, 5, 6, 7, 7, 2, 9, 3, 4, 10, 11), strict=True))
    before = {"b": "a", "e": "bc", "g": "f", "h": "af", "i": "b", "j": "adfgh", "k": "a"}
    drawn = plan(
        *(
            node(name * wide, ["after_val"], [other * widths[other] for other in before.get(name, "")])
            for name, wide in widths.items()
        )
    )
    check(drawn, width=40)


@given(plans())
def test_every_line_leads_where_it_must(drawn: Plan) -> None:
    check(drawn)


@given(plans())
def test_every_firing_has_its_box_in_the_order_as_one_reads(drawn: Plan) -> None:
    text = as_boxes(drawn)
    names = re.findall(r"[│║] ([a-f]+) +(?=[│║])", text)
    assert names == [binding.hook for binding in drawn.bindings]


def test_pictures_are_golden() -> None:
    check_golden("drawings/rich-boxes.txt", as_boxes(RICH, width=100) + "\n")
    check_golden("drawings/example-boxes.txt", as_boxes(EXAMPLE) + "\n")
    check_golden("drawings/wide-boxes.txt", as_boxes(only_points(wide(24), ["after_train_iter"]), width=100) + "\n")


def test_as_many_stand_side_by_side_as_find_room_beside_what_passes() -> None:
    """Each row needs the same width: the first one is left by a line, the second one is passed by it."""
    b, d, f = "b" * 20, "d" * 16, "f" * 18
    edges: dict[str, list[str]] = {"a": [], b: [], "c": ["a"], d: [], "e": [b, "c"], f: []}
    drawn = plan(*(node(name, ["after_val"], after) for name, after in edges.items()))

    def rows(width: int) -> list[list[str]]:
        found = (re.findall(r"│ ([a-f]+) ", line) for line in as_boxes(drawn, width=width).split("\n")[3:])
        return [names for names in found if names]

    assert rows(41) == [["a", b], ["c", d], ["e", f]]
    assert rows(40) == [["a"], [b], ["c"], [d], ["e"], [f]]


def test_points_within_others_stand_to_the_right_and_find_less_room() -> None:
    many = [node(f"hook{k}", ["before_train", "before_train_iter"]) for k in range(10)]
    lines = as_boxes(plan(*many), width=58).split("\n")
    assert [line for line in lines if line.endswith("─")] == [
        "before_train ".ljust(58, "─"),
        "    before_train_iter ".ljust(58, "─"),
    ]
    tops = [(line.index("╭"), line.count("╭"), len(line)) for line in lines if "╭" in line]
    assert tops == [(2, 5, 55), (2, 5, 55), (6, 4, 48), (6, 4, 48), (6, 2, 26)]


def test_wide_signs_and_accents_keep_a_box_straight() -> None:
    drawn = plan(node("a", ["after_val"], trigger=Trigger(when="損失 > e\u0301 + 損\u0301")))
    assert as_boxes(drawn).split("\n")[3:] == [
        "  ╭────────────────────╮",
        "  │ a                  │",
        "  │ when 損失 > e\u0301 + 損\u0301 │",
        "  ╰────────────────────╯",
    ]


def test_a_plan_without_hooks_has_no_boxes() -> None:
    assert as_boxes(plan()) == "p: 0 hooks at 0 points"
