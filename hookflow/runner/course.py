"""What hooks may change of a training's course, each by a named call on the run, and who may call it where."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Literal

from hookflow.errors import Problem, UserError
from hookflow.graph.plan import Binding
from hookflow.runner.contract import batch_size_of

if TYPE_CHECKING:
    from hookflow.runner.runner import Runner

WITH_A_BATCH = ("before_train_iter", "before_val_iter", "before_test_iter")
BEFORE_THE_STEP = ("after_forward", "before_backward", "after_backward", "before_optimizer_step")
TOO_LATE_TO_STOP = ("on_exception", "after_run")


class Course:
    """The requests of hooks that the loops have not yet met.

    `offered` is what the point at hand offers, where the batch may be replaced: the run, the batch, its index.
    """

    def __init__(self, run: Runner) -> None:
        self._run = run
        self.offered: list[Any] = []
        self.skips_batch = False
        self.epoch_ends = False
        self.wants_epoch_to_end = False
        several = run.ranks.world > 1
        self._agreed_at = {b.point for b in run.plan.bindings if several and "control" in b.writes}

    def replace_batch(self, batch: Any) -> None:
        self._may("replace_batch", "batch", WITH_A_BATCH)
        self.offered[1] = batch
        self._run.batch_size = batch_size_of(batch)

    def skip_batch(self) -> None:
        self._may("skip_batch", "control", WITH_A_BATCH)
        self.skips_batch = True

    def skip_step(self) -> None:
        self._may("skip_step", "control", BEFORE_THE_STEP)
        self._run.update.asked_to_skip = True

    def stop_epoch(self, reason: str) -> None:
        points = self._run.plan.points
        self._may("stop_epoch", "control", [point.name for point in points if points.in_iteration(point.name)])
        if not self.epoch_ends and not self.wants_epoch_to_end:
            self._run.say(f"epoch {self._run.epoch + 1} ends early: {reason}")
            self.wants_epoch_to_end = self._run.ranks.world > 1
            self.epoch_ends = not self.wants_epoch_to_end  # alone, it need agree with nobody

    def end_epoch(self) -> None:
        """Let the epoch end, as all ranks have agreed; unless the one that was meant has come to its end meanwhile."""
        self.epoch_ends, self.wants_epoch_to_end = self._run.batch_idx > 0, False

    def may_stop(self) -> None:
        """Raise UserError where `run.stop` is called by who may not, or too late."""
        self._may("stop", "control", [p.name for p in self._run.plan.points if p.name not in TOO_LATE_TO_STOP])

    def taken(self, split: Literal["train", "val", "test"]) -> bool:
        """Return whether the batch at hand is to be skipped, on all ranks, and forget it."""
        skips, self.skips_batch = self.skips_batch, False
        return self.agreed(skips, f"before_{split}_iter")

    def agreed(self, skips: bool, *points: str) -> bool:
        """Return whether any rank skips what is at hand: to go on without the others would leave them waiting.

        They wait for one another to learn it, and only where a hook at one of these points may ask for it.
        """
        return self._run.consensus.any_rank(skips) if not self._agreed_at.isdisjoint(points) else skips

    def _may(self, call: str, slot: str, points: Collection[str]) -> None:
        """Raise UserError unless the hook that is being called has declared the slot, and its point is one of these.

        The task, and the runner itself, need declare nothing; but a batch is the task's own to change.
        """
        here = self._run.inside
        if here is None:
            if points is WITH_A_BATCH:
                raise UserError(Problem(f"run.{call} is for hooks: a task need not ask to change its batch"))
        elif here.point not in points:
            raise UserError(Problem(f"run.{call} means nothing at {here.point}", hint=_where(points)))
        elif slot not in here.writes:
            raise UserError(_undeclared(call, slot, here))


def _where(points: Collection[str]) -> str:
    return f"it may be called at {', '.join(points)}" if len(points) < 8 else "it may be called in an iteration"


def _undeclared(call: str, slot: str, here: Binding) -> Problem:
    said = f'the hook "{here.hook}" calls run.{call} at {here.point}, and does not say that it writes the slot "{slot}"'
    return Problem(said, hint=f'declare it: writes = ["{slot}"] in [hooks.{here.hook}], or in its class')
