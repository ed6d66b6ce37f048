"""Slots: names that are probably misspelt, values of the round before,
and observations against declarations.
"""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from hookflow.graph.lifetimes import find_doubtful_lifetimes
from hookflow.graph.observation import (
    ObservedBinding,
    Slots,
    find_turned_pairs,
    find_unseen_slots,
    missing,
    with_observed,
)
from hookflow.graph.plan import Node, Plan, Ranks, Trigger
from hookflow.graph.points import DEFAULT_POINTS, Loop, Point, Points
from hookflow.graph.slots import is_commuting
from tests.support.golden_files import check_cases
from tests.support.hook_nodes import AROUND, POINT, Stands, node, plan


@pytest.mark.parametrize("point", [*DEFAULT_POINTS], ids=lambda point: point.name)
def test_requests_need_no_order_and_what_is_changed_does(point: Point) -> None:
    offers_state = "save_checkpoint" in point.name and point.name != "after_copy_checkpoint"
    offers_state |= point.name == "after_load_checkpoint"
    slots = ("control", "checkpoint", "model", "metrics")
    assert [is_commuting(slot, point) for slot in slots] == [True, not offers_state, False, False]


AVERAGE = node("a", writes=["average"])
ACCURACY = node("a", writes=["metrics.accuracy"])

DOUBTFUL: dict[str, list[Node]] = {
    "an edge of the file between hooks that never meet": [
        node("a", points=(("after_train", "whole"),), after=["b"]),
        node("b"),
    ],
    "an edge of a class": [
        node("a", points=(("after_train", "whole"),), after=["b"], kind="class"),
        node("b"),
    ],
    "an edge of an around that meets the other at one of its points": [
        node("a", points=AROUND, near={"around_val": (["b"], [])}),
        node("b", points=(("before_val", "whole"),)),
    ],
    "nearly one of the runner's": [node("a", reads=["modle"]), node("b", writes=["grdas"])],
    "one of its own, read and written": [node("a", reads=["mine"], writes=["mine"])],
    "nearly one of another hook": [AVERAGE, node("b", writes=["avrage"])],
    "with another number": [node("a", writes=["top1"]), node("b", writes=["top5"])],
    "read and not written": [node(name, reads=["temperature"]) for name in "ab"],
    "read, and a part is written": [node("a", writes=["heat.of_a"]), node("b", reads=["heat"])],
    "a part that is nearly another": [ACCURACY, node("b", reads=["metrics.acuracy"])],
    "a part of what is written whole": [
        ACCURACY,
        node("b", reads=["metrics.acuracy"]),
        node("c", writes=["metrics"]),
    ],
    "the state of a hook that is not there": [node("average"), node("b", reads=["hook.avrage"])],
    "the state of a hook that is off": [node("b", reads=["hook.off"])],
    "the state of no hook": [node("b", reads=["hook"])],
}
"""Edges and slots of which some are warned of, and others are sound:
the golden file tells which.
"""


def test_what_is_doubtful() -> None:
    plans = {case: plan(*nodes, disabled=["off"]) for case, nodes in DOUBTFUL.items()}
    told = {
        case: [f"{each.message}\n{each.hint}" for each in made.warnings]
        for case, made in plans.items()
    }
    check_cases("doubtful.txt", told)


@pytest.mark.parametrize(
    ("ranks", "writes", "said"),
    [
        ("zero", ["metrics.loss", "model", "control"], ["model, metrics"]),
        ("zero", ["control"], []),
        ("all", ["model"], []),
    ],
)
def test_what_is_the_same_on_all_ranks_is_not_written_by_one(
    ranks: Ranks, writes: list[str], said: list[str]
) -> None:
    made = node("a", writes=writes)
    warnings = plan(replace(made, hook=replace(made.hook, ranks=ranks))).warnings
    assert [warning.message for warning in warnings] == [
        f'hook "a" fires on rank 0 alone and writes {slots}: several ranks would drift apart'
        for slots in said
    ]


def lifetimes(*nodes: Node, in_epoch: bool = False) -> tuple[list[str], list[str]]:
    """Return the warnings and notes of slots over the rounds of the loop."""
    warnings, notes = find_doubtful_lifetimes(
        plan(*nodes), {n.hook.name: n for n in nodes}, in_epoch
    )
    return [problem.message for problem in warnings], [problem.message for problem in notes]


def at(points: str) -> Stands:
    return [(point, "whole") for point in points.split()]


def reader(slot: str, points: str) -> Node:
    return node("r", points=at(points), reads=[slot])


def writer(slot: str, points: str, name: str = "w") -> Node:
    return node(name, points=at(points), writes=[slot])


