"""What decides at a point, from strong to weak: stated edges, data flow, phases, the file."""

from __future__ import annotations

import json
from itertools import permutations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hookflow.errors import UserError
from hookflow.graph.plan import PHASES, Plan
from tests.hook_nodes import AROUND, POINT, Node, acyclic, node, order, plan


class TestDataFlow:
    def test_the_writer_of_a_slot_fires_before_its_readers(self) -> None:
        compiled = plan(node("log", reads=["lr"]), node("schedule", writes=["lr"]))
        assert order(compiled) == ["schedule", "log"]
        (edge,) = compiled.edges
        assert (edge.first, edge.then, edge.kind, edge.slots) == ("schedule", "log", "flow", ("lr",))

    def test_who_both_reads_and_writes_stands_between(self) -> None:
        compiled = plan(
            node("norm", reads=["grads"]),
            node("clip", reads=["grads"], writes=["grads"]),
            node("unscale", writes=["grads"]),
        )
        assert order(compiled) == ["unscale", "clip", "norm"]

    def test_it_is_stronger_than_a_phase(self) -> None:
        compiled = plan(node("log", reads=["lr"], phase="first"), node("schedule", writes=["lr"], phase="late"))
        assert order(compiled) == ["schedule", "log"]

    def test_its_edges_are_listed_behind_those_that_are_stated(self) -> None:
        compiled = plan(
            node("w", points=AROUND, writes=["lr"]),
            node("r", ["x"], points=(("after_val", "whole"),), reads=["lr"]),
            node("x", points=AROUND),
        )
        assert [(edge.kind, edge.first, edge.then) for edge in compiled.edges_at("after_val")] == [
            ("file", "x", "r"),
            ("pair", "x", "w"),
            ("flow", "w", "r"),
        ]

    def test_it_gives_way_to_a_stated_edge_and_keeps_the_reason(self) -> None:
        compiled = plan(node("schedule", writes=["lr"], after=["log"]), node("log", reads=["lr"]))
        assert order(compiled) == ["log", "schedule"]
        assert [edge.kind for edge in compiled.edges] == ["file"]
        (given_way,) = compiled.given_way
        assert (given_way.edge.first, given_way.against) == ("schedule", compiled.edges)

    def test_it_gives_way_to_a_chain_of_stated_edges(self) -> None:
        compiled = plan(
            node("write", writes=["lr"], after=["middle"]), node("middle", after=["read"]), node("read", reads=["lr"])
        )
        assert order(compiled) == ["read", "middle", "write"]
        (given_way,) = compiled.given_way
        assert (given_way.edge.first, given_way.edge.then) == ("write", "read")
        assert [(edge.first, edge.then) for edge in given_way.against] == [("read", "middle"), ("middle", "write")]

    def test_flows_that_contradict_one_another_all_give_way(self) -> None:
        hooks = [node("a", writes=["x"], reads=["y"]), node("b", writes=["y"], reads=["x"])]
        for listed in (hooks, hooks[::-1]):
            compiled = plan(*listed)
            assert order(compiled) == [each.hook.name for each in listed]
            assert {given.edge.first for given in compiled.given_way} == {"a", "b"}

    def test_the_second_half_of_an_around_hands_on_what_it_puts_back(self) -> None:
        compiled = plan(
            node("save", points=(("after_val", "whole"),), reads=["model"], phase="first"),
            node("ema", points=AROUND, reads=["model"], writes=["model"]),
        )
        assert order(compiled, "after_val") == ["ema", "save"]


