"""Slots over the rounds of the loop: who reads what is written only later, and who writes what is spent."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from hookflow.graph.plan import Node
from hookflow.graph.points import POINTS, Loop, Point, Points
from hookflow.graph.slots import doubts
from tests.hook_nodes import AROUND, Stands, node, plan


def told(*nodes: Node, in_epoch: bool = False) -> tuple[list[str], list[str]]:
    """Return warnings and notes."""
    warnings, notes = doubts(plan(*nodes), {n.hook.name: n for n in nodes}, in_epoch)
    return [problem.message for problem in warnings], [problem.message for problem in notes]


def at(*points: str) -> Stands:
    return [(point, "whole") for point in points]


def reader(slot: str, *points: str) -> Node:
    return node("r", points=at(*points), reads=[slot])


def writer(slot: str, *points: str) -> Node:
    return node("w", points=at(*points), writes=[slot])


def asks(when: str, *points: str, reads: Iterable[str]) -> Node:
    asking = node("r", points=at(*points), reads=reads)
    return replace(asking, bound=tuple(replace(b, trigger=replace(b.trigger, when=when)) for b in asking.bound))


class TestWhatTheRoundBeforeHasLeft:
    def test_the_metrics_at_the_end_of_an_epoch_are_those_of_the_last(self) -> None:
        (said,), notes = told(reader("metrics", "after_train_epoch"))
        assert said == (
            'hook "r" reads metrics at after_train_epoch, and it is first written at after_val_epoch: '
            "what it reads is the last epoch's"
        )
        assert not notes

    @pytest.mark.parametrize("point", ["after_train_epoch", "after_train_iter"])
    def test_unless_a_validation_is_due_within_the_epoch(self, point: str) -> None:
        assert told(reader("metrics", point), in_epoch=True) == ([], [])

    def test_with_who_writes_it(self) -> None:
        (said,), _ = told(reader("scalars.n", "after_backward"), writer("scalars.n", "after_train_iter"))
        assert said.endswith('first written at after_train_iter by "w": what it reads is the last iteration\'s')

    def test_with_the_first_of_several_who_write_it(self) -> None:
        other = node("v", points=at("after_train_iter"), writes=["scalars.n"])
        (said,), _ = told(reader("scalars.n", "after_backward"), writer("scalars.n", "after_train_iter"), other)
        assert 'by "w"' in said

    def test_is_nothing_where_the_run_begins(self) -> None:
        first = next(iter(POINTS)).name
        (said,), _ = told(reader("metrics", first))
        assert said.endswith("there is nothing to read yet")

    @pytest.mark.parametrize("point", ["before_train_epoch", "after_train_iter", "before_train_iter"])
    def test_is_only_noted_where_it_can_hardly_be_meant_otherwise(self, point: str) -> None:
        warnings, (note,) = told(reader("metrics", point))
        assert not warnings
        assert note.endswith("what it reads is the last epoch's")

    def test_is_only_noted_of_a_slot_of_the_users_own(self) -> None:
        warnings, notes = told(reader("average", "after_backward"), writer("average", "after_train_iter"))
        assert not warnings
        assert len(notes) == 1

    @pytest.mark.parametrize("slot", ["model", "lr", "optimizer", "rng", "hook.w"])
    def test_is_nothing_to_tell_of_what_lives_on(self, slot: str) -> None:
        assert told(reader(slot, "before_train_iter"), writer(slot, "after_train_iter")) == ([], [])

    def test_of_a_condition_each_point_counts(self) -> None:
        points = ("after_train_epoch", "after_val")
        (said,), _ = told(asks("metrics.loss < 3", *points, reads=["metrics.loss"]))
        assert 'reads metrics.loss at after_train_epoch (when = "metrics.loss < 3")' in said

    def test_of_a_declaration_the_best_of_its_points(self) -> None:
        """It may be that of a class for all of its methods; and both halves of an around have the same."""
        assert told(reader("metrics", "after_train_epoch", "after_val")) == ([], [])
        assert told(node("r", points=AROUND, reads=["metrics"])) == ([], [])


class TestWhatIsFresh:
    def test_written_earlier_in_the_round_or_before_the_loop(self) -> None:
        assert told(reader("outputs", "after_forward"), reader("metrics.x", "after_val")) == ([], [])
        assert told(reader("average", "before_train_iter"), writer("average", "before_train", "after_train_iter")) == (
            [],
            [],
        )

    def test_written_at_the_same_point(self) -> None:
        assert told(reader("average", "after_train_iter"), writer("average", "after_train_iter")) == ([], [])

    @pytest.mark.parametrize(
        "points",
        [
            ("on_exception", "after_train"),
            ("before_train", "before_save_checkpoint"),
            ("after_train_epoch", "after_save_checkpoint"),
            ("before_train", "on_log"),
        ],
    )
    def test_where_a_point_may_come_at_any_time(self, points: tuple[str, str]) -> None:
        assert told(reader("average", points[0]), writer("average", points[1])) == ([], [])

    def test_a_part_of_what_is_written(self) -> None:
        assert told(reader("average.a", "after_train_iter"), writer("average", "after_forward")) == ([], [])
        assert len(told(reader("average.a", "after_train_iter"), writer("average.b", "after_forward"))[0]) == 0

    def test_as_a_whole_where_the_first_of_its_parts_is_written(self) -> None:
        other = node("v", points=at("after_train_iter"), writes=["average.b"])
        assert told(reader("average", "after_backward"), writer("average.a", "after_forward"), other) == ([], [])


def test_what_is_written_only_after_the_loop_is_not_there_yet() -> None:
    (said,), _ = told(reader("average", "before_train"), writer("average", "after_optimizer_step"))
    assert said.endswith('first written at after_optimizer_step by "w": there is nothing to read yet')


class TestWhatIsWrittenInVain:
    def test_gradients_behind_the_step(self) -> None:
        (said,), _ = told(writer("grads", "after_optimizer_step"))
        assert said == 'hook "w" writes grads at after_optimizer_step, when the step has already used them'

    def test_but_not_if_a_hook_reads_them_or_they_are_written_before(self) -> None:
        assert told(writer("grads", "after_optimizer_step"), reader("grads", "after_train_iter")) == ([], [])
        assert told(writer("grads", "before_optimizer_step", "after_train_iter")) == ([], [])

    def test_but_not_if_one_of_its_readers_is_there_or_behind(self) -> None:
        late = writer("grads", "after_optimizer_step")
        assert told(late, reader("grads", "after_optimizer_step")) == ([], [])
        assert told(late, reader("grads", "after_backward", "after_train_iter")) == ([], [])


def test_rounds() -> None:
    loop = Loop(POINTS, validates_in_epoch=False)
    assert loop.within("after_train_iter") == ("epoch", "iteration")
    assert loop.common("after_train_iter", "after_val_iter") == "epoch"
    assert loop.common("before_train", "after_val") == ""
    irregular = Loop(POINTS, validates_in_epoch=True)
    assert [irregular.place(point) < 0 for point in ("after_train_epoch", "before_val", "after_val")] == [
        False,
        True,
        True,
    ]


def test_points_of_the_pipelines_own_are_where_those_are_that_they_follow() -> None:
    def own(name: str, follows: str) -> Point:
        return Point(name, 3, ("run",), "firing", "", "own", follows)

    points = Points(
        [
            own("counted", "after_train_iter"),
            own("counted_twice", "counted"),
            own("rated", "after_val"),
            own("uploaded", "before_save_checkpoint"),
            own("looked", "before_val_iter"),
            own("built", "before_run"),
        ]
    )
    loop, irregular = (Loop(points, validates_in_epoch) for validates_in_epoch in (False, True))
    assert loop.within("counted") == loop.within("counted_twice") == ("epoch", "iteration")
    assert loop.place("after_train_iter") < loop.place("counted") < loop.place("counted_twice")
    assert loop.place("counted_twice") < loop.place("after_train_epoch")
    assert (loop.within("looked"), loop.within("rated")) == (("epoch", "validation batch"), ("epoch",))
    assert loop.place("after_val") < loop.place("rated") < loop.place("after_train")
    assert loop.place("built") == 1
    assert loop.place("uploaded") < 0
    assert max(irregular.place("rated"), irregular.place("looked")) < 0
    assert (irregular.within("rated"), irregular.within("looked")) == ((), ())
