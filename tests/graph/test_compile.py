"""The order of hooks: edges are obeyed, then phases, then the file's order; what cannot be is told."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookflow.errors import UserError, Where
from hookflow.graph.compile import compile_plan
from hookflow.graph.node import Bound, Node, Wish
from hookflow.graph.plan import Half, Plan, PlannedHook, Trigger

POINT = "after_train_iter"


def wish(name: str) -> Wish:
    return Wish(name.removesuffix("?"), name.endswith("?"), "file", Where("p.toml", 1))


def node(
    name: str,
    after: Iterable[str] = (),
    before: Iterable[str] = (),
    phase: str = "normal",
    points: Iterable[tuple[str, Half]] = ((POINT, "whole"),),
    requires: Iterable[str] = (),
) -> Node:
    hook = PlannedHook(name, name, {}, phase, "", "p.toml:1", "raise")
    bound = tuple(Bound(point, point, half, (), Trigger()) for point, half in points)
    wishes = [tuple(map(wish, names)) for names in (after, before, requires)]
    return Node(hook, Where("p.toml", 1), bound, *wishes)


def plan(*nodes: Node, disabled: Iterable[str] = ()) -> Plan:
    return compile_plan("p", {n.hook.name: n for n in nodes}, disabled)


def order(compiled: Plan, point: str = POINT) -> list[str]:
    return [binding.hook for binding in compiled.at(point)]


def test_the_files_order_decides_where_nothing_else_does() -> None:
    assert order(plan(node("b"), node("a"), node("c"))) == ["b", "a", "c"]


def test_an_edge_is_stronger_than_the_files_order() -> None:
    assert order(plan(node("a", after=["c"]), node("b"), node("c"))) == ["b", "c", "a"]
    assert order(plan(node("a"), node("b"), node("c", before=["a"]))) == ["b", "c", "a"]


def test_a_phase_is_stronger_than_the_files_order_and_weaker_than_an_edge() -> None:
    assert order(plan(node("a", phase="late"), node("b"), node("c", phase="first"))) == ["c", "b", "a"]
    assert order(plan(node("a", phase="late"), node("b", after=["a"], phase="first"))) == ["a", "b"]


def test_an_optional_edge_may_name_nobody() -> None:
    assert order(plan(node("a", after=["ema?"]))) == ["a"]


def test_an_edge_to_a_hook_that_is_switched_off_is_dropped() -> None:
    assert order(plan(node("a", after=["ema"]), disabled=["ema"])) == ["a"]


def test_unknown_names_are_all_told_at_once_with_the_nearest() -> None:
    with pytest.raises(UserError) as caught:
        plan(node("ema"), node("a", after=["emma"]), node("b", before=["nobody"]), node("c", requires=["em"]))
    text = str(caught.value)
    assert 'did you mean "ema"?' in text
    assert 'write "nobody?" if it may be missing' in text
    assert 'requires the hook "em"' in text


def test_a_cycle_names_every_hook_and_edge() -> None:
    with pytest.raises(UserError) as caught:
        plan(node("a", after=["c"]), node("b", after=["a"]), node("c", after=["b"]), node("d"))
    text = str(caught.value)
    assert all(step in text for step in ('"a" before "b"', '"b" before "c"', '"c" before "a"'))
    assert '"d"' not in text


def test_a_hook_cannot_stand_before_itself() -> None:
    with pytest.raises(UserError, match="before or after itself"):
        plan(node("a", after=["a"]))


def test_what_is_entered_first_is_left_last() -> None:
    around: tuple[tuple[str, Half], ...] = (("before_val", "enter"), ("after_val", "exit"))
    compiled = plan(
        node("a", points=around),
        node("b", points=around),
        node("c", points=around, before=["a"]),
        node("plain", points=(("before_val", "whole"), ("after_val", "whole"))),
    )
    assert order(compiled, "before_val") == ["b", "c", "a", "plain"]
    assert order(compiled, "after_val") == ["plain", "a", "c", "b"]


names = st.lists(st.sampled_from("abcdefghij"), unique=True, min_size=1)


@st.composite
def acyclic(draw: st.DrawFn) -> list[Node]:
    """Hooks whose edges point backwards in a hidden order, listed in another one."""
    hidden = draw(names)
    made = [
        node(
            name,
            after=draw(st.lists(st.sampled_from(hidden[:k]), unique=True)) if k else (),
            phase=draw(st.sampled_from(["first", "early", "normal", "late", "last"])),
        )
        for k, name in enumerate(hidden)
    ]
    return draw(st.permutations(made))


@given(acyclic())
def test_every_plan_obeys_every_edge_and_is_the_same_twice(nodes: list[Node]) -> None:
    compiled = plan(*nodes)
    place = {name: k for k, name in enumerate(order(compiled))}
    assert len(place) == len(nodes)
    assert all(place[edge.first] < place[edge.then] for edge in compiled.edges)
    assert plan(*nodes) == compiled


@given(acyclic())
def test_a_plan_is_the_same_after_json(nodes: list[Node]) -> None:
    compiled = plan(*nodes)
    assert Plan.from_json(json.loads(json.dumps(compiled.to_json()))) == compiled