class TestPhases:
    def test_who_must_stand_before_an_early_hook_is_early_too(self) -> None:
        compiled = plan(node("other"), node("accuracy", phase="early"), node("mine", before=["accuracy"]))
        assert order(compiled) == ["mine", "accuracy", "other"]
        assert [binding.phase for binding in compiled.at(POINT)] == ["early", "early", "normal"]

    def test_who_must_stand_after_a_late_hook_is_late_too(self) -> None:
        compiled = plan(node("upload", after=["save"]), node("stop", phase="late"), node("save", phase="last"))
        assert order(compiled) == ["stop", "save", "upload"]

    def test_data_flow_moves_a_hook_as_an_edge_does(self) -> None:
        compiled = plan(
            node("c", reads=["y"], phase="first"), node("b", reads=["x"], writes=["y"]), node("a", writes=["x"])
        )
        assert [(binding.hook, binding.phase) for binding in compiled.at(POINT)] == [
            ("a", "first"),
            ("b", "first"),
            ("c", "first"),
        ]

    def test_the_second_half_of_an_around_stands_in_the_mirrored_phase(self) -> None:
        compiled = plan(
            node("outer", points=AROUND, phase="first"),
            node("inner", points=AROUND, phase="late"),
            node("plain", points=(("after_val", "whole"),), phase="late"),
        )
        assert order(compiled, "after_val") == ["inner", "plain", "outer"]


def test_the_order_may_differ_from_point_to_point() -> None:
    both = [("before_train", "whole"), ("after_train", "whole")]
    near = {"before_train": (["b"], []), "after_train": ([], ["b"])}
    compiled = plan(node("a", points=both, near=near), node("b", points=both))  # type: ignore[arg-type]
    assert order(compiled, "before_train") == ["b", "a"]
    assert order(compiled, "after_train") == ["a", "b"]


class TestWarnings:
    def test_an_edge_between_hooks_that_never_meet(self) -> None:
        apart = plan(node("a", points=(("after_train", "whole"),), after=["b"]), node("b"))
        assert [problem.message for problem in apart.warnings] == [
            'the edge between "a" and "b" can never matter: they share no point'
        ]

    def test_none_for_an_edge_of_an_around_that_meets_the_other_at_one_of_its_points(self) -> None:
        around = node("a", points=AROUND, near={"around_val": (["b"], [])})
        assert not plan(around, node("b", points=(("before_val", "whole"),))).warnings

    def test_none_for_what_a_class_says_of_hooks_in_general(self) -> None:
        assert not plan(node("a", points=(("after_train", "whole"),), after=["b"], kind="class"), node("b")).warnings

    def test_a_misspelt_slot(self) -> None:
        (warning,) = plan(node("a", reads=["modle"])).warnings
        assert (warning.message, warning.hint) == ('hook "a" alone touches a slot "modle"', 'did you mean "model"?')
        assert not plan(node("a", writes=["temperature"])).warnings

    def test_a_slot_that_is_read_and_never_written(self) -> None:
        (warning,) = plan(node("a", writes=["average"]), node("b", reads=["avrage"])).warnings
        assert warning.message == '"b" reads the slot "avrage", which no hook writes'
        assert warning.hint == 'did you mean "average"?'
        (warning,) = plan(node("a", reads=["temperature"]), node("b", reads=["temperature"])).warnings
        assert warning.message == '"a" and "b" read the slot "temperature", which no hook writes'
        assert not plan(node("a", writes=["temperature.of_a"]), node("b", reads=["temperature"])).warnings


class TestKeyedSlots:
    def test_a_slot_and_its_parts_are_one_and_two_parts_are_not(self) -> None:
        compiled = plan(
            node("log", reads=["metrics"]),
            node("stop", reads=["metrics.accuracy"]),
            node("psnr", writes=["metrics.psnr"]),
            node("accuracy", writes=["metrics.accuracy"]),
        )
        assert order(compiled) == ["psnr", "accuracy", "log", "stop"]
        assert {(edge.first, edge.then, edge.slots) for edge in compiled.edges} == {
            ("accuracy", "log", ("metrics.accuracy",)),
            ("accuracy", "stop", ("metrics.accuracy",)),
            ("psnr", "log", ("metrics.psnr",)),
        }

    def test_of_a_slot_and_its_parts_the_whole_is_told(self) -> None:
        compiled = plan(node("a", writes=["lr"]), node("b", reads=["lr"]), node("c", reads=["lr.generator"]))
        assert {(edge.first, edge.then, edge.slots) for edge in compiled.edges} == {
            ("a", "b", ("lr",)),
            ("a", "c", ("lr.generator",)),
        }


