"""A plan as an image and as a page: well-formed, nothing overlaps, no text leaves its box, nothing is fetched."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations, pairwise
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from rich.cells import cell_len

from hookflow.graph.plan import Node, Plan, Trigger
from hookflow.graph.points import Point, Points
from hookflow.graph.render.lanes import (
    MARGIN,
    NAME_CELL,
    NOTE_CELL,
    NOTE_LINE,
    RAILS,
    WIDTH,
    Arrow,
    Box,
    Lane,
    is_free,
    lay_out,
)
from hookflow.graph.render.svg import DARK, LIGHT, as_html, as_svg
from hookflow.graph.render.text import marks, place_of, slots
from hookflow.graph.why import stated
from tests.golden_files import check_golden
from tests.graph.render.plans import EXAMPLE, HOSTILE, RICH, node, packed, plan, plans, wide

PAINTED = {"page": "fill", "lane": "fill", "box": "fill", "line": "stroke", "rail": "stroke"}
SVG = "{http://www.w3.org/2000/svg}"


def said(root: ElementTree.Element, kind: str) -> list[str]:
    """Return what is shown below the pointer for every part of a kind."""
    return ["".join(group[0].itertext()) for group in root.iter(f"{SVG}g") if group.get("class") == kind]


def test_the_picture_of_a_small_plan_is_golden() -> None:
    check_golden("drawings/example.svg", as_svg(EXAMPLE) + "\n")


def test_the_picture_of_a_plan_with_rows_that_go_on_is_golden() -> None:
    check_golden("drawings/wide.svg", as_svg(wide(24)) + "\n")


def test_the_picture_of_edges_that_part_and_of_one_that_gave_way_is_golden() -> None:
    drawn = plan(
        node("first", ["before_train_iter", "after_val"]),
        node("then", ["after_val"], ["first"]),
        node("last", ["after_val"], ["first"], around=True),
        node("reader_of_the_metrics", ["after_val"], ["first"], reads=("metrics",)),
        node("writer_of_the_metrics", ["after_val"], ["reader_of_the_metrics"], writes=("metrics",)),
    )
    check_golden("drawings/parting.svg", as_svg(drawn) + "\n")


def test_nothing_is_fetched_and_the_picture_says_what_it_is() -> None:
    for drawn in (as_svg(RICH), as_html(RICH)):
        addresses = set(re.findall(r"\w+://[^\s\"<]+", drawn))
        assert addresses == {"http://www.w3.org/2000/svg"}  # the name of the language, which is not fetched
        assert not re.search(r"url\(|@import|<link|<img|src=", drawn)
    root = ElementTree.fromstring(as_svg(RICH))
    assert root.get("role") == "img"
    assert [part.tag for part in root[:2]] == [f"{SVG}title", f"{SVG}desc"]
    assert root.get("aria-labelledby") == f"{root[0].get('id')} {root[1].get('id')}"


def test_colours_do_not_need_a_style_sheet_and_a_dark_screen_has_its_own() -> None:
    image = as_svg(RICH)
    assert "var(" not in image
    root = ElementTree.fromstring(image)
    assert root.get("fill") == LIGHT["ink"], "what says nothing else is filled with ink"
    sheet = "".join(style.text or "" for style in root.iter(f"{SVG}style"))
    assert sheet.startswith("\n@media screen and (prefers-color-scheme: dark) {")
    shapes = [part for tag in ("rect", "path", "circle", "text") for part in root.iter(f"{SVG}{tag}")]
    painted = {(part.get("class", ""), key, part.get(key, "none")) for part in shapes for key in ("fill", "stroke")}
    assert {"page", "lane", "box", "line", "hollow", "hollow below", "rail", "note"} <= {look for look, *_ in painted}
    for look, key, colour in painted - {(look, key, "none") for look, key, _ in painted}:
        rule = sheet.split(f".plan .{look.replace(' ', '.')} {{", 1)[1].split("}", 1)[0]
        dark = {DARK[name] for name in LIGHT if LIGHT[name] == colour}
        assert re.search(rf"{key}: (\S+);", rule)[1] in dark  # type: ignore[index]
    for look in ("page", "lane", "box", "line", "rail"):
        assert all(colour != "none" for found, key, colour in painted if (found, key) == (look, PAINTED[look]))


def test_names_that_mean_something_in_xml_are_only_names() -> None:
    root = ElementTree.fromstring(as_svg(HOSTILE))
    assert root[0].text == '"p" & <q> ---: 2 hooks at 3 points'
    (about, *_) = said(root, "hook")
    assert 'Says <b>"no"</b> & `maybe`; ·[31mü — 損失 ]]>' in about
    assert any("loss > 1 and name != \"<&\\n`#quot;`>\" or 損失 < 'π'" in text for text in said(root, "hook"))
    assert all('it\'s "p" <&> `q`\\.toml:7' in text for text in said(root, "edge"))
    page = ElementTree.fromstring(as_html(HOSTILE))
    assert any(cell.text == about.split("\n")[1] for cell in page.iter("td"))


def test_an_edge_says_its_kind_in_words_and_by_its_stroke() -> None:
    root = ElementTree.fromstring(as_svg(RICH))
    drawn = {
        kind for group in root.iter(f"{SVG}g") if (kind := group.get("class")) in ("file", "class", "flow", "pair")
    }
    assert drawn == {"file", "class", "flow", "pair"}
    text = "\n".join(said(root, "edge"))
    assert "whiten before ema: stated by the hook's class (class Ema)" in text
    assert "densify before reader: data flow: who writes a slot, before who reads it (writes model)" in text
    assert "freeze_the_backbone before ema: last in, first out" in text


def test_what_gave_way_stands_below_the_picture() -> None:
    text = " ".join(part.text or "" for part in ElementTree.fromstring(as_svg(RICH)).iter(f"{SVG}text"))
    assert "at after_train_iter, psnr before reader (writes metrics) gave way to: reader before psnr (p.toml:8)" in text


def test_a_plan_without_hooks_is_a_picture_too() -> None:
    assert ElementTree.fromstring(as_svg(plan()))[0].text == "p: 0 hooks at 0 points"
    assert "<table>" not in as_html(plan())


@pytest.mark.parametrize(("title", "said"), [("", "p: 7 hooks at 5 points"), ("p: ema alone", "p: ema alone")])
def test_a_page_and_its_picture_have_the_title_that_is_given(title: str, said: str) -> None:
    page = as_html(EXAMPLE, title)
    assert re.findall(r"<title[^>]*>(p: [^<]*)</title>", page) == [said, said]


def test_the_page_tells_what_is_doubtful_about_the_plan() -> None:
    never = plan(node("a", ["before_train"]), node("b", ["after_val"], after=["a"]))
    said = [part.text for part in ElementTree.fromstring(as_html(never)).iter("li")]
    assert said == ['pipelines/p.toml:7: the edge between "b" and "a" can never matter: they share no point']


@given(plans())
def test_every_firing_and_every_edge_is_there(drawn: Plan) -> None:
    root = ElementTree.fromstring(as_svg(drawn))
    boxes = [group.get("data-hook") for group in root.iter(f"{SVG}g") if group.get("class") == "hook"]
    assert boxes == [binding.hook for binding in drawn.bindings]
    for binding, text in zip(drawn.bindings, said(root, "hook"), strict=True):
        assert all(mark in text for mark in (*marks(drawn, binding), *slots(binding)))
    links = [link for point in drawn.points for link in stated(drawn, point.name)]
    titles = sorted(said(root, "edge"))
    assert len(titles) == len(links)
    for link, title in zip(sorted(links, key=lambda link: (link.first.hook, link.then.hook)), titles, strict=True):
        assert title.startswith(f"{link.first.hook} before {link.then.hook}")
    sources = sorted(title.rpartition(" (")[2] for title in titles)
    assert sources == sorted(f"{place_of(link.edge)})" for link in links if link.edge)


@given(plans())
def test_the_page_lists_every_firing_and_every_edge(drawn: Plan) -> None:
    rows = ElementTree.fromstring(as_html(drawn)).iter("tr")
    cell = [tuple(td.text or "" for td in row.iter("td")) for row in rows]
    for binding in drawn.bindings:
        assert any(row[:2] == (binding.point, binding.hook) for row in cell)
    for edge in drawn.edges:
        assert any(row[:3] == (edge.point, edge.first, edge.then) and row[4] == place_of(edge) for row in cell[::-1])


@given(plans())
def test_nothing_overlaps(drawn: Plan) -> None:
    check(drawn)


def crowded_ports() -> Plan:
    """Return a hook at which arrows from its own row and the one above end, and one begins: more than it is wide."""
    above = [node(x, ["after_val"], trigger=Trigger(when="as wide as a box may be")) for x in "ABCDEFGH"]
    beside = [node(x, ["after_val"]) for x in "abcdefghijklmn"]
    crowded = node("z", ["after_val"], [*"ABCDEFGH", *"abcdefghijklmn"])
    return plan(*above, *beside, crowded, node("y", ["after_val"]), node("x", ["after_val"], ["z"]))


def long_stubs() -> Plan:
    """Return short names that no row has room for two of: the names of those that they wait for stand beside them."""
    long = [name * 110 for name in "lm"]
    return plan(*(node(x, ["after_val"]) for x in long), *(node(x, ["after_val"], long) for x in "st"))


def own_rows() -> Plan:
    """Return a point whose label is higher than its boxes: it says what point it is, and which row."""
    own = Points([Point("after_prune", 3, ("run",), "firing", "", "own", "after_train_iter")])
    return plan(*(node(f"hook{k}", ["after_prune"]) for k in range(40)), points=own)


def test_nothing_overlaps_at_a_crowded_point() -> None:
    inside = plan(node("probe", ["forward"], modules=("head",)))
    for drawn in (RICH, HOSTILE, packed(40, 4), wide(60), crowded_ports(), long_stubs(), own_rows(), inside):
        check(drawn)


def test_a_hook_that_is_wider_than_a_screen_has_a_row_to_itself() -> None:
    names = ["a", "x" * 300, "b", "c"]
    lanes = lay_out(plan(*(node(name, ["after_val"]) for name in names)), top=50).lanes
    assert [[box.binding.hook for box in lane.boxes] for lane in lanes] == [["a"], ["x" * 300], ["b", "c"]]


def test_two_hooks_stand_side_by_side_as_long_as_the_screen_is_wide_enough() -> None:
    rows = []
    for length in range(75, 95):
        lanes = lay_out(plan(node("x" * length, ["after_val"]), node("y" * length, ["after_val"])), top=50).lanes
        assert all(lane.x + lane.width <= WIDTH for lane in lanes)
        rows.append(len(lanes))
    assert rows == sorted(rows) and {*rows} == {1, 2}


@pytest.mark.parametrize(
    "nodes",
    [
        [node("a"), node("b"), node("c"), node("d", after=["a", "b"])],
        [node("a"), node("b"), node("c", after=["a"]), node("d", after=["a"], kind="class")],
        [node("a"), node("b"), node("c"), node("d"), node("e", after=["c"]), node("f", after=["a"])],
    ],
    ids=["to one box", "from one box", "past other boxes"],
)
def test_long_arrows_arch_over_short_ones(nodes: list[Node]) -> None:
    for lane in lay_out(plan(*nodes), top=50).lanes:
        ways = (arrow.corners for arrow in lane.arrows)
        short, long = sorted(ways, key=lambda corners: corners[-1][0] - corners[0][0])
        assert long[0][0] < short[0][0] < short[-1][0] < long[-1][0]
        assert long[1][1] < short[1][1]


@pytest.mark.parametrize(
    ("span", "free"),
    [
        ((0, 2), True),
        ((2, 4), False),
        ((3, 5), False),
        ((5, 7), True),
        ((5, 8), False),
        ((9, 11), False),
        ((10, 12), True),
    ],
)
def test_a_track_is_free_between_the_ends_of_others(span: tuple[int, int], free: bool) -> None:
    assert is_free([(2, 5), (7, 10)], span) == free


MANY = {
    "few edges": wide(300),
    "combs": packed(300, 3),
    "one waits for all": plan(
        *(node(f"hook{k}", ["after_val"]) for k in range(299)),
        node("z", ["after_val"], [f"hook{k}" for k in range(299)]),
    ),
    "a chain": plan(*(node(f"hook{k}", ["after_val"], [f"hook{k - 1}"] if k else []) for k in range(300))),
    "arounds": plan(*(node(f"hook{k}", (), around=True) for k in range(300))),
}


@pytest.mark.parametrize("name", MANY)
def test_a_picture_of_300_hooks_is_not_wider_than_a_screen_and_shows_all(name: str) -> None:
    root = ElementTree.fromstring(as_svg(MANY[name]))
    width, height = map(float, root.get("viewBox", "").split()[2:])
    assert width <= WIDTH + RAILS + MARGIN == 1616
    assert len([*root.iter(f"{SVG}g")]) > 300
    assert max(x for part in root.iter() if part.get("class") == "lane" for x, _ in corners(part)) <= WIDTH
    for x, y in painted_at(root):
        assert 0 <= x <= width and 0 <= y <= height


def test_a_picture_has_room_for_its_title_and_for_what_gave_way() -> None:
    title = "a title that is longer than the picture of a single hook is wide, and than the least width"
    for drawn in (plan(node("a", ["after_val"])), RICH):
        root = ElementTree.fromstring(as_svg(drawn, title))
        width, height = map(float, root.get("viewBox", "").split()[2:])
        assert all(0 <= x <= width - MARGIN and 0 <= y <= height - MARGIN for x, y in painted_at(root))


def painted_at(root: ElementTree.Element) -> Iterator[tuple[float, float]]:
    """Yield corners of all that is painted; text as wide as it is reckoned to be."""
    for part in root.iter():
        if part.tag == f"{SVG}rect" and part.get("class") != "page":
            yield from corners(part)
        elif part.tag == f"{SVG}text":
            x, y = float(part.get("x", "")), float(part.get("y", ""))
            wide = cell_len(part.text or "") * {"note": NOTE_CELL, "title": 9.5}.get(part.get("class", ""), NAME_CELL)
            yield from ((x, y), (x - wide if part.get("text-anchor") == "end" else x + wide, y))
        elif part.tag == f"{SVG}path" and part.get("class") != "rail":
            numbers = [float(number) for number in re.findall(r"[\d.]+|-[\d.]+", part.get("d", ""))]
            yield from zip(numbers[::2], numbers[1::2], strict=True)


def corners(part: ElementTree.Element) -> tuple[tuple[float, float], tuple[float, float]]:
    x, y, wide, high = (float(part.get(key, "")) for key in ("x", "y", "width", "height"))
    return (x, y), (x + wide, y + high)


def test_a_long_picture_is_printed_on_several_pages() -> None:
    two_rows = plan(*(node(f"hook{k}", ["after_val"]) for k in range(20)))
    check(two_rows)
    assert [lane.notes for lane in lay_out(two_rows, top=0).lanes] == [("row 1 of 2",), ("row 2 of 2",)]
    looks = [as_html(drawn).split("<figure", 1)[1].split(">", 1)[0] for drawn in (EXAMPLE, two_rows)]
    assert looks == [' class="picture"', ' class="picture long"']
    assert ["goes on in the next row" in as_svg(drawn) for drawn in (EXAMPLE, two_rows)] == [False, True]
    assert ".picture.long svg { max-height: none; }" in as_html(EXAMPLE)


def test_an_edge_between_two_rows_says_at_both_ends_where_the_other_is() -> None:
    drawn = wide(60)
    lanes = lay_out(drawn, top=50).lanes
    rows = {box.binding.id: lane.row for lane in lanes for box in lane.boxes}
    broken = [(lane, arrow) for lane in lanes for arrow in lane.arrows if arrow.start]
    assert {arrow.kind for _, arrow in broken} == {"file", "class", "flow"}
    for lane, arrow in broken:
        first, then = arrow.link.first, arrow.link.then
        above = next(other for other in lanes if first in [box.binding for box in other.boxes])
        assert above.row == rows[first.id] < lane.row == rows[then.id]
        assert f"before {then.hook} (row {lane.row})" in beside(above, arrow.start[1])
        assert f"after {first.hook} (row {above.row})" in beside(lane, arrow.corners[0])
    assert {lane.notes for lane in lanes if lane.rows > 1} == {
        (f"row {k} of {n}",) for n in [9] for k in range(1, n + 1)
    }


def beside(lane: Lane, end: tuple[float, float]) -> list[str]:
    """Return the lines beside a stub, from its upper end down."""
    return [label.text for label in lane.labels if abs(label.x - end[0]) == pytest.approx(5) and label.y > end[1]]


def test_a_stub_of_many_edges_names_the_nearest_and_says_how_many_more() -> None:
    last = lay_out(MANY["one waits for all"], top=50).lanes[-1]
    (*labels,) = (label.text for label in last.labels)
    assert labels[0].startswith("after hook")
    assert labels[2:] == [f"and {299 - 2 - (len(last.boxes) - 1)} more"]
    for count, said in ((3, ["after h2", "after h1", "after h0"]), (4, ["after h3", "after h2", "and 2 more"])):
        others = [node(f"hook{k}", ["after_val"]) for k in range(20)]
        first = [node(f"h{k}", ["after_val"]) for k in range(count)]
        drawn = plan(*first, *others, node("z", ["after_val"], [hook.hook.name for hook in first]))
        assert [label.text.removesuffix(" (row 1)") for label in lay_out(drawn, top=50).lanes[-1].labels] == said
    image = as_svg(MANY["arounds"])
    assert re.search(r"join the two, but for \d+ that find no room<", image)


def check(drawn: Plan) -> None:
    image = lay_out(drawn, top=50)
    boxes = {box.binding.id: box for lane in image.lanes for box in lane.boxes}
    for lane, below in pairwise(image.lanes):
        assert lane.y + lane.height < below.y
    for lane in image.lanes:
        assert lane.x + lane.width <= min(image.width, WIDTH)
        assert lane.boxes[0].y + 17 + len(lane.notes) * NOTE_LINE < lane.y + lane.height
        assert all(lane.x + cell_len(note) * NOTE_CELL < lane.boxes[0].x for note in lane.notes)
        for box in lane.boxes:
            assert lane.y < box.y and box.y + box.height < lane.y + lane.height
            assert box.x > lane.x + cell_len(lane.point.name) * NAME_CELL
            assert cell_len(box.binding.hook) * NAME_CELL < box.width
            assert all(cell_len(note) * NOTE_CELL < box.width for note in box.notes)
        _check_labels(lane, [arrow for other in image.lanes for arrow in other.arrows])
        assert all(box.x + box.width < other.x for box, other in pairwise(lane.boxes))
        mark = 4 + NAME_CELL if lane.row < lane.rows else 0
        assert lane.boxes[-1].x + lane.boxes[-1].width + mark < lane.x + lane.width
        _check_arrows(lane, boxes)
    spans = [(rail.x, rail.top, rail.bottom) for rail in image.rails]
    assert all(x > max(lane.x + lane.width for lane in image.lanes) for x, _, _ in spans)
    for (x, top, bottom), other in combinations(spans, 2):
        assert x != other[0] or bottom < other[1] or other[2] < top


def _check_arrows(lane: Lane, boxes: dict[int, Box]) -> None:
    """Each arrow leads from its box to its box; no two run along one line, unless they share it for one reason."""
    for one, other in combinations(lane.arrows, 2):
        shared = (one.link.first, one.kind) == (other.link.first, other.kind)
        if one.start and other.start:
            shared |= (one.link.then, one.kind) == (other.link.then, other.kind)
        if not shared:
            for (a, b), (c, d) in ((x, y) for x in pairwise(one.corners) for y in pairwise(other.corners)):
                for across in (0, 1):
                    if a[across] == b[across] == c[across] == d[across]:
                        ends = sorted((a[1 - across], b[1 - across])), sorted((c[1 - across], d[1 - across]))
                        assert ends[0][1] <= ends[1][0] or ends[1][1] <= ends[0][0]
    for arrow in lane.arrows:
        assert all(lane.y < y < lane.y + lane.height for _, y in arrow.corners)
        first, then = boxes[arrow.link.first.id], boxes[arrow.link.then.id]
        for box, (x, y) in ((first, (arrow.start or arrow.corners)[0]), (then, arrow.corners[-1])):
            assert y == box.y or x in (box.x, box.x + box.width)
            assert box.x <= x <= box.x + box.width and box.y <= y <= box.y + box.height


def _check_labels(lane: Lane, arrows: list[Arrow]) -> None:
    """No label leaves the lane, lies on another one, on a box, or below an arrow."""
    areas = []
    for label in lane.labels:
        left = label.x - (cell_len(label.text) * NOTE_CELL if label.anchor == "end" else 0)
        areas.append((left, label.y - 9, left + cell_len(label.text) * NOTE_CELL, label.y + 2))
    for one, other in combinations(areas, 2):
        assert one[2] < other[0] or other[2] < one[0] or one[3] < other[1] or other[3] < one[1]
    bound = [box.binding for box in lane.boxes]
    ways = [arrow.corners for arrow in lane.arrows] + [arrow.start for arrow in arrows if arrow.link.first in bound]
    for left, upper, right, lower in areas:
        assert lane.y < upper and lower < lane.boxes[0].y and right < lane.x + lane.width
        for (a, b), (c, d) in (ends for way in ways for ends in pairwise(way)):
            assert max(a, c) < left or right < min(a, c) or max(b, d) < upper or lower < min(b, d)


FORBIDDEN = "\x00\x08\x1b\x1f\ud800\ufffe\uffff"
STRUCTURE = ("point", "half", "kind", "phase", "method", "on_error", "ranks", "trigger", "follows")


def polluted(value: Any, key: str = "") -> Any:
    """Return a plan's JSON with characters that XML forbids in every name and text of it."""
    match value:
        case str() if value and key not in STRUCTURE:
            return value + FORBIDDEN
        case dict():
            return {name: inner if key == "trigger" else polluted(inner, name) for name, inner in value.items()}
        case list():
            return [polluted(inner, key) for inner in value]
    return value


def test_what_xml_forbids_is_left_out() -> None:
    for tables in (RICH.to_json(), HOSTILE.to_json()):
        hostile = Plan.from_json(polluted(tables))
        for drawn in (as_svg(hostile, f"title{FORBIDDEN}"), as_html(hostile, f"title{FORBIDDEN}")):
            assert not set(FORBIDDEN) & set(drawn)
            ElementTree.fromstring(drawn[drawn.index("<svg") : drawn.rindex("</svg>") + 6])
