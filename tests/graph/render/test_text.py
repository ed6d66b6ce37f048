"""A plan as text, in any width, with and without colours, whole or a part of it;
and as Mermaid and DOT.
"""

import json
import re
import shutil
import subprocess
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookflow.graph.filters import PlanFilter
from hookflow.graph.plan import Binding, Half, Plan, Trigger
from hookflow.graph.render.loop import make_rows
from hookflow.graph.render.svg import as_svg
from hookflow.graph.render.text import (
    as_dot,
    as_mermaid,
    as_text,
    draw_gutter,
    draw_rails,
    format_edge_place,
    list_marks,
)
from hookflow.hooks.compile import compile_pipeline
from hookflow.pipeline.load import parse
from tests.conftest import TOY
from tests.graph.render.plans import EXAMPLE, HOSTILE, RICH, node, plan, plans
from tests.support.golden_files import check_golden


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_a_plan_with_everything_is_golden(width: int) -> None:
    drawn = as_text(RICH, width=width)
    check_golden(f"drawings/rich-{width}.txt", drawn + "\n")
    assert max(map(len, drawn.split("\n"))) <= width


def test_a_plan_without_hooks_is_drawn_and_a_moved_phase_with_the_one_it_was() -> None:
    assert as_text(plan()) == "p: 0 hooks at 0 points\n"
    assert "late (moved from normal)" in as_text(
        plan(node("log", phase="late"), node("board", after=["log"]))
    )
    around = plan(node("outer", (), phase="early", around=True))
    assert as_text(around).split("\n")[2:] == [
        "before_val outer  ╭ enters around_val, early",
        "after_val  outer  ╰ leaves around_val, late",
    ]


def test_rails_pass_the_points_that_stand_above_their_hooks_where_there_is_room() -> None:
    log = node("log", ["before_val", "after_val"])
    drawn = as_text(
        plan(node("a_long_name_of_a_hook", (), after=["log"], around=True), log), width=40
    )
    check_golden("drawings/rails-40.txt", drawn + "\n")


def test_colours_change_nothing_but_the_colours() -> None:
    for drawn in (EXAMPLE, RICH):
        coloured = as_text(drawn, colour=True)
        assert coloured.startswith("\x1b[1m")
        assert re.sub(r"\x1b\[\d*m", "", coloured).split() == as_text(drawn).split()


@pytest.mark.parametrize(("width", "lanes"), [(40, 4), (120, 10)])
def test_a_gutter_has_no_more_lanes_than_its_share_of_the_width(width: int, lanes: int) -> None:
    firsts = [node(f"first{k}", ["after_val"]) for k in range(10)]
    thens = [node(f"then{k}", ["after_val"], [f"first{k}"]) for k in range(10)]
    lines = as_text(plan(*firsts, *thens), width=width).split("\n")
    assert sum("▶" in line for line in lines) == lanes
    assert sum("after first" in line for line in lines) == 10


@given(plans(), st.sampled_from([40, 60, 80, 120]))
def test_every_firing_and_edge_is_told_in_order_and_none_is_wider_than_the_page(
    drawn: Plan, width: int
) -> None:
    lines = as_text(drawn, width=width).split("\n")[2:]
    assert all(len(line) <= width for line in lines)
    rest = iter(lines)
    for binding in drawn.bindings:
        assert any(re.search(rf"(^|[ ▶]){binding.hook}\b", line) for line in rest), binding
    said = re.sub(r"[\s│╭╰]+", " ", " ".join(lines))
    assert all(mark in said for binding in drawn.bindings for mark in list_marks(drawn, binding))
    for edge in drawn.edges:
        assert re.search(
            rf"after [^()]*\b{edge.first}\b[^()]* \({re.escape(format_edge_place(edge))}\)", said
        ), edge


def closure(links: set[tuple[int, int]]) -> set[tuple[int, int]]:
    closed = set(links)
    while more := {(a, d) for a, b in closed for c, d in closed if b == c} - closed:
        closed |= more
    return closed


