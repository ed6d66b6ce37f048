"""Pairs whose order matters and that only the file orders."""

from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import given

from hookflow.graph.plan import PHASES, Binding, Plan
from hookflow.graph.why import ambiguities
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


@pytest.mark.parametrize("phase", ["normal", "late"])
def test_a_phase_that_a_third_hook_has_moved_decides_nothing(phase: str) -> None:
    writes = {"reads": ["model"], "writes": ["model"]}
    pair = [node("a", phase=phase, **writes), node("b", phase=phase, **writes)]
    assert pairs(plan(*pair)) == [("a", "b", ("model",))]
    moved = plan(*pair, node("c", ["b"], phase="early"))
    assert [binding.hook for binding in moved.bindings][:2] == ["b", "c"]
    assert pairs(moved) == [("b", "a", ("model",))]
    assert not pairs(plan(node("a", ["b"], phase=phase, **writes), pair[1], node("c", ["b"], phase="early")))
    later = node("a", phase="last", **writes)
    assert not pairs(plan(later, pair[1], node("c", ["b"], phase="early"))), "their own phases say so, too"


@pytest.mark.parametrize("slots", [{"reads": ["model"], "writes": ["model"]}, {"writes": ["model"]}])
def test_that_a_second_half_comes_last_decides_nothing_of_what_it_overwrites(slots: dict[str, list[str]]) -> None:
    """An average puts the weights back as it is left: what a pruner has done to them before that is lost."""
    ema = node("ema", points=AROUND, reads=["model"], writes=["model"])
    pruner = node("pruner", points=[("after_val", "whole")], **slots)
    found = [*ambiguities(plan(ema, pruner))]
    assert [(one.point, one.first.hook, one.then.hook) for one in found] == [("after_val", "pruner", "ema")]
    for edges in ({"after": ["ema"]}, {"before": ["ema"]}, {"ambiguous_with": ["ema"]}, {"phase": "late"}):
        assert not pairs(plan(ema, node("pruner", points=[("after_val", "whole")], **slots, **edges)))
    reader = node("saver", points=[("after_val", "whole")], reads=["model"])
    assert [binding.hook for binding in plan(ema, reader).at("after_val")] == ["ema", "saver"]


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
                if clash and apart and not decided(compiled, ahead, first, then):
                    expected.add((point, first.id, then.id))
    assert {(found.point, found.first.id, found.then.id) for found in ambiguities(compiled)} == expected


def own_phase(compiled: Plan, binding: Binding) -> int:
    phase = PHASES.index(compiled.hook(binding.hook).phase)
    return 4 - phase if binding.half == "exit" else phase


def decided(compiled: Plan, ahead: dict[int, set[int]], first: Binding, then: Binding) -> bool:
    """Say whether edges or their own phases put two bindings in their order."""
    if then.id in ahead[first.id]:
        return True
    return first.phase != then.phase and own_phase(compiled, first) < own_phase(compiled, then)


def reached(compiled: Plan, point: str, start: Binding) -> set[int]:
    """Return what edges lead to, those left out that only the file's order stands behind."""
    follow: dict[int, set[int]] = {}
    for edge in compiled.edges_at(point):
        if not edge.loose:
            follow.setdefault(edge.first_id, set()).add(edge.then_id)
    found: set[int] = set()
    waiting = [start.id]
    while waiting:
        for then in follow.get(waiting.pop(), ()):
            if then not in found:
                found.add(then)
                waiting.append(then)
    return found
