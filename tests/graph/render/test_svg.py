"""A plan as an image and as a page: well-formed, no text leaves the image, nothing is fetched."""

import re
from dataclasses import fields, replace
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given

from hookflow.graph.plan import Plan
from hookflow.graph.render.svg import MARGIN, as_html, as_svg
from hookflow.graph.render.text import marks, place_of
from tests.golden_files import check_golden
from tests.graph.render.plans import EXAMPLE, HOSTILE, RICH, node, plan, plans, wide

SVG = "{http://www.w3.org/2000/svg}"
ONE_WAITS_FOR_ALL = plan(
    *(node(f"hook{k}", ["after_val"]) for k in range(99)),
    node("z", ["after_val"], [f"hook{k}" for k in range(99)]),
)
MANY_AROUNDS = plan(*(node(f"hook{k}", (), around=True) for k in range(60)))


def said(root: ElementTree.Element) -> str:
    """Return the text of a picture, its lines one after another."""
    return " ".join(" ".join(part.text or "" for part in root.iter(f"{SVG}text")).split())


def test_a_plan_with_everything_is_golden_fetches_nothing_and_has_its_title() -> None:
    check_golden("drawings/rich.svg", as_svg(RICH) + "\n")
    for drawn in (as_svg(RICH), as_html(RICH)):
        addresses = set(re.findall(r"\w+://[^\s\"<]+", drawn))
        assert addresses == {"http://www.w3.org/2000/svg"}  # the name of the language, which is not fetched
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
    assert "loss > 1 and name != \"<&\\n`#quot;`>\" or 損失 < 'π'" in said(root)
    assert 'it\'s "p" <&> `q`\\.toml:7' in said(root)
    page = ElementTree.fromstring(as_html(HOSTILE))
    assert any('Says <b>"no"</b> & `maybe`; ·[31mü — 損失 ]]>' in (cell.text or "") for cell in page.iter("td"))


def test_a_plan_without_hooks_is_a_picture_too() -> None:
    assert ElementTree.fromstring(as_svg(plan()))[0].text == "p: 0 hooks at 0 points"
    assert "<table>" not in as_html(plan())
    never = plan(node("a", ["before_train"]), node("b", ["after_val"], after=["a"]))
    items = [part.text for part in ElementTree.fromstring(as_html(never)).iter("li")]
    assert items == ['pipelines/p.toml:7: the edge between "b" and "a" can never matter: they share no point']


@given(plans())
def test_the_picture_and_the_page_have_every_firing_and_every_edge(drawn: Plan) -> None:
    page = ElementTree.fromstring(as_html(drawn))
    (root,) = page.iter(f"{SVG}svg")
    text = said(root)
    assert all(mark in text for binding in drawn.bindings for mark in (binding.hook, *marks(drawn, binding)))
    rows = [tuple(td.text or "" for td in row.iter("td")) for row in page.iter("tr")]
    assert {(binding.point, binding.hook) for binding in drawn.bindings} <= {row[:2] for row in rows}
    assert {(edge.point, edge.first, edge.then, place_of(edge)) for edge in drawn.edges} <= {
        (*row[:3], row[4]) for row in rows if len(row) > 4
    }


INSIDE = plan(node("probe", ["forward"], modules=("head",)), node("a", ["forward"]), name="a title " * 30)


@pytest.mark.parametrize(
    "drawn",
    [RICH, HOSTILE, INSIDE, wide(60), ONE_WAITS_FOR_ALL, MANY_AROUNDS],
    ids=["rich", "hostile", "inside", "wide", "one waits for all", "arounds"],
)
def test_nothing_leaves_the_picture(drawn: Plan) -> None:
    root = ElementTree.fromstring(as_svg(drawn))
    width, height = map(float, root.get("viewBox", "").split()[2:])
    for part in root.iter(f"{SVG}text"):
        x, y, wide = (float(part.get(key, "")) for key in ("x", "y", "textLength"))
        assert x >= MARGIN and x + wide <= width - MARGIN + 1 and MARGIN <= y <= height - MARGIN


FORBIDDEN = "\x00\x08\x1b\x1f\ud800\ufffe\uffff"


def polluted(item: Any) -> Any:
    """Return a hook or a binding with characters that XML forbids in every name and text of it."""
    names = {field.name for field in fields(item)} & {"name", "use", "about", "where", "hook", "first", "then"}
    return replace(item, **{name: getattr(item, name) + FORBIDDEN for name in names})


def test_what_xml_forbids_is_left_out() -> None:
    for drawn in (RICH, HOSTILE):
        parts = {key: tuple(map(polluted, getattr(drawn, key))) for key in ("hooks", "bindings", "edges")}
        hostile = replace(drawn, pipeline=drawn.pipeline + FORBIDDEN, **parts)
        for image in (as_svg(hostile), as_html(hostile), as_svg(hostile, f"title{FORBIDDEN}")):
            assert not set(FORBIDDEN) & set(image)
            ElementTree.fromstring(image[image.index("<svg") : image.rindex("</svg>") + 6])
