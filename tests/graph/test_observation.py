"""What hooks were seen to touch, held against what they declare: what is missing, never seen, or turned by that."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from hookflow.graph.observation import Seen, Slots, missing, never_seen, turned, with_observed
from hookflow.graph.plan import Node, Plan
from tests.hook_nodes import AROUND, POINT, node, plan

Touched = tuple[Iterable[str], Iterable[str]]
"""What is read, and what is written."""

FOUR = [f"outputs.{name}" for name in "abcd"]


def at(point: str, name: str, reads: Iterable[str] = (), writes: Iterable[str] = ()) -> Node:
    return node(name, points=((point, "whole"),), reads=reads, writes=writes)


def seen(compiled: Plan, firings: int = 1, **touched: Touched) -> list[Seen]:
    """Return what the hooks of a plan were seen to touch; each at all of its points."""
    return [
        Seen(binding, firings, Slots(*map(tuple, touched.get(binding.hook, ((), ()))))) for binding in compiled.bindings
    ]


@pytest.mark.parametrize(
    ("declared", "touched", "said"),
    [
        (((), ()), (["model"], []), (("model",), ())),
        ((["model"], ()), (["model"], []), ((), ())),
        ((["model"], ()), (["model"], ["model"]), ((), ("model",))),
        (((), ["model"]), (["model"], ["model"]), ((), ())),  # who writes it need not say that it reads it
        ((["metrics.loss"], ()), (["metrics"], []), (("metrics",), ())),
        ((["metrics.loss"], ()), (["metrics.loss", "metrics.top1"], []), (("metrics.top1",), ())),
        (((), ()), ([*FOUR, "outputs.e"], []), (("outputs",), ())),  # so many parts are the whole
        (((), ()), ([*FOUR[1:], "outputs", "outputs.e"], []), (("outputs",), ())),
    ],
)
def test_what_is_touched_and_not_declared_is_missing(declared: Touched, touched: Touched, said: Touched) -> None:
    compiled = plan(at(POINT, "a", *declared))
    result = {("a", POINT): Slots(*map(tuple, said))} if any(said) else {}
    assert missing(compiled, seen(compiled, a=touched)) == result


def test_what_is_missing_is_that_of_a_method_at_both_of_its_points() -> None:
    compiled = plan(node("a", points=AROUND))
    entered, left = compiled.bindings
    result = [Seen(entered, 1, Slots(("lr", *FOUR[:2]))), Seen(left, 1, Slots((*FOUR[2:], "outputs.e"), ("lr",)))]
    assert missing(compiled, result) == {("a", "around_val"): Slots(("lr", "outputs"), ("lr",))}


@pytest.mark.parametrize(
    ("own", "other", "declared", "said"),
    [
        ("hook.a", "hook.c", (), ()),
        ("hook.a", "hook.a", (), ("hook.a",)),
        ("hook.a", "hook.a.best", (), ("hook.a",)),
        ("hook.a.best", "hook.a", (), ("hook.a.best",)),
        ("scalars.n", "scalars.m", (), ()),
        ("scalars.n", "scalars.n", (), ("scalars.n",)),
        ("model", "lr", (), ("model",)),
    ],
)
def test_state_and_logs_are_missing_once_another_hook_reads_them(
    own: str, other: str, declared: tuple[str, ...], said: tuple[str, ...]
) -> None:
    compiled = plan(at("before_train", "b"), at(POINT, "a", (), declared))
    result = missing(compiled, seen(compiled, a=([], [own]), b=([other], [])))
    assert result.get(("a", POINT), Slots()) == Slots((), said)


def test_what_another_hook_declares_to_read_or_to_write_is_missing() -> None:
    for reads, writes, touched in ((["scalars.n"], [], "scalars.n"), ([], ["hook.a"], "hook.a")):
        compiled = plan(at("before_train", "b", reads, writes), at(POINT, "a"))
        assert missing(compiled, seen(compiled, a=([], [touched]))) == {("a", POINT): Slots((), (touched,))}
    logs = plan(at(POINT, "a"), at(POINT, "b", writes=["scalars.n"]))
    assert missing(logs, seen(logs, a=([], ["scalars.n"]), b=([], ["scalars.n"]))) == {}, "read by no hook"


@pytest.mark.parametrize(
    ("point", "needed"),
    [("after_val", False), (POINT, True), ("after_train_epoch", False), ("before_save_checkpoint", True)],
)
def test_a_request_to_save_needs_no_order_outside_of_the_iteration(point: str, needed: bool) -> None:
    compiled = plan(at(point, "a"))
    said = {("a", point): Slots((), ("checkpoint",))} if needed else {}
    assert missing(compiled, seen(compiled, a=([], ["checkpoint"]))) == said


@pytest.mark.parametrize(
    ("declared", "touched", "said"),
    [
        ((["model"], ["lr"]), ([], ["lr"]), (("model",), ())),
        ((["model"], ["lr"]), (["model"], []), ((), ("lr",))),
        ((["metrics"], []), (["metrics.loss"], []), ((), ())),
        ((["metrics.loss"], []), (["metrics"], []), ((), ())),
        ((["metrics.loss"], []), (["metrics.top1"], []), (("metrics.loss",), ())),
    ],
)
def test_a_declaration_that_no_firing_bears_out_was_never_seen(
    declared: Touched, touched: Touched, said: Touched
) -> None:
    compiled = plan(at(POINT, "a", *declared))
    result = {"a": Slots(*map(tuple, said))} if any(said) else {}
    assert never_seen(seen(compiled, a=touched)) == result
    assert never_seen(seen(compiled, 0, a=touched)) == {}, "it has not fired"


def test_a_plan_with_what_was_seen_keeps_its_order_and_what_is_declared() -> None:
    compiled = plan(at(POINT, "a", ["metrics.loss"]), at(POINT, "b", (), ["lr"]))
    result = with_observed(compiled, seen(compiled, a=(["metrics", "lr"], ["rng"]), b=([], ["grads"])))
    assert [(item.hook, item.reads, item.writes) for item in result.bindings] == [
        ("a", ("lr", "metrics"), ("rng",)),
        ("b", (), ("grads", "lr")),
    ]
    assert result.edges == compiled.edges


@pytest.mark.parametrize(
    ("nodes", "declared", "said"),
    [
        ([at(POINT, "a", ["lr"]), at(POINT, "b", [], ["lr"])], ["b", "a"], [("a", "b", ("lr",))]),
        ([at(POINT, "a", ["lr"]), at(POINT, "b", [], ["lr"])], ["a", "b"], []),
        ([at(POINT, "x"), at(POINT, "a", ["lr"]), at(POINT, "b", [], ["lr"])], ["a", "b", "x"], []),
    ],
)
def test_pairs_that_the_declarations_turn(
    nodes: list[Node], declared: list[str], said: list[tuple[str, str, tuple[str, ...]]]
) -> None:
    """The first plan is ordered as the file has it: what was seen makes no edges."""
    now = plan(*(at(POINT, item.hook.name) for item in nodes))
    touched = {item.hook.name: (item.bound[0].reads, item.bound[0].writes) for item in nodes}
    then = plan(*(at(POINT, name) for name in declared))
    result = turned(with_observed(now, seen(now, **touched)), then)
    assert [(item.first.hook, item.then.hook, item.slots) for item in result] == said
