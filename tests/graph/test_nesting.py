"""Arounds and plain methods at the two points of a pair: one graph, whatever the order of the tables."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import pytest

from hookflow.errors import UserError
from hookflow.graph.plan import Plan
from hookflow.graph.points import Point, Points
from hookflow.graph.why import ambiguities, precedence
from tests.hook_nodes import AROUND, Node, compile_plan, node, order, plan

VAL = (("after_val", "whole"),)
BOTH = (*AROUND, *VAL)


def stands(compiled: Plan, point: str) -> list[str]:
    """Return who fires at a point; the half of an around in brackets."""
    return [f"({b.hook})" if b.half != "whole" else b.hook for b in compiled.at(point)]


def told(compiled: Plan, a: str, b: str, point: str = "after_val") -> list[tuple[str, str, str]]:
    return [(one.first.half, one.then.half, one.reason) for one in precedence(compiled, a, b) if one.point == point]


class TestTwiceAtAPoint:
    def test_an_edge_holds_for_both_and_is_cited_for_both(self) -> None:
        compiled = plan(node("a", points=BOTH, writes=["model"]), node("r", ["a"], points=VAL, reads=["model"]))
        assert stands(compiled, "after_val") == ["a", "(a)", "r"]
        assert told(compiled, "a", "r") == [("whole", "whole", "edge"), ("exit", "whole", "edge")]
        assert not list(ambiguities(compiled))

    def test_two_that_follow_one_another(self) -> None:
        compiled = plan(node("a", points=BOTH), node("b", ["a"], points=BOTH))
        assert stands(compiled, "after_val") == ["a", "(b)", "(a)", "b"]

    def test_three_that_follow_one_another_are_refused_with_the_halves(self) -> None:
        with pytest.raises(UserError) as caught:
            plan(node("a", points=BOTH), node("b", ["a"], points=BOTH), node("c", ["b"], points=BOTH))
        (problem,) = caught.value.problems
        assert problem.message == (
            "ordering cycle: a (leaving around_val) → b → c (leaving around_val) → a (leaving around_val) at after_val"
        )
        assert sorted(problem.hint.split("\n    ")) == [
            '"a" (entering around_val) before "b" (entering around_val) at before_val: p.toml:1',
            '"a" (leaving around_val) before "b" at after_val: p.toml:1',
            '"b" (entering around_val) before "c" (entering around_val) at before_val: p.toml:1',
            '"b" before "c" (leaving around_val) at after_val: p.toml:1',
            'an edge may be that of one method alone: points = [{ at = "after_val", after = ["…"] }, …]',
            "what is entered first is left last",
        ]

    def test_three_of_which_each_says_so_of_one_method_alone(self) -> None:
        def later(name: str, first: str) -> Node:
            return node(name, points=BOTH, near={"after_val": ([first], [])})

        compiled = plan(later("c", "b"), node("a", points=BOTH), later("b", "a"))
        assert [name for name in stands(compiled, "after_val") if name in "abc"] == ["a", "b", "c"]


class TestOwnMethods:
    POINTS = (("before_val", "whole"), *AROUND, *VAL)

    def test_an_around_encloses_the_methods_of_its_own_hook_however_they_are_listed(self) -> None:
        for points in permutations(self.POINTS):
            compiled = plan(node("x"), node("a", points=points))
            assert (stands(compiled, "before_val"), stands(compiled, "after_val")) == (["(a)", "a"], ["a", "(a)"])
            (entered, left) = precedence(compiled, "a", "a")
            assert (entered.path[0].kind, left.path[0].kind) == ("pair", "pair")
            assert entered.path[0].where == 'around_val of "a" encloses its own methods'

    def test_an_edge_is_stronger(self) -> None:
        near = {"around_val": (["x"], []), "before_val": ([], ["x"])}
        compiled = plan(node("a", points=self.POINTS, near=near), node("x", points=(("before_val", "whole"),)))
        assert stands(compiled, "before_val") == ["a", "x", "(a)"]

    def test_the_plain_method_of_a_late_hook_stays_late(self) -> None:
        compiled = plan(node("a", points=self.POINTS, phase="late"), node("x", points=VAL))
        assert stands(compiled, "after_val") == ["(a)", "x", "a"]


class TestWhatCanBeSatisfied:
    def check(self, nodes: Sequence[Node], left: list[str]) -> None:
        """Compile in every order of the tables, and shuffled."""
        for listed in permutations(nodes):
            for seed in (None, *range(8)):
                compiled = plan(*listed, shuffle=seed)
                exits = [b.hook for b in compiled.at("after_val") if b.half == "exit"]
                assert exits == [b.hook for b in compiled.at("before_val") if b.half == "enter"][::-1]
                assert [name for name in order(compiled, "after_val") if name in left] == left

    def test_a_plain_hook_between_two_exits(self) -> None:
        self.check(
            [
                node("b", points=AROUND),
                node("a", points=AROUND),
                node("c", after=["a"], before=["b"], points=VAL),
            ],
            ["a", "c", "b"],
        )

    def test_an_average_a_report_and_a_timer(self) -> None:
        self.check(
            [
                node("ema", points=AROUND, reads=["model"], writes=["model"]),
                node("report", points=VAL, after=["ema"]),
                node("timer", points=AROUND, after=["report"]),
            ],
            ["ema", "report", "timer"],
        )

    def test_data_flow_between_two_exits(self) -> None:
        self.check(
            [
                node("a", points=AROUND, writes=["model"]),
                node("c", points=VAL, reads=["model"], writes=["metrics"]),
                node("b", points=AROUND, reads=["metrics"]),
            ],
            ["a", "c", "b"],
        )

    def test_why_says_what_decides_how_they_are_entered(self) -> None:
        compiled = plan(
            node("b", points=AROUND), node("a", points=AROUND), node("c", after=["a"], before=["b"], points=VAL)
        )
        (entered, left) = precedence(compiled, "a", "b")
        assert (entered.first.hook, [edge.where for edge in entered.path]) == (
            "b",
            ['"a" is left before "b" at after_val'],
        )
        assert [(edge.first, edge.then) for edge in left.path] == [("a", "c"), ("c", "b")]

    def test_what_nobody_can_satisfy_is_refused_and_both_points_are_named(self) -> None:
        with pytest.raises(UserError) as caught:
            plan(
                node("a", points=AROUND),
                node("b", points=AROUND, after=["a"]),
                node("q", points=VAL, after=["a"], before=["b"]),
            )
        (problem,) = caught.value.problems
        assert problem.message == (
            "ordering cycle: a (leaving around_val) → q → b (leaving around_val) → a (leaving around_val) at after_val"
        )
        assert '"a" (entering around_val) before "b" (entering around_val) at before_val' in problem.hint

    def test_a_flow_gives_way_to_what_is_stated_at_the_other_point(self) -> None:
        compiled = plan(
            node("a", points=AROUND, writes=["model"]),
            node("b", points=AROUND, after=["a"], reads=["metrics"]),
            node("q", points=VAL, reads=["model"], before=["b"]),
        )
        (given,) = compiled.given_way
        assert (given.edge.first, given.edge.then, given.edge.slots) == ("a", "q", ("model",))
        assert [(edge.first, edge.then, edge.point) for edge in given.against] == [
            ("q", "b", "after_val"),
            ("a", "b", "before_val"),
        ]


class TestPhases:
    def test_an_around_is_left_in_the_mirror_of_the_phase_in_which_it_is_entered(self) -> None:
        others = [
            node("timer", points=AROUND),
            node("accuracy", points=(("before_val", "whole"),), phase="early"),
            node("report", points=VAL),
        ]
        before = order(plan(*others), "after_val")
        compiled = plan(*others, node("view", points=AROUND, phase="late", before=["accuracy"]))
        assert [b.phase for b in (*compiled.at("before_val"), *compiled.at("after_val")) if b.hook == "view"] == [
            "early",
            "late",
        ]
        assert [name for name in order(compiled, "after_val") if name != "view"] == before == ["report", "timer"]

    def test_one_that_must_be_left_before_an_early_hook_is_entered_late(self) -> None:
        compiled = plan(
            node("a", points=AROUND), node("b", points=AROUND), node("q", points=VAL, phase="first", after=["a"])
        )
        assert order(compiled, "before_val") == ["b", "a"]
        assert stands(compiled, "after_val") == ["(a)", "q", "(b)"]

    def test_of_a_late_hook_before_an_early_one_the_late_one_moves_whoever_else_is_there(self) -> None:
        hooks = [node("late", points=VAL, phase="late", before=["early"]), node("early", points=VAL, phase="early")]
        alone = plan(*hooks)
        more = plan(*hooks, node("x", points=(("before_val", "whole"),)), node("y", points=AROUND))
        assert {b.hook: b.phase for b in alone.at("after_val")} == {"late": "early", "early": "early"}
        assert {b.hook: b.phase for b in more.at("after_val")} == {"late": "early", "early": "early", "y": "normal"}


class TestOwnPoints:
    def test_arounds_nest_even_if_the_closing_point_is_declared_first(self) -> None:
        def own(name: str) -> Point:
            return Point(name, 3, ("run",), "firing", "", "own", "after_train_iter")

        halves = (("before_prune", "enter"), ("after_prune", "exit"))
        for declared in (("before_prune", "after_prune"), ("after_prune", "before_prune")):
            points = Points(map(own, declared))
            nodes = {name: node(name, points=halves) for name in "abc"}
            compiled = compile_plan("p", nodes, (), points)
            assert order(compiled, "before_prune") == ["a", "b", "c"]
            assert order(compiled, "after_prune") == ["c", "b", "a"]


class TestAmbiguity:
    def test_what_hangs_on_how_two_unordered_arounds_are_entered_is_ambiguous(self) -> None:
        hooks = [
            node("a", points=AROUND),
            node("b", points=AROUND),
            node("w", points=VAL, before=["b"], after=["x"], writes=["model"]),
            node("x", points=VAL),
            node("z", points=VAL, after=["a"], writes=["model"]),
        ]
        assert [(one.first.hook, one.then.hook) for one in ambiguities(plan(*hooks))] == [("w", "z")]
        hooks[2] = node("w", points=VAL, after=["b"], writes=["model"])  # which must wait for a second half, as z must
        assert [(one.first.hook, one.then.hook) for one in ambiguities(plan(*hooks))] == [("w", "z")]


@pytest.mark.parametrize(("phases", "loose"), [(("early", "late"), False), (("normal", "normal"), True)])
def test_how_two_are_left_is_loose_where_the_file_alone_says_how_they_are_entered(
    phases: tuple[str, str], loose: bool
) -> None:
    compiled = plan(*(node(name, phase=phase, points=AROUND) for name, phase in zip("ab", phases, strict=True)))
    (left,) = compiled.edges
    assert (left.point, left.first, left.then, left.loose) == ("after_val", "b", "a", loose)


def test_how_two_are_left_is_firm_where_an_edge_says_how_they_are_entered_whoever_stands_between() -> None:
    compiled = plan(node("a", points=AROUND), node("x", points=AROUND), node("b", ["a"], points=AROUND))
    found = {(edge.first, edge.then): edge.loose for edge in compiled.edges_at("after_val")}
    assert found == {("x", "a"): True, ("b", "x"): True, ("b", "a"): False}


def test_what_is_stated_where_they_are_entered_is_not_said_again_of_how_they_are_left() -> None:
    hooks = [node("a", points=AROUND), node("b", ["a"], points=AROUND), node("q", ["b"], ["a"], points=VAL)]
    assert [(edge.first, edge.then, edge.kind) for edge in plan(*hooks).edges_at("before_val")] == [("a", "b", "file")]
    hooks[1] = node("b", points=AROUND)
    assert [(edge.first, edge.then, edge.kind) for edge in plan(*hooks).edges_at("before_val")] == [("a", "b", "pair")]
