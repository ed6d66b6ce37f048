"""Hooks that share no point: which one the loop comes to first, how often, and what one hands on to the other."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from hookflow.graph.plan import Node
from hookflow.graph.why import apart
from tests.hook_nodes import node, plan


def at(name: str, *points: str, reads: Iterable[str] = (), writes: Iterable[str] = ()) -> Node:
    return node(name, points=[(point, "whole") for point in points], reads=reads, writes=writes)


@pytest.mark.parametrize(
    ("points_of_a", "points_of_b", "said"),
    [
        (["before_run"], ["after_run"], ("a", "b", "")),
        (["after_val"], ["after_train_iter"], ("b", "a", "epoch")),
        (["after_train_iter"], ["before_backward"], ("b", "a", "iteration")),
        (["before_train", "after_train_iter"], ["after_val", "after_run"], ("a", "b", "")),
        (["before_val_iter"], ["after_val_iter"], ("a", "b", "validation batch")),
        (["before_train_iter", "after_val_iter"], ["after_train_iter"], ("", "", "")),  # by turns
        (["after_train_iter"], ["before_train_iter", "after_val_iter"], ("", "", "")),
        (["on_exception"], ["after_train"], ("", "", "")),  # at any time
        (["before_train"], ["after_train", "on_exception"], ("", "", "")),
        (["before_train", "on_exception"], ["after_train"], ("", "", "")),
    ],
)
def test_which_one_the_loop_comes_to_first(
    points_of_a: list[str], points_of_b: list[str], said: tuple[str, str, str]
) -> None:
    compiled = plan(at("a", *points_of_a), at("b", *points_of_b))
    for one, other in ("ab", "ba"):
        found = apart(compiled, one, other, False)
        assert (found.first, found.then, found.round) == said
        assert {(point, hook) for point, hook, _ in found.rows} == {
            *((point, "a") for point in points_of_a),
            *((point, "b") for point in points_of_b),
        }


def test_a_validation_that_is_due_within_an_epoch_has_no_one_place() -> None:
    compiled = plan(at("a", "after_train_iter"), at("b", "after_val"))
    assert [apart(compiled, "a", "b", within).first for within in (False, True)] == ["a", ""]


def test_each_point_has_the_innermost_round_that_it_is_in() -> None:
    compiled = plan(
        at("a", "before_run", "after_train_epoch"), at("b", "before_test_iter", "forward"), at("c", "on_log")
    )
    assert apart(compiled, "a", "b", False).rows == (
        ("before_run", "a", ""),
        ("forward", "b", "iteration"),
        ("after_train_epoch", "a", "epoch"),
        ("before_test_iter", "b", "test batch"),
    )


@pytest.mark.parametrize(
    ("writes", "reads", "said"),
    [
        (["x"], ["x"], ("x",)),
        (["x", "y"], ["y", "z"], ("y",)),
        (["x"], ["y"], ()),
        (["x"], ["x.a"], ("x.a",)),
        (["x.a", "x.b"], ["x"], ("x.a", "x.b")),
    ],
)
def test_what_one_hands_on_to_the_other(writes: list[str], reads: list[str], said: tuple[str, ...]) -> None:
    compiled = plan(at("a", "after_train_iter", writes=writes), at("b", "after_val", reads=reads))
    handed = (("a", "b", said, ""),) if said else ()
    assert apart(compiled, "a", "b", False).handed == apart(compiled, "b", "a", False).handed == handed


def test_each_may_hand_on_to_the_other_and_what_comes_later_is_that_of_the_round_before() -> None:
    compiled = plan(
        at("a", "after_forward", reads=["x", "metrics"], writes=["y"]),
        at("b", "after_backward", reads=["y"], writes=["x"]),
    )
    assert apart(compiled, "a", "b", False).handed == (("a", "b", ("y",), ""), ("b", "a", ("x",), "iteration"))


def test_what_is_read_too_early_from_others_is_not_told() -> None:
    """The metrics are of the epoch before, and neither is it `b` that writes them nor `b` that reads them too early."""
    reads = {"reads": ["x", "metrics"]}
    compiled = plan(at("a", "after_backward", **reads), at("b", "after_forward", reads=["grads"], writes=["x"]))
    assert apart(compiled, "a", "b", False).handed == (("b", "a", ("x",), ""),)
    more = plan(
        at("a", "after_backward", reads=["x"]),
        at("b", "after_forward", writes=["x"]),
        at("c", "after_forward", **reads),
    )
    assert apart(more, "a", "b", False).handed == (("b", "a", ("x",), ""),)
