"""A plan, drawn: the text as a person reads it, Mermaid and DOT as the programs that draw them take it."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookflow.errors import Where
from hookflow.graph.compile import compile_plan
from hookflow.graph.links import neighbours
from hookflow.graph.node import Bound, Node, Wish
from hookflow.graph.plan import Half, Plan, PlannedHook, Trigger
from hookflow.graph.points import POINTS as ALL
from hookflow.graph.render.dot import as_dot
from hookflow.graph.render.mermaid import as_mermaid
from hookflow.graph.render.text import as_text
from hookflow.graph.render.words import marks

POINTS = ("before_train", "after_train_iter", "after_val")


def node(
    name: str,
    points: Iterable[str] = POINTS,
    after: Iterable[str] = (),
    phase: str = "normal",
    trigger: Trigger | None = None,
    around: bool = False,
    source: str = "pipelines/p.toml",
) -> Node:
    """Return a hook that is bound to `points`; its edges stand on line 7 of `source`."""
    halves: tuple[tuple[str, str, Half], ...] = (
        ("before_val", "around_val", "enter"),
        ("after_val", "around_val", "exit"),
    )
    whole: tuple[tuple[str, str, Half], ...] = tuple((point, point, "whole") for point in points)
    bound = tuple(Bound(p, method, half, (), trigger or Trigger()) for p, method, half in (halves if around else whole))
    hook = PlannedHook(name, name, {}, phase, "", f"{source}:1", "raise")
    return Node(hook, Where(source, 1), bound, tuple(Wish(other, False, "file", Where(source, 7)) for other in after))


def plan(*nodes: Node) -> Plan:
    return compile_plan("p", {node.hook.name: node for node in nodes})


EXAMPLE = plan(
    node("whiten", ["before_train"], phase="early"),
    node("ema", after=["whiten"], around=True),
    node("average", ["before_train", "after_train_iter"], after=["whiten"]),
    node("throughput", ["after_train_iter"]),
    node("log", ["after_train_iter"], after=["throughput"], phase="late", trigger=Trigger(every="50", since="1ep")),
    node("early_stop", ["after_val"], after=["ema"]),
    node("checkpoint", ["after_val", "after_train_epoch"], after=["ema", "early_stop"], phase="last"),
)

TEXT = """\
p: 7 hooks at 5 points

before_train           ┌─ whiten      early
                       └▶ average     after whiten (p.toml:7)
    after_train_iter      average
                       ┌─ throughput
                       └▶ log         late, every 50 from 1ep, after throughput
                                      (p.toml:7)
  after_train_epoch       checkpoint  last
  before_val              ema         around_val enter
  after_val          ┌─── ema         around_val exit
                     └─┬▶ early_stop  after ema (p.toml:7)
                       └▶ checkpoint  last, after ema, early_stop (p.toml:7)"""


def test_the_text_is_read_like_the_loop() -> None:
    assert as_text(EXAMPLE) == TEXT


def test_a_plan_without_hooks_is_drawn_all_the_same() -> None:
    assert as_text(plan()) == "p: 0 hooks at 0 points\n"


def test_lanes_go_on_beside_a_note_of_several_lines() -> None:
    log = node("log", ["after_val"], after=["throughput"], phase="late", trigger=Trigger(every="1000", since="10%"))
    last = node("last", ["after_val"], after=["throughput"], phase="last")
    assert as_text(plan(node("throughput", ["after_val"]), log, last)).split("\n")[3:] == [
        "          ├▶ log         late, every 1000 from 10%, after throughput (p.toml:7)",
        "          └▶ last        last, after throughput (p.toml:7)",
    ]
    assert as_text(plan(node("throughput", ["after_val"]), log, last), width=60).split("\n")[3:] == [
        "          ├▶ log         late, every 1000 from 10%, after",
        "          │              throughput (p.toml:7)",
        "          └▶ last        last, after throughput (p.toml:7)",
    ]


@pytest.mark.parametrize(
    ("first", "then", "reason"),
    [
        (node("a"), node("b", after=["a"]), "edge"),
        (node("a"), node("b", phase="late"), "phase"),
        (node("a"), node("b"), "file"),
        (node("a", ["after_val"]), node("b", around=True), "phase"),
    ],
)
def test_it_is_known_why_a_hook_follows_another(first: Node, then: Node, reason: str) -> None:
    (link,) = neighbours(plan(first, then), "after_val")
    assert (link.first.hook, link.then.hook, link.reason) == ("a", "b", reason)


def test_the_place_of_an_edge_is_told_briefly() -> None:
    around = plan(node("outer", around=True), node("inner", around=True))
    assert "after inner (last in, first out)" in as_text(around)
    assert "after a (--set)" in as_text(plan(node("a"), node("b", after=["a"], source='--set hooks.b.after=["a"]')))


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Some hooks, each after some of those before it; those that stand around validation state no edges."""
    names = draw(st.lists(st.text("abcdef", min_size=1, max_size=5), unique=True, max_size=7))
    nodes = []
    for k, name in enumerate(names):
        points = draw(st.lists(st.sampled_from([point.name for point in ALL]), unique=True, min_size=1, max_size=4))
        phase = draw(st.sampled_from(["early", "normal", "last"]))
        trigger = draw(st.sampled_from([Trigger(), Trigger(every="2ep", until="90%")]))
        around = draw(st.booleans())
        after = draw(st.lists(st.sampled_from(names[:k]), unique=True)) if k and not around else []
        nodes.append(node(name, points, after, phase, trigger, around))
    return plan(*nodes)


