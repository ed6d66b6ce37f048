"""Pairs whose order matters and that only the file orders."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from hypothesis import given

from hookflow.graph.ambiguity import ambiguities
from hookflow.graph.links import stated
from hookflow.graph.plan import Binding, Plan
from tests.graph.test_order import legal
from tests.hook_nodes import AROUND, Node, acyclic, node, plan


def pairs(compiled: Plan) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(found.first.hook, found.then.hook, found.slots) for found in ambiguities(compiled)]


def test_two_writers_of_a_slot_are_ambiguous_and_two_readers_are_not() -> None:
    assert pairs(plan(node("a", writes=["model"]), node("b", writes=["model"]))) == [("a", "b", ("model",))]
    assert pairs(plan(node("a", reads=["model"]), node("b", reads=["model"]))) == []


def test_two_writers_of_parts_of_a_slot_are_ambiguous_with_one_of_the_whole_alone() -> None:
    compiled = plan(
        node("a", writes=["model.a"]), node("b", writes=["model.b"]), node("whole", writes=["model"]), node("x")
    )
    assert pairs(compiled) == [("a", "whole", ("model.a",)), ("b", "whole", ("model.b",))]


def test_two_that_read_and_write_a_slot_are_ambiguous() -> None:
    both = {"reads": ["grads"], "writes": ["grads"]}
    assert pairs(plan(node("a", **both), node("b", **both))) == [("a", "b", ("grads",))]


def test_an_edge_a_chain_of_edges_a_flow_or_a_phase_is_an_order() -> None:
    writes = {"writes": ["model"]}
    assert not pairs(plan(node("a", **writes), node("b", **writes, after=["a"])))
    assert not pairs(plan(node("a", **writes), node("x", after=["a"]), node("b", **writes, after=["x"])))
    assert not pairs(plan(node("a", **writes), node("b", reads=["model"])))
    assert not pairs(plan(node("a", **writes), node("b", **writes, phase="late")))


def test_flows_that_contradict_one_another_leave_an_ambiguity() -> None:
    compiled = plan(node("a", writes=["x"], reads=["y"]), node("b", writes=["y"], reads=["x"]))
    assert pairs(compiled) == [("a", "b", ("x", "y"))]


def test_flows_in_a_circle_of_three_leave_one_each() -> None:
    compiled = plan(
        node("a", writes=["x"], reads=["z"]), node("b", writes=["y"], reads=["x"]), node("c", writes=["z"], reads=["y"])
    )
    assert pairs(compiled) == [("a", "b", ("x",)), ("a", "c", ("z",)), ("b", "c", ("y",))]


def test_what_is_read_and_never_written_is_no_reason() -> None:
    assert pairs(plan(node("a"), node("b", reads=["rng"]), node("c", writes=["lr"]))) == []


def test_a_pair_may_be_allowed_by_either_of_the_two() -> None:
    writes = {"writes": ["model"]}
    assert not pairs(plan(node("a", **writes, ambiguous_with=["b"]), node("b", **writes)))
    assert not pairs(plan(node("a", **writes), node("b", **writes, ambiguous_with=["a"])))
    three = plan(node("a", **writes, ambiguous_with=["b", "c"]), node("b", **writes), node("c", **writes))
    assert pairs(three) == [("b", "c", ("model",))]


def test_requests_on_the_course_need_no_order_among_them_but_with_who_reads_it() -> None:
    writes = {"writes": ["control"]}
    assert not pairs(plan(node("a", **writes), node("b", **writes)))
    both = {"reads": ["control"], "writes": ["control", "model"]}
    assert pairs(plan(node("a", **both), node("b", **both))) == [("a", "b", ("control", "model"))]
    alone = {"writes": ["control", "model"]}
    assert pairs(plan(node("a", **alone), node("b", **alone))) == [("a", "b", ("model",))]


def test_two_arounds_are_told_where_they_are_entered() -> None:
    writes = {"points": AROUND, "writes": ["model"]}
    found = [*ambiguities(plan(node("a", **writes), node("b", **writes)))]
    assert [(one.point, one.first.hook, one.then.hook) for one in found] == [("before_val", "a", "b")]


def test_an_around_that_is_left_is_told_with_a_plain_method_behind_it() -> None:
    """It stands there because another around is left behind it, and that only the file says."""
    plain = node("p", points=[("after_val", "whole")], after=["b"], writes=["model"])
    compiled = plan(node("b", points=AROUND), node("a", points=AROUND, writes=["model"]), plain)
    assert [(one.point, one.first.hook, one.then.hook) for one in ambiguities(compiled)] == [("after_val", "a", "p")]


def test_thousands_of_writers_of_one_slot_are_not_enumerated_for_the_first_few() -> None:
    compiled = plan(*(node(f"h{k}", writes=["model"]) for k in range(2000)))
    assert len(list(islice(ambiguities(compiled), 5))) == 5


@given(acyclic())
def test_it_finds_exactly_the_pairs_that_a_walk_over_all_pairs_finds(nodes: list[Node]) -> None:
    compiled = legal(nodes)
    expected = set()
    for point in {binding.point for binding in compiled.bindings}:
        bound = compiled.at(point)
        ahead = {binding.id: reached(compiled, point, binding) for binding in bound}
        for k, first in enumerate(bound):
            for then in bound[k + 1 :]:
                clash = {*first.writes} & {*then.reads, *then.writes} | {*then.writes} & {*first.reads}
                apart = first.hook != then.hook and {first.half, then.half} != {"exit"}
                if clash and apart and not decided(bound, ahead, first, then):
                    expected.add((point, first.id, then.id))
    assert {(found.point, found.first.id, found.then.id) for found in ambiguities(compiled)} == expected


def decided(bound: Sequence[Binding], ahead: dict[int, set[int]], first: Binding, then: Binding) -> bool:
    """Say whether a phase, edges, or the second halves that they wait for put two bindings in their order."""

    def waits_for(waiting: Binding) -> set[int]:
        halves = [one.id for one in bound if one.half == "exit" and one.phase == waiting.phase]
        return {half for half in halves if half == waiting.id or waiting.id in ahead[half]}

    if first.phase != then.phase or then.id in ahead[first.id]:
        return True
    needs = waits_for(then)
    return bool(needs) and all(ahead[half] & needs for half in waits_for(first))


def reached(compiled: Plan, point: str, start: Binding) -> set[int]:
    """Return what edges lead to, those left out that only the file's order stands behind."""
    follow: dict[int, set[int]] = {}
    for link in stated(compiled, point):
        if link.edge and not link.edge.loose:
            follow.setdefault(link.first.id, set()).add(link.then.id)
    found: set[int] = set()
    waiting = [start.id]
    while waiting:
        for then in follow.get(waiting.pop(), ()):
            if then not in found:
                found.add(then)
                waiting.append(then)
    return found
