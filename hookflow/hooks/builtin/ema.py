"""Exponential moving average of the weights (B. Polyak and A. Juditsky, 1992), used wherever the model is evaluated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from hookflow.hooks.base import Slots
from hookflow.hooks.builtin.amounts import Progress
from hookflow.hooks.builtin.averaging import READS, WRITES, Average
from hookflow.metric_mode import MODE_MEANING, Mode

if TYPE_CHECKING:
    from hookflow.hooks.run import Run


class EMA(Average):
    """Averages the weights (and floating-point buffers) after each optimizer step; validates and tests the average.

    The average starts as a copy of the weights when `begin` is reached. Its momentum is annealed so that it soon
    forgets them: at step n it moves by no less than `gamma` / (`gamma` + n). Before `begin` the weights themselves are
    validated. A checkpoint keeps the average as `model_<hook's name>`, a plain state_dict beside the trained weights.

    Where there are several models it averages all of them, or `model` alone; at each step of an optimizer of theirs.
    """

    reads: ClassVar[Slots] = {**READS, "after_optimizer_step": ("model.{model}",)}
    writes: ClassVar[Slots] = WRITES

    def __init__(
        self,
        decay: Annotated[float, Field(gt=0, lt=1, description="share of the average that a step keeps")] = 0.999,
        every: Annotated[int, Field(ge=1, description="iterations between two updates")] = 1,
        model: Annotated[str | None, Field(description="which of several models; all of them if left out")] = None,
        begin: Annotated[
            Progress, Field(description='when the average starts: 0, 1000, "1000it", "5ep" or "10%" of the run')
        ] = 0,
        gamma: Annotated[
            float, Field(ge=0, description="how slowly the momentum reaches 1 - decay, in steps; 0: at once")
        ] = 1.0,
        monitor: Annotated[
            str | None,
            Field(description="the validation metric by which the average's best checkpoint is saved: best-<name>"),
        ] = None,
        mode: Annotated[Mode | None, Field(description=MODE_MEANING)] = None,
    ) -> None:
        super().__init__(begin, model, monitor, mode)
        self.decay = decay
        self.every = every
        self.gamma = gamma

    def before_train(self, run: Run) -> None:
        super().before_train(run)
        if not self.average and self.first == 0:
            self.start(run)

    def after_optimizer_step(self, run: Run) -> None:
        if not self.average:
            if run.iter + 1 >= self.first:
                self.start(run)
        elif (run.iter + 1) % self.every == 0 and run.stepped(self.model) is not None:
            self.move(annealed(self.updates + 1, self.decay, self.gamma))


def annealed(step: int, decay: float, gamma: float) -> float:
    """Return the share of the way to the weights that the average moves at a step, counted from 1."""
    return max(1 - decay, gamma / (gamma + step))
