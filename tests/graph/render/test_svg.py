"""A plan as an image and as a page: well-formed, nothing overlaps, no text leaves its column,
nothing is fetched.
"""

import re
from collections.abc import Iterator
from dataclasses import fields, replace
from itertools import combinations, pairwise
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from rich.cells import cell_len

from hookflow.graph.plan import Plan
from hookflow.graph.render.html import as_html
from hookflow.graph.render.svg import as_svg
from hookflow.graph.render.svg_layout import MARGIN, NAME_CELL, NOTE_CELL, TITLE_CELL, PictureLayout
from hookflow.graph.render.text import format_edge_place, list_marks, list_slots
from tests.graph.render.plans import EXAMPLE, HOSTILE, RICH, node, plan, plans, wide
from tests.support.golden_files import check_golden

SVG = "{http://www.w3.org/2000/svg}"
ONE_WAITS_FOR_ALL = plan(
    *(node(f"hook{k}", ["after_val"]) for k in range(99)),
    node("z", ["after_val"], [f"hook{k}" for k in range(99)]),
)
MANY_AROUNDS = plan(*(node(f"hook{k}", (), around=True) for k in range(60)))


def said(root: ElementTree.Element, kind: str) -> list[str]:
    """Return what is shown below the pointer for every part of a kind."""
    return [
        "".join(group[0].itertext()) for group in root.iter(f"{SVG}g") if group.get("class") == kind
    ]


def test_a_plan_with_everything_is_golden_fetches_nothing_and_has_its_title() -> None:
    check_golden("drawings/rich.svg", as_svg(RICH) + "\n")
    for drawn in (as_svg(RICH), as_html(RICH)):
        addresses = set(re.findall(r"\w+://[^\s\"<]+", drawn))
        # The name of the language, which is not fetched.
        assert addresses == {"http://www.w3.org/2000/svg"}
        assert not re.search(r"url\(|@import|<link|<img|src=", drawn)
    root = ElementTree.fromstring(as_svg(RICH))
    assert root.get("role") == "img"
    assert [part.tag for part in root[:2]] == [f"{SVG}title", f"{SVG}desc"]
    assert root.get("aria-labelledby") == f"{root[0].get('id')} {root[1].get('id')}"
    assert "before_val: ema, freeze_the_backbone." in (root[1].text or "")
    page = as_html(EXAMPLE, "p: ema alone")
    assert re.findall(r"<title[^>]*>(p: [^<]*)</title>", page) == ["p: ema alone"] * 2


def test_names_that_mean_something_in_xml_are_only_names() -> None:
    root = ElementTree.fromstring(as_svg(HOSTILE))
    assert root[0].text == '"p" & <q> ---: 2 hooks at 3 points'
    (about, *_) = said(root, "hook")
    assert 'Says <b>"no"</b> & `maybe`; ·[31mü — 損失 ]]>' in about
    assert any(
        "loss > 1 and name != \"<&\\n`#quot;`>\" or 損失 < 'π'" in text
        for text in said(root, "hook")
    )
    assert all('it\'s "p" <&> `q`\\.toml:7' in text for text in said(root, "edge"))
    page = ElementTree.fromstring(as_html(HOSTILE))
    assert any(cell.text == about.split("\n")[1] for cell in page.iter("td"))


def test_a_plan_without_hooks_is_a_picture_too() -> None:
    assert ElementTree.fromstring(as_svg(plan()))[0].text == "p: 0 hooks at 0 points"
    assert "<table>" not in as_html(plan())
    never = plan(node("a", ["before_train"]), node("b", ["after_val"], after=["a"]))
    items = [part.text for part in ElementTree.fromstring(as_html(never)).iter("li")]
    assert items == [
        'pipelines/p.toml:7: the edge between "b" and "a" can never matter: they share no point'
    ]


@given(plans())
def test_the_picture_and_the_page_have_every_firing_and_every_edge(drawn: Plan) -> None:
    page = ElementTree.fromstring(as_html(drawn))
    (root,) = page.iter(f"{SVG}svg")
    boxes = [
        group.get("data-hook") for group in root.iter(f"{SVG}g") if group.get("class") == "hook"
    ]
    assert boxes == [binding.hook for binding in drawn.bindings]
    for binding, text in zip(drawn.bindings, said(root, "hook"), strict=True):
        assert all(mark in text for mark in (*list_marks(drawn, binding), *list_slots(binding)))
    ends = sorted(
        f"{edge.first} before {edge.then} ({format_edge_place(edge)})" for edge in drawn.edges
    )
    assert sorted(re.sub(r":.* \(", " (", title) for title in said(root, "edge")) == ends
    rows = [tuple(td.text or "" for td in row.iter("td")) for row in page.iter("tr")]
    assert {(binding.point, binding.hook) for binding in drawn.bindings} <= {
        row[:2] for row in rows
    }
    assert {
        (edge.point, edge.first, edge.then, format_edge_place(edge)) for edge in drawn.edges
    } <= {(*row[:3], row[4]) for row in rows if len(row) > 4}
    check(drawn)