class TestWhatTheRoundBeforeHasLeft:
    @pytest.mark.parametrize(
        ("nodes", "end"),
        [
            (
                [reader("metrics", "after_train_epoch")],
                (
                    'hook "r" reads metrics at after_train_epoch, and it is first written at'
                    " after_val_epoch: what it reads is the last epoch's"
                ),
            ),
            (
                [reader("scalars.n", "after_backward"), writer("scalars.n", "after_train_iter")],
                'first written at after_train_iter by "w": what it reads is the last iteration\'s',
            ),
            ([reader("metrics", "before_run")], "there is nothing to read yet"),
        ],
    )
    def test_is_warned_of(self, nodes: list[Node], end: str) -> None:
        (message,), notes = lifetimes(*nodes)
        assert message.endswith(end)
        assert not notes

    @pytest.mark.parametrize(
        "nodes",
        [
            [reader("metrics", "before_train_epoch")],
            [reader("average", "after_backward"), writer("average", "after_train_iter")],
        ],
    )
    def test_is_noted_where_it_can_hardly_be_meant_otherwise_and_of_own_slots(
        self, nodes: list[Node]
    ) -> None:
        warnings, notes = lifetimes(*nodes)
        assert (warnings, len(notes)) == ([], 1)

    def test_is_known_for_each_point_of_a_condition_and_where_no_validation_is_due(self) -> None:
        assert lifetimes(reader("metrics", "after_train_epoch"), in_epoch=True) == ([], [])
        # A declaration may be that of a class for all of its methods; both halves of an around have
        # the same.
        declared = reader("metrics", "after_train_epoch after_val")
        assert (
            lifetimes(declared)
            == lifetimes(node("r", points=AROUND, reads=["metrics"]))
            == ([], [])
        )
        asking = node("r", points=at("after_train_epoch after_val"), reads=["metrics.loss"])
        bound = tuple(
            replace(b, trigger=Trigger.parse(when="metrics.loss < 3")) for b in asking.bound
        )
        (message,), _ = lifetimes(replace(asking, bound=bound))
        assert 'reads metrics.loss at after_train_epoch (when = "metrics.loss < 3")' in message


@pytest.mark.parametrize(
    "nodes",
    [
        *(
            [reader(slot, "before_train_iter"), writer(slot, "after_train_iter")]
            for slot in ("model", "rng", "hook.w")
        ),
        [reader("outputs", "after_forward")],
        [
            reader("average", "before_train_iter"),
            writer("average", "before_train after_train_iter"),
        ],
        [reader("average", "on_exception"), writer("average", "after_train")],
        [reader("average", "before_train"), writer("average", "before_save_checkpoint")],
        [reader("average.a", "after_train_iter"), writer("average", "after_forward")],
        [
            reader("average", "after_backward"),
            writer("average.a", "after_forward"),
            writer("average.b", "after_train_iter", "v"),
        ],
        [writer("grads", "after_optimizer_step"), reader("grads", "after_train_iter")],
        [writer("grads", "before_optimizer_step after_train_iter")],
    ],
)
def test_what_lives_on_or_is_fresh_or_used_is_no_matter(nodes: list[Node]) -> None:
    assert lifetimes(*nodes) == ([], [])


def test_gradients_behind_the_step_are_written_in_vain() -> None:
    (message,), _ = lifetimes(writer("grads", "after_optimizer_step"))
    assert (
        message
        == 'hook "w" writes grads at after_optimizer_step, when the step has already used them'
    )


def test_points_of_the_pipelines_own_are_where_those_are_that_they_follow() -> None:
    follows = {
        "counted": "after_train_iter",
        "counted_twice": "counted",
        "rated": "after_val",
        "uploaded": "before_save_checkpoint",
        "looked": "before_val_iter",
        "built": "before_run",
    }
    points = Points(
        Point(name, 3, ("run",), "firing", "", "own", to) for name, to in follows.items()
    )
    loop, irregular = (Loop(points, validates_in_epoch) for validates_in_epoch in (False, True))
    assert loop.within["counted"] == loop.within["counted_twice"] == ("epoch", "iteration")
    assert (loop.within["looked"], loop.within["rated"]) == (
        ("epoch", "validation batch"),
        ("epoch",),
    )
    order = (
        "after_train_iter",
        "counted",
        "counted_twice",
        "after_train_epoch",
        "after_val",
        "rated",
        "after_train",
    )
    places = [loop.place[point] for point in order]
    assert places == sorted(set(places))
    assert (loop.place["built"], loop.place["uploaded"]) == (1, -1)
    assert max(irregular.place["rated"], irregular.place["looked"]) < 0
    assert (irregular.within["rated"], irregular.within["looked"]) == ((), ())


Touched = tuple[Iterable[str], Iterable[str]]
"""What is read, and what is written."""

FOUR = [f"outputs.{name}" for name in "abcd"]


def touching(point: str, name: str, reads: Iterable[str] = (), writes: Iterable[str] = ()) -> Node:
    return node(name, points=((point, "whole"),), reads=reads, writes=writes)


def seen(compiled: Plan, firings: int = 1, **touched: Touched) -> list[ObservedBinding]:
    """Return what the hooks of a plan were seen to touch; each at all of its points."""
    return [
        ObservedBinding(binding, firings, Slots(*map(tuple, touched.get(binding.hook, ((), ())))))
        for binding in compiled.bindings
    ]


