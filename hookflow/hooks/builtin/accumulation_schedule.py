"""A schedule of gradient accumulation: on how many batches the optimizer steps, as the run goes on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from hookflow.errors import Problem, UserError
from hookflow.hooks.base import Hook, Slots
from hookflow.hooks.builtin.amounts import Progress, at_iterations

if TYPE_CHECKING:
    from hookflow.hooks.run import Run


Batches = Annotated[list[tuple[Progress, Annotated[int, Field(ge=1)]]], Field(min_length=1)]
"""How many batches a step takes from so much of the run on: [["10%", 2], ["50%", 4]]."""


class AccumulationSchedule(Hook):
    """Schedules gradient accumulation: on how many batches the optimizer steps, as the run goes on.

    The gradients of a step are the mean over its batches. Before the first place it takes one. As in Lightning's
    `GradientAccumulationScheduler`, the length of the run, its schedules and its triggers do not depend on it: an
    iteration still takes one batch, and the optimizer steps in the last one of a group alone. `before_` and
    `after_optimizer_step` fire there, once for all of them. A group ends with its epoch, and with the run. Each batch
    counts by its examples, over all ranks. For the same number throughout there is `run.accumulate`, where an iteration
    takes several batches; the two exclude each other.
    """

    phase = "early"
    reads: ClassVar[Slots] = {"before_backward": ("batch",)}
    writes: ClassVar[Slots] = {"before_backward": ("control",), "before_optimizer_step": ("grads",)}

    def __init__(
        self,
        batches: Annotated[
            Batches,
            Field(description="the batches of a step, each number at its place", examples=[[["10%", 2], ["50%", 4]]]),
        ],
    ) -> None:
        self.batches = batches
        self.places: list[tuple[int, int]] = []
        """The places in iterations, with their numbers of batches."""
        self.left = 0
        """The batches that the current group still takes."""
        self.expected = self.examples = 0.0
        """The examples that the group was thought to have by its first batch, and those that it has had."""

    def before_train(self, run: Run) -> None:
        if getattr(run.task, "steps_itself", False):
            raise UserError(
                Problem("accumulation_schedule says when the optimizer steps, and this task steps it itself")
            )
        if run.iters_per_epoch != len(run.data["train"]):
            said = "accumulation_schedule and run.accumulate both say on how many batches the optimizer steps"
            raise UserError(Problem(said, hint="keep one of them"))
        self.places = at_iterations("batches", self.batches, run)

    def before_backward(self, run: Run) -> None:
        examples = float(run.sum(run.batch_size or 1))
        if self.left == 0:
            in_epoch, in_run = run.iters_per_epoch - run.batch_idx, run.max_iters - run.iter
            self.left = max(min(batches_at(run.iter, self.places), in_epoch, in_run), 1)
            self.expected, self.examples = self.left * examples, 0.0
        self.left -= 1
        self.examples += examples
        run.accumulate(examples / self.expected, step=self.left == 0)

    def before_optimizer_step(self, run: Run) -> None:
        if self.examples != self.expected:
            for optimizer in run.optimizers.values():
                for group in optimizer.param_groups:
                    for parameter in group["params"]:
                        if parameter.grad is not None:
                            parameter.grad.mul_(self.expected / self.examples)

    def after_train_iter(self, run: Run) -> None:
        if self.left and run.step_skipped:  # another hook has had the gradients dropped
            self.left = 0

    def state_dict(self) -> dict[str, Any]:
        return {"left": self.left, "expected": self.expected, "examples": self.examples}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.left, self.expected, self.examples = state["left"], state["expected"], state["examples"]


def batches_at(done: int, places: Sequence[tuple[int, int]]) -> int:
    """Return how many batches a step takes that begins after `done` iterations; 1 before the first place."""
    return next((batches for begin, batches in reversed(places) if begin <= done), 1)