@given(
    st.sets(st.tuples(st.integers(0, 7), st.integers(0, 7)).filter(lambda pair: pair[0] < pair[1]))
)
def test_the_gutter_can_be_read_back_and_says_what_the_edges_say(
    links: set[tuple[int, int]],
) -> None:
    rows = draw_gutter(8, links)
    assert len({len(row) for row in rows}) == 1
    opened: dict[int, int] = {}
    result = set()
    for row, line in enumerate(rows):
        result |= {(opened[column], row) for column, knot in enumerate(line) if knot in "└┴├┼"}
        opened |= {column: row for column, knot in enumerate(line) if knot in "┌┬"}
        assert line.endswith("▶") == any(then == row for _, then in result)
    assert closure(result) == closure(links)


@pytest.mark.parametrize(
    ("firings", "limit", "drawn"),
    [
        ("o( l i( i) o)", 9, ["╭ ", "│ ", "│╭", "│╰", "╰ "]),
        ("o( l i( i) o)", 1, ["╭", "│", "│", "│", "╰"]),
        # As points of a user's own may cross.
        ("a( b( a) c( x b) c)", 9, ["╭ ", "│╭", "╰│", "╭│", "││", "│╰", "╰ "]),
        ("b) a( x a)", 9, [" ", "╭", "│", "╰"]),
        ("a( x", 9, ["", ""]),
    ],
)
def test_a_rail_joins_the_halves_of_an_around_in_a_free_column(
    firings: str, limit: int, drawn: list[str]
) -> None:
    halves: dict[str, Half] = {"": "whole", "(": "enter", ")": "exit"}
    bindings = [
        Binding(name[0], "somewhere", "around", halves[name[1:]], (), Trigger(), "normal", id=k)
        for k, name in enumerate(firings.split())
    ]
    assert draw_rails(bindings, limit) == drawn


def offloaded() -> Plan:
    follows = '{use="./offloaded_hooks.py:follows", points=["after_train_iter"], after=["slow"]}'
    hooks = [
        f'hooks.{name.lower()}={{use="./offloaded_hooks.py:{name}", offload=true}}'
        for name in ("Watches", "Slow")
    ]
    return compile_pipeline(parse(TOY.read_text(), TOY, [*hooks, f"hooks.follows={follows}"]))


def test_the_thread_of_an_offloaded_hook_is_drawn_until_the_run_waits_for_it() -> None:
    points = ("after_backward", "before_optimizer_step", "after_optimizer_step", "after_train_iter")
    check_golden("drawings/offloaded.txt", as_text(PlanFilter(points).apply(offloaded())) + "\n")
    whole = offloaded()
    joined = next(row for row in make_rows(whole) if row.name == "before_val" and row.binding)
    assert joined.rail.startswith("┗"), "a validation waits for what has been fired"
    picture = as_svg(offloaded())
    assert picture.count('style="stroke-width: 3"') == 2
    assert "thick lines on the right" in picture
    assert "slow: at work beside the training" in picture


class TestParts:
    def test_one_point_keeps_all_that_is_said_of_it(self) -> None:
        part = PlanFilter(["after_train_iter"]).apply(RICH)
        assert part.bindings == RICH.at("after_train_iter")
        assert part.edges == RICH.edges_at("after_train_iter")
        assert {hook.name for hook in part.hooks} == {binding.hook for binding in part.bindings}
        assert part.dropped_edges == RICH.dropped_edges
        assert PlanFilter(["before_val"]).apply(RICH).dropped_edges == ()

    def test_one_hook_has_its_neighbours_beside_it_and_no_others(self) -> None:
        part = PlanFilter(hooks=["reader"]).apply(RICH)
        assert [binding.hook for binding in part.at("after_densify")] == ["densify", "reader"]
        assert "log" not in [binding.hook for binding in part.at("after_train_iter")]
        assert {edge.first for edge in part.edges if edge.then == "reader"} >= {"densify", "psnr"}
        assert not any("reader" not in (edge.first, edge.then) for edge in part.edges)
        assert len(part.dropped_edges) == 1