class TestNamesOfSlots:
    def told(self, *nodes: Node) -> list[tuple[str, str]]:
        return [(problem.message, problem.hint) for problem in plan(*nodes).warnings]

    def test_two_that_are_nearly_the_same_are_told_once(self) -> None:
        (said,) = self.told(node("a", writes=["average"]), node("b", writes=["avrage"]))
        assert said == ('hook "b" alone touches a slot "avrage"', 'did you mean "average", as "a" has it?')
        assert not self.told(node("a", writes=["top1"]), node("b", writes=["top5"]))

    def test_of_a_reader_it_is_told_that_nobody_writes_it(self) -> None:
        for hooks in permutations([node("a", writes=["average"]), node("b", reads=["avrage"])]):
            (said,) = self.told(*hooks)
            assert said == ('"b" reads the slot "avrage", which no hook writes', 'did you mean "average"?')

    def test_a_part_that_is_nearly_another_one(self) -> None:
        accuracy = node("a", writes=["metrics.accuracy"])
        (said,) = self.told(accuracy, node("b", reads=["metrics.acuracy"]))
        assert said == ('hook "b" reads "metrics.acuracy", which no hook writes', 'did you mean "metrics.accuracy"?')
        assert not self.told(accuracy, node("b", reads=["metrics.loss"]))
        assert not self.told(accuracy, node("b", reads=["metrics.acuracy"]), node("c", writes=["metrics"]))

    def test_the_state_of_a_hook_that_is_not_there(self) -> None:
        (said,) = self.told(node("average"), node("b", reads=["hook.avrage"]))
        assert said == (
            'hook "b" reads the state of a hook "avrage", which is not in this pipeline',
            'did you mean "average"?',
        )
        assert not self.told(node("average"), node("b", reads=["hook.average"]))
        assert not plan(node("b", reads=["hook.average"]), disabled=["average"]).warnings

    def test_the_state_of_no_hook(self) -> None:
        (said,) = self.told(node("average"), node("b", reads=["hook"]))
        assert said == ('hook "b" names a slot "hook", which is the state of no hook', 'name one: "hook.ema"')


def test_who_reads_the_state_of_a_hook_fires_after_it() -> None:
    found = plan(node("a", reads=["hook.b"]), node("b"), node("c"))
    assert order(found) == ["b", "a", "c"]
    assert [edge.slots for edge in found.edges] == [("hook.b",)]
    assert not any(binding.writes for binding in found.bindings if binding.hook != "b")


def test_all_cycles_are_told_at_once() -> None:
    with pytest.raises(UserError) as caught:
        plan(
            node("a", after=["b"]),
            node("b", after=["a"]),
            node("c", after=["d"]),
            node("d", after=["c", "e"]),
            node("e", after=["c"]),
        )
    assert len(caught.value.problems) == 3
    text = str(caught.value)
    for cycle in ("b → a → b", "d → c → d", "c → e → d → c"):
        assert any(cycle in _turned(problem.message) for problem in caught.value.problems), (cycle, text)


def _turned(message: str) -> str:
    """Return every way to walk around the cycle that a message names."""
    names = message.removeprefix("ordering cycle: ").partition(" at ")[0].split(" → ")[:-1]
    turns = [names[k:] + names[:k] for k in range(len(names))]
    return ", ".join(" → ".join([*turn, turn[0]]) for turn in turns)


def places(compiled: Plan, point: str) -> dict[tuple[str, str], int]:
    return {(binding.hook, binding.half): k for k, binding in enumerate(compiled.at(point))}


