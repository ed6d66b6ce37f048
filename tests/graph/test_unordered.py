"""Pairs that nothing orders, orders in which they are turned, and the search for those that make a difference."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookflow.graph.order import Places, compile_plan
from hookflow.graph.plan import PHASES, Node, Plan
from hookflow.graph.why import (
    Pair,
    brought_together,
    key,
    keys,
    meeting_points,
    neighbouring,
    swapped,
    swaps_between,
    turned,
    unordered,
)
from hookflow.trials.commute import _Search
from hookflow.trials.trial import Trace, Trials, Visit
from tests.hook_nodes import AROUND, POINT, node, order, plan


@st.composite
def pipelines(draw: st.DrawFn) -> list[Node]:
    """Hooks at a point or around a validation, of any phase, some after others, in another order than that."""
    hidden = draw(st.permutations("abcdef"))
    nodes = [
        node(
            name,
            after=draw(st.lists(st.sampled_from(hidden[:k]), unique=True, max_size=2)) if k else (),
            phase=draw(st.sampled_from(PHASES)),
            points=draw(st.sampled_from([((POINT, "whole"),), AROUND, (*AROUND, (POINT, "whole"))])),
        )
        for k, name in enumerate(hidden[: draw(st.integers(2, 6))])
    ]
    return draw(st.permutations(nodes))


def wanted(nodes: list[Node], places: Places) -> Plan:
    return compile_plan("p", {item.hook.name: item for item in nodes}, wanted=places)


def test_neither_two_methods_of_a_hook_nor_two_halves_that_are_left_are_a_pair() -> None:
    both = (*AROUND, ("before_val", "whole"))
    result = {(pair.point, pair.hooks) for pair in unordered(plan(node("a", points=both), node("b", points=AROUND)))}
    assert result == {("before_val", ("a", "b"))}
    assert not [*unordered(plan(node("a", ambiguous_with=["b"]), node("b")))]


@pytest.mark.parametrize(
    ("before", "after"), [("w a x< y b z", "w y a b x z"), ("a x< y< b", "a b x y")], ids=["one follows", "two follow"]
)
def test_a_pair_is_brought_together_and_what_must_follow_stays_behind_it(before: str, after: str) -> None:
    nodes = [node(name[0], after=["a"] if "<" in name else []) for name in before.split()]
    declared = plan(*nodes)
    places = brought_together(declared, [Pair(POINT, ("a", "whole"), ("b", "whole"))], {*unordered(declared)})
    assert order(wanted(nodes, places)) == after.split()


def test_what_is_turned_is_told_where_arounds_are_entered_and_not_where_they_are_left() -> None:
    a, b, p = node("a", points=AROUND), node("b", points=AROUND), node("p", points=(("before_val", "whole"),))
    assert turned(plan(a, b, p), plan(p, b, a)) == [
        Pair("before_val", ("a", "enter"), ("b", "enter")),
        Pair("before_val", ("a", "enter"), ("p", "whole")),
        Pair("before_val", ("b", "enter"), ("p", "whole")),
    ]


def test_hooks_meet_where_both_fire_and_not_where_arounds_are_left() -> None:
    compiled = plan(node("a", points=(*AROUND, (POINT, "whole"))), node("b", points=AROUND))
    assert meeting_points(compiled, "a", "b") == {"before_val"}


def test_a_pair_that_a_moved_phase_orders_can_be_turned() -> None:
    """An early c behind b makes b early: nothing that is said of a and b."""
    nodes = [node("a"), node("b"), node("c", after=["b"], phase="early")]
    declared = plan(*nodes)
    assert [pair.hooks for pair in unordered(declared)] == [("b", "a")]
    turned_ = wanted(nodes, {(POINT, name, "whole"): place for place, name in enumerate("abc")})
    assert [binding.hook for binding in turned_.bindings] == ["a", "b", "c"]


@settings(max_examples=30)
@given(pipelines(), st.integers(0, 9))
def test_a_shuffle_turns_nothing_but_what_nothing_orders(nodes: list[Node], seed: int) -> None:
    declared = plan(*nodes)
    assert {*turned(declared, plan(*nodes, shuffle=seed))} <= {*unordered(declared)}


@settings(max_examples=30)
@given(pipelines(), st.integers(0, 9))
def test_the_way_to_a_shuffled_order_turns_each_pair_once_and_is_allowed_all_along(
    nodes: list[Node], seed: int
) -> None:
    declared, shuffled = plan(*nodes), plan(*nodes, shuffle=seed)
    swaps = swaps_between(declared, shuffled)
    assert len({*swaps}) == len(swaps)
    assert keys(wanted(nodes, swapped(declared, swaps))) == keys(shuffled)
    for k in range(len(swaps)):
        assert {*turned(declared, wanted(nodes, swapped(declared, swaps[:k])))} <= {*turned(declared, shuffled)}


@settings(max_examples=30)
@given(pipelines())
def test_neighbours_that_nothing_orders_change_places_and_nobody_else(nodes: list[Node]) -> None:
    declared = plan(*nodes)
    free = {*unordered(declared)}
    swaps = neighbouring(declared, free)
    there = [item for swap in swaps for item in ((swap.point, swap.first), (swap.point, swap.then))]
    assert len({*there}) == len(there)
    plain = {swap for swap in swaps if swap.first[1] == swap.then[1] == "whole"}
    assert plain <= {*turned(declared, wanted(nodes, swapped(declared, swaps)))} <= free


@dataclass
class Planted:
    """Trials that differ in nothing but which of some pairs fires first: the others make no difference."""

    nodes: list[Node]
    pairs: Collection[Pair]
    count: int = 0
    seconds: float = 0.0

    def compiled(self, places: Places) -> Plan:
        return wanted(self.nodes, places)

    def of(self, plan: Plan) -> Trace:
        self.count += 1
        leaves: dict[tuple[str, ...], bytes] = {}
        for pair in self.pairs:
            row = {key(binding): row for row, binding in enumerate(plan.at(pair.point))}
            leaves["model", str(pair)] = b"first" if row[pair.first] < row[pair.then] else b"then"
        return Trace((Visit(POINT, 1, leaves),), frozenset((item.point, key(item)) for item in plan.bindings))

    def again(self, plan: Plan, *, may_raise: bool = True) -> Trace:
        return self.of(plan)


@settings(max_examples=30)
@given(pipelines(), st.data())
def test_exactly_the_pairs_are_found_that_make_a_difference(nodes: list[Node], data: st.DataObject) -> None:
    declared = plan(*nodes)
    free = [*unordered(declared)]
    planted = data.draw(st.lists(st.sampled_from(free), unique=True, max_size=3)) if free else []
    made = Planted(nodes, planted)
    steps, same, untried = _Search(cast("Trials", made), declared).all(free)
    result = {pair for step in steps for pair in step.pairs}
    stuck = {pair for pair, _ in untried}
    assert {*planted} <= result | stuck
    assert all({*step.pairs} & {*planted} for step in steps), "a step without a pair that makes a difference"
    assert not {*same} & {*planted}
    assert result | {*same} | stuck == {*free}


def test_trials_are_about_as_many_as_hooks_at_a_point() -> None:
    nodes = [node(name) for name in "abcdefghij"]
    made = Planted(nodes, [])
    steps, same, untried = _Search(cast("Trials", made), plan(*nodes)).all([*unordered(plan(*nodes))])
    assert (steps, len(same), untried) == ([], 45, [])
    assert made.count <= 3 * len(nodes)