needs_graphviz = pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")


def graphviz(drawn: Plan) -> list[list[str]]:
    """Return the lines of Graphviz's plain output, in words.

    It must have nothing to complain of.
    """
    said = subprocess.run(
        ["dot", "-Tplain"], input=as_dot(drawn), capture_output=True, text=True, check=True
    )
    assert not said.stderr
    return [line.split() for line in said.stdout.strip().split("\n")]


def test_pictures_are_golden_and_names_stand_in_their_letters_and_mean_nothing() -> None:
    check_golden("drawings/rich.mmd", as_mermaid(RICH) + "\n")
    check_golden("drawings/rich.dot", as_dot(RICH) + "\n")
    # Graphviz reads no escapes; whoever opens a file reads its letters.
    drawn = plan(node("a", ["after_val"], trigger=Trigger.parse(when="損失 > 1")), name="großes")
    for image in (as_dot(drawn), as_mermaid(drawn)):
        assert "großes: 1 hook at 1 point" in image
        assert "when 損失 " in image
    chart = as_mermaid(HOSTILE)
    assert chart.startswith(
        '---\ntitle: "\\"p\\" & <q> ---: 2 hooks at 3 points"\n---\nflowchart TB\n'
    )
    for label in re.findall(r'^    b\d.*?"(.*)"', chart, re.MULTILINE):
        assert not re.search(r'["`&<>;#\\]', re.sub(r"</?b>|<br/>|#\d+;", "", label)), label


def test_names_of_a_strangers_plan_mean_nothing_to_mermaid() -> None:
    text = json.dumps(plan(node("ab", ["after_val"])).to_json())
    evil = 'x</b>"] click b0 href "javascript:1" %% '
    strangers = Plan.from_json(text.replace('"ab"', json.dumps(evil)))
    chart = as_mermaid(strangers)
    assert len(re.findall(r'^    b0\["<b>[^"<>]*</b>', chart, re.MULTILINE)) == 1
    assert "javascript:1" in chart and '"javascript' not in chart


@given(plans())
def test_every_firing_and_every_edge_is_there(drawn: Plan) -> None:
    links = [(edge.first_id, edge.then_id) for edge in drawn.edges]
    for image, box, arrow in (
        (
            as_mermaid(drawn),
            r'^    b(\d+)\["<b>([a-f]+)<',
            r'^    b(\d+) -\.?->\|"[^"]+"\| b(\d+)$',
        ),
        (
            as_dot(drawn),
            r'^    b(\d+) \[label="([a-f]+)[\\"]',
            r'^    b(\d+) -> b(\d+) \[label="[^"]+", [^\]]+\];$',
        ),
    ):
        boxes = {int(id_): name for id_, name in re.findall(box, image, re.MULTILINE)}
        assert boxes == {binding.id: binding.hook for binding in drawn.bindings}
        result = [(int(first), int(then)) for first, then in re.findall(arrow, image, re.MULTILINE)]
        assert sorted(result) == sorted(links)


@needs_graphviz
def test_graphviz_takes_the_dot_and_draws_points_from_above_and_hooks_from_the_left() -> None:
    for drawn in (EXAMPLE, RICH, plan()):
        places = {
            words[1]: (float(words[2]), float(words[3]))
            for words in graphviz(drawn)
            if words[0] == "node"
        }
        assert len(places) == len(drawn.bindings)
        rows = [
            [places[f"b{binding.id}"] for binding in drawn.at(point.name)] for point in drawn.points
        ]
        bound = [row for row in rows if row]
        assert all(x < right for row in bound for (x, _), (right, _) in pairwise(row))
        assert [row[0][1] for row in bound] == sorted((row[0][1] for row in bound), reverse=True)