@given(acyclic())
def test_every_plan_obeys_every_edge_that_it_keeps_and_is_the_same_twice(nodes: list[Node]) -> None:
    compiled = legal(nodes)
    for edge in compiled.edges:
        stand = places(compiled, edge.point)
        firsts = [place for (hook, _), place in stand.items() if hook == edge.first]
        thens = [place for (hook, _), place in stand.items() if hook == edge.then]
        assert min(firsts) < max(thens)
    assert plan(*nodes) == compiled


@given(acyclic())
def test_exits_are_the_reverse_of_entries(nodes: list[Node]) -> None:
    compiled = legal(nodes)
    entered = [binding.hook for binding in compiled.at("before_val") if binding.half == "enter"]
    left = [binding.hook for binding in compiled.at("after_val") if binding.half == "exit"]
    assert left == entered[::-1]


@given(acyclic(), st.integers(0, 10))
def test_phases_and_the_file_decide_what_edges_leave_free(nodes: list[Node], seed: int) -> None:
    compiled = legal(nodes)
    for point in {binding.point for binding in compiled.bindings}:
        phases = [PHASES.index(binding.phase) for binding in compiled.at(point)]
        assert phases == sorted(phases)
        shuffled = plan(*nodes, shuffle=seed)
        assert {b.hook: b.phase for b in shuffled.at(point)} == {b.hook: b.phase for b in compiled.at(point)} or (
            point == "after_val"
        )


@given(acyclic(touching=False))
def test_a_hook_that_no_edge_touches_stands_in_its_own_phase(nodes: list[Node]) -> None:
    compiled = plan(*nodes)
    tied = {name for edge in compiled.edges for name in (edge.first, edge.then)}
    for binding in compiled.bindings:
        if binding.hook not in tied:
            assert binding.phase == compiled.hook(binding.hook).phase


@given(acyclic(), st.integers(0, 30), st.sampled_from(PHASES))
def test_an_unrelated_hook_changes_no_other_order(nodes: list[Node], at: int, phase: str) -> None:
    compiled = legal(nodes)
    stranger = node("stranger", phase=phase, points=((POINT, "whole"), ("before_val", "whole")))
    at %= len(nodes) + 1
    more = plan(*nodes[:at], stranger, *nodes[at:])
    for point in {binding.point for binding in compiled.bindings}:
        assert [name for name in order(more, point) if name != "stranger"] == order(compiled, point)


@given(acyclic(), st.integers())
def test_every_shuffle_is_a_legal_order_and_the_same_for_the_same_seed(nodes: list[Node], seed: int) -> None:
    straight = legal(nodes)
    try:
        shuffled = plan(*nodes, shuffle=seed)
    except UserError:
        assume(False)
    assert plan(*nodes, shuffle=seed) == shuffled
    assert plan(*nodes[::-1], shuffle=seed).bindings == shuffled.bindings, "it hangs on names, not on the file"
    assert {b.hook for b in shuffled.bindings} == {b.hook for b in straight.bindings}
    kept = [edge for edge in straight.edges if edge.kind != "pair" and edge.point != "after_val"]
    assert {(edge.point, edge.first, edge.then) for edge in kept} <= {
        (edge.point, edge.first, edge.then) for edge in shuffled.edges
    }


def test_some_shuffle_differs_from_the_file() -> None:
    hooks = [node(name) for name in "abcdef"]
    orders = {tuple(order(plan(*hooks, shuffle=seed))) for seed in range(20)}
    assert len(orders) > 10


@given(acyclic())
def test_a_plan_is_the_same_after_json(nodes: list[Node]) -> None:
    compiled = legal(nodes)
    assert Plan.from_json(json.loads(json.dumps(compiled.to_json()))) == compiled


def legal(nodes: list[Node]) -> Plan:
    """Compile; pass over the few that state an order at `after_val` against how their `around`s were entered."""
    try:
        return plan(*nodes)
    except UserError:
        assert any(bound.half == "exit" for each in nodes for bound in each.bound)
        assume(False)
        raise