INSIDE = plan(
    node("probe", ["forward"], modules=("head",)), node("a", ["forward"]), name="a title " * 30
)


@pytest.mark.parametrize(
    "drawn",
    [RICH, HOSTILE, INSIDE, wide(60), ONE_WAITS_FOR_ALL, MANY_AROUNDS],
    ids=["rich", "hostile", "inside", "wide", "one waits for all", "arounds"],
)
def test_nothing_overlaps_or_leaves_the_picture(drawn: Plan) -> None:
    check(drawn)
    root = ElementTree.fromstring(as_svg(drawn))
    width, height = map(float, root.get("viewBox", "").split()[2:])
    assert all(0 <= x <= width - MARGIN and 0 <= y <= height - MARGIN for x, y in painted_at(root))


def check(drawn: Plan) -> None:
    image = PictureLayout(drawn, top=50)
    assert all(above[1] < below[0] for above, below in pairwise(image.lanes.values()))
    for point in image.points:
        top, bottom = image.lanes[point.name]
        rows = [image.rows[binding.id] for binding in drawn.at(point.name)]
        assert top < rows[0].y and rows[-1].y + rows[-1].height <= bottom
        assert all(row.y + row.height < below.y for row, below in pairwise(rows))
        assert image.indents[point.name] + cell_len(point.name) * NAME_CELL < image.boxes_x
    for row in image.rows.values():
        assert image.boxes_x + row.width < image.notes_x
        assert cell_len(row.binding.hook) * NAME_CELL < row.width
        assert all(image.notes_x + cell_len(note) * NOTE_CELL < image.rails_x for note in row.notes)
    arrows = [
        (net, edge, image.corners(net, edge))
        for net, edges in image.edges.items()
        for edge in edges
    ]
    for net, edge, corners in arrows:
        for id_, (x, y) in ((net[0], corners[0]), (edge.then_id, corners[-1])):
            assert (
                x == image.boxes_x
                and image.rows[id_].y < y < image.rows[id_].y + image.rows[id_].box_height
            )
        assert image.indents[edge.point] < corners[1][0] < image.boxes_x - 10, "room for the tip"
    for (net, _, one), (other_net, _, other) in combinations(arrows, 2):
        if net != other_net:
            assert not any(along(a, b) for a in pairwise(one) for b in pairwise(other)), (
                "two run along one line"
            )
    ys = [image.rows[binding.id].y for binding in image.bindings]
    spans = [(lane, ys[rail.first], ys[rail.last]) for rail, lane in image.rails]
    for (lane, top, bottom), (other_lane, other_top, other_bottom) in combinations(spans, 2):
        assert lane != other_lane or bottom < other_top or other_bottom < top


Segment = tuple[tuple[float, float], tuple[float, float]]


def along(one: Segment, other: Segment) -> bool:
    """Say whether two straight parts of arrows lie on one another."""
    for axis in (0, 1):
        if one[0][axis] == one[1][axis] == other[0][axis] == other[1][axis]:
            (a, b), (c, d) = (sorted(end[1 - axis] for end in segment) for segment in (one, other))
            return a < d and c < b
    return False


def painted_at(root: ElementTree.Element) -> Iterator[tuple[float, float]]:
    """Yield corners of all that is painted; text as wide as it is reckoned to be."""
    for part in root.iter():
        if part.tag == f"{SVG}rect" and part.get("class") != "page":
            x, y, wide, high = (float(part.get(key, "")) for key in ("x", "y", "width", "height"))
            yield from ((x, y), (x + wide, y + high))
        elif part.tag == f"{SVG}text":
            cell = {"note": NOTE_CELL, "title": TITLE_CELL}.get(part.get("class", ""), NAME_CELL)
            x, y = float(part.get("x", "")), float(part.get("y", ""))
            yield from ((x, y), (x + cell_len(part.text or "") * cell, y))
        elif part.tag == f"{SVG}path" and part.get("class") != "rail":
            numbers = [float(number) for number in re.findall(r"-?[\d.]+", part.get("d", ""))]
            yield from zip(numbers[::2], numbers[1::2], strict=True)


FORBIDDEN = "\x00\x08\x1b\x1f\ud800\ufffe\uffff"


def polluted(item: Any) -> Any:
    """Return a hook or a binding with characters that XML forbids in every name and text of it."""
    names = {field.name for field in fields(item)} & {
        "name",
        "use",
        "about",
        "where",
        "hook",
        "first",
        "then",
    }
    return replace(item, **{name: getattr(item, name) + FORBIDDEN for name in names})


def test_what_xml_forbids_is_left_out() -> None:
    for drawn in (RICH, HOSTILE):
        parts = {
            key: tuple(map(polluted, getattr(drawn, key))) for key in ("hooks", "bindings", "edges")
        }
        hostile = replace(drawn, pipeline=drawn.pipeline + FORBIDDEN, **parts)
        for image in (as_svg(hostile), as_html(hostile), as_svg(hostile, f"title{FORBIDDEN}")):
            assert not set(FORBIDDEN) & set(image)
            ElementTree.fromstring(image[image.index("<svg") : image.rindex("</svg>") + 6])