@pytest.mark.parametrize(
    ("declared", "touched", "said"),
    [
        (((), ()), (["model"], []), (("model",), ())),
        ((["model"], ()), (["model"], []), ((), ())),
        ((["model"], ()), (["model"], ["model"]), ((), ("model",))),
        # Who writes it need not say that it reads it.
        (((), ["model"]), (["model"], ["model"]), ((), ())),
        ((["metrics.loss"], ()), (["metrics"], []), (("metrics",), ())),
        ((["metrics.loss"], ()), (["metrics.loss", "metrics.top1"], []), (("metrics.top1",), ())),
        (((), ()), ([*FOUR, "outputs.e"], []), (("outputs",), ())),  # so many parts are the whole
        (((), ()), ([*FOUR[1:], "outputs", "outputs.e"], []), (("outputs",), ())),
    ],
)
def test_what_is_touched_and_not_declared_is_missing(
    declared: Touched, touched: Touched, said: Touched
) -> None:
    compiled = plan(touching(POINT, "a", *declared))
    result = {("a", POINT): Slots(*map(tuple, said))} if any(said) else {}
    assert missing(compiled, seen(compiled, a=touched)) == result


def test_what_a_method_touches_and_what_another_hook_declares_is_missing() -> None:
    compiled = plan(node("a", points=AROUND))
    entered, left = compiled.bindings
    result = [
        ObservedBinding(entered, 1, Slots(("lr", *FOUR[:2]))),
        ObservedBinding(left, 1, Slots((*FOUR[2:], "outputs.e"), ("lr",))),
    ]
    assert missing(compiled, result) == {("a", "around_val"): Slots(("lr", "outputs"), ("lr",))}
    for reads, writes, touched in ((["scalars.n"], [], "scalars.n"), ([], ["hook.a"], "hook.a")):
        compiled = plan(touching("before_train", "b", reads, writes), touching(POINT, "a"))
        assert missing(compiled, seen(compiled, a=([], [touched]))) == {
            ("a", POINT): Slots((), (touched,))
        }
    logs = plan(touching(POINT, "a"), touching(POINT, "b", writes=["scalars.n"]))
    assert missing(logs, seen(logs, a=([], ["scalars.n"]), b=([], ["scalars.n"]))) == {}, (
        "read by no hook"
    )


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
    compiled = plan(touching("before_train", "b"), touching(POINT, "a", (), declared))
    result = missing(compiled, seen(compiled, a=([], [own]), b=([other], [])))
    assert result.get(("a", POINT), Slots()) == Slots((), said)


@pytest.mark.parametrize(
    ("point", "needed"),
    [
        ("after_val", False),
        (POINT, True),
        ("after_train_epoch", False),
        ("before_save_checkpoint", True),
    ],
)
def test_a_request_to_save_needs_no_order_outside_of_the_iteration(
    point: str, needed: bool
) -> None:
    compiled = plan(touching(point, "a"))
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
def test_a_declaration_of_which_no_firing_was_seen(
    declared: Touched, touched: Touched, said: Touched
) -> None:
    compiled = plan(touching(POINT, "a", *declared))
    result = {"a": Slots(*map(tuple, said))} if any(said) else {}
    assert find_unseen_slots(seen(compiled, a=touched)) == result
    assert find_unseen_slots(seen(compiled, 0, a=touched)) == {}, "it has not fired"


def test_a_plan_with_what_was_seen_keeps_its_order_and_what_is_declared() -> None:
    compiled = plan(touching(POINT, "a", ["metrics.loss"]), touching(POINT, "b", (), ["lr"]))
    result = with_observed(
        compiled, seen(compiled, a=(["metrics", "lr"], ["rng"]), b=([], ["grads"]))
    )
    assert [(item.hook, item.reads, item.writes) for item in result.bindings] == [
        ("a", ("lr", "metrics"), ("rng",)),
        ("b", (), ("grads", "lr")),
    ]
    assert result.edges == compiled.edges


@pytest.mark.parametrize(
    ("nodes", "declared", "said"),
    [
        (
            [touching(POINT, "a", ["lr"]), touching(POINT, "b", [], ["lr"])],
            ["b", "a"],
            [("a", "b", ("lr",))],
        ),
        ([touching(POINT, "a", ["lr"]), touching(POINT, "b", [], ["lr"])], ["a", "b"], []),
        (
            [touching(POINT, "x"), touching(POINT, "a", ["lr"]), touching(POINT, "b", [], ["lr"])],
            ["a", "b", "x"],
            [],
        ),
    ],
)
def test_pairs_they_turn(
    nodes: list[Node], declared: list[str], said: list[tuple[str, str, tuple[str, ...]]]
) -> None:
    """The first plan is ordered as the file has it: what was seen makes no edges."""
    now = plan(*(touching(POINT, item.hook.name) for item in nodes))
    touched = {item.hook.name: (item.bound[0].reads, item.bound[0].writes) for item in nodes}
    then = plan(*(touching(POINT, name) for name in declared))
    result = find_turned_pairs(with_observed(now, seen(now, **touched)), then)
    assert [(item.first.hook, item.then.hook, item.slots) for item in result] == said