@settings(deadline=None)  # no test of ours is about time
@given(plans())
def test_every_firing_has_its_row_in_order_and_none_is_wider_than_the_page(drawn: Plan) -> None:
    lines = as_text(drawn).split("\n")[2:]
    assert all(len(line) <= 80 for line in lines)
    rest = iter(lines)
    for binding in drawn.bindings:
        assert any(re.search(rf"(^|[ ▶]){binding.hook}\b", line) for line in rest), binding
    said = re.sub(r"[\s│]+", " ", " ".join(lines))
    assert all(mark in said for binding in drawn.bindings for mark in marks(binding))


@settings(deadline=None)  # no test of ours is about time
@given(plans())
def test_mermaid_declares_every_box_before_an_arrow_leads_to_it(drawn: Plan) -> None:
    chart = as_mermaid(drawn)
    declared: set[str] = set()
    for line in chart.split("\n"):
        if box := re.match(r"    (b\d+)\[", line):
            assert box[1] not in declared
            declared.add(box[1])
        elif re.search(r"->", line):
            assert set(re.findall(r"\bb\d+\b", line)) <= declared
    assert len(declared) == len(drawn.bindings)
    assert chart.count("subgraph") == len(re.findall(r"^  end$", chart, re.MULTILINE))


def test_mermaid_marks_what_is_stated_and_what_is_not() -> None:
    chart = as_mermaid(EXAMPLE)
    assert chart.count('-->|"p.toml:7"|') == len(EXAMPLE.edges)
    assert chart.count("-.->") == 1  # average, throughput
    assert "<b>log</b><br/>late<br/>every 50 from 1ep" in chart


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")
def test_graphviz_takes_the_dot(tmp_path: Path) -> None:
    said = subprocess.run(["dot", "-Tplain"], input=as_dot(EXAMPLE), capture_output=True, text=True, check=True)
    assert not said.stderr
    assert said.stdout.count("\nnode ") == len(EXAMPLE.bindings)
    ends = sum(1 for point in ALL if EXAMPLE.at(point.name)) - 1
    assert said.stdout.count("\nedge ") == len(EXAMPLE.edges) + 1 + ends


def test_dot_marks_what_is_stated_and_what_is_not() -> None:
    drawn = as_dot(EXAMPLE)
    assert drawn.count('[label="p.toml:7"]') == len(EXAMPLE.edges)
    assert drawn.count("style=dashed") == 1
    assert r'[label="log\nlate\nevery 50 from 1ep"]' in drawn
