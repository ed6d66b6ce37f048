"""Why one hook fires before another, which pairs only the file orders, and what the loop decides.

`test_fuzz.py` holds reasons and ambiguities of random graphs against all orders of their tables.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

import pytest

from hookflow.graph.plan import Node, Plan
from hookflow.graph.why import ambiguities, apart, neighbours, precedence
from tests.hook_nodes import AROUND, POINT, node, plan


class TestNeighbours:
    def test_have_the_edge_that_says_so(self) -> None:
        compiled = plan(node("a"), node("b", ["a"]), node("c", phase="late"), node("d", phase="late"))
        links = [*neighbours(compiled, POINT)]
        assert [(link.first.hook, link.reason) for link in links] == [("a", "edge"), ("b", "phase"), ("c", "file")]
        assert [link.path for link in links] == [compiled.edges, (), ()]


class TestPrecedence:
    def test_is_a_chain_of_edges_from_whichever_side_it_is_asked(self) -> None:
        compiled = plan(node("a"), node("b", after=["a"]), node("c", reads=["lr"], after=["b"]))
        for pair in (("a", "c"), ("c", "a")):
            (answer,) = precedence(compiled, *pair)
            assert (answer.first.hook, answer.then.hook, answer.reason) == ("a", "c", "edge")
            assert [(edge.first, edge.then) for edge in answer.path] == [("a", "b"), ("b", "c")]

    def test_is_a_phase_or_nothing_but_the_file_or_none(self) -> None:
        compiled = plan(node("a", phase="late"), node("b"), node("c"), node("d", points=AROUND))
        assert [answer.reason for answer in precedence(compiled, "a", "b")] == ["phase"]
        (answer,) = precedence(compiled, "c", "b")
        assert (answer.first.hook, answer.reason, answer.path) == ("b", "file", ())
        assert precedence(compiled, "a", "d") == []

    def test_has_the_flow_that_gave_way_between_the_two(self) -> None:
        compiled = plan(node("write", writes=["lr"], after=["read"]), node("read", reads=["lr"]), node("a"))
        (answer,) = precedence(compiled, "read", "write")
        assert [given.edge.slots for given in answer.overruled] == [("lr",)]
        assert precedence(compiled, "read", "a")[0].overruled == ()


def pairs(compiled: Plan) -> list[tuple[str, str, str]]:
    return [(result.first.hook, result.then.hook, " ".join(result.slots)) for result in ambiguities(compiled)]


WRITES = {"writes": ["model"]}

AMBIGUOUS: dict[str, tuple[list[Node], list[tuple[str, str, str]]]] = {
    "two writers": ([node("a", **WRITES), node("b", **WRITES)], [("a", "b", "model")]),
    "allowed by the second": ([node("a", **WRITES), node("b", **WRITES, ambiguous_with=["a"])], []),
    "allowed by a third for itself": (
        [node("a", **WRITES, ambiguous_with=["b", "c"]), node("b", **WRITES), node("c", **WRITES)],
        [("b", "c", "model")],
    ),
}


@pytest.mark.parametrize("name", AMBIGUOUS)
def test_pairs_whose_order_matters_and_that_only_the_file_orders(name: str) -> None:
    nodes, expected = AMBIGUOUS[name]
    assert pairs(plan(*nodes)) == expected


def test_thousands_of_writers_of_one_slot_are_not_enumerated_for_the_first_few() -> None:
    compiled = plan(*(node(f"h{k}", writes=["model"]) for k in range(2000)))
    assert len(list(islice(ambiguities(compiled), 5))) == 5


def at(name: str, *points: str, reads: Iterable[str] = (), writes: Iterable[str] = ()) -> Node:
    return node(name, points=[(point, "whole") for point in points], reads=reads, writes=writes)


class TestHooksThatShareNoPoint:
    @pytest.mark.parametrize(
        ("points_of_a", "points_of_b", "first", "round_"),
        [
            ("before_run", "after_run", "a", ""),
            ("after_val", "after_train_iter", "b", "epoch"),
            ("before_train after_train_iter", "after_val after_run", "a", ""),
            ("before_val_iter", "after_val_iter", "a", "validation batch"),
            ("before_train_iter after_val_iter", "after_train_iter", "", ""),  # by turns
            ("before_train on_exception", "after_train", "", ""),
        ],
    )
    def test_the_loop_comes_to_one_of_them_first(
        self, points_of_a: str, points_of_b: str, first: str, round_: str
    ) -> None:
        compiled = plan(at("a", *points_of_a.split()), at("b", *points_of_b.split()))
        for names in ("ab", "ba"):
            result = apart(compiled, *names, False)
            assert (result.first, result.round) == (first, round_)
            assert len(result.rows) == len(compiled.bindings)

    @pytest.mark.parametrize(
        ("writes", "reads", "handed"),
        [("x", "x", "x"), ("x y", "y z", "y"), ("x", "y", ""), ("x", "x.a", "x.a"), ("x.a x.b", "x", "x.a x.b")],
    )
    def test_one_hands_slots_on_to_the_other(self, writes: str, reads: str, handed: str) -> None:
        compiled = plan(at("a", "after_train_iter", writes=writes.split()), at("b", "after_val", reads=reads.split()))
        expected = (("a", "b", tuple(handed.split()), ""),) if handed else ()
        assert apart(compiled, "a", "b", False).handed == apart(compiled, "b", "a", False).handed == expected

    def test_what_comes_later_is_that_of_the_round_before(self) -> None:
        """The metrics are of the epoch before, too, but it is not `b` that writes them."""
        compiled = plan(
            at("a", "after_forward", reads=["x", "metrics"], writes=["y"]),
            at("b", "after_backward", reads=["y"], writes=["x"]),
        )
        assert apart(compiled, "a", "b", False).handed == (("a", "b", ("y",), ""), ("b", "a", ("x",), "iteration"))
