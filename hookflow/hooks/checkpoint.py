"""Checkpoint: asks for the state of the run to be saved, regularly and whenever it is the best so far."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from hookflow.hooks.base import Hook, Slots

if TYPE_CHECKING:
    from hookflow.hooks.run import Run


class Checkpoint(Hook):
    """Saves `last` after each epoch (or iteration, where it is bound to those) and `best` by a validation metric.

    Saving is asked for here and done by the runner at the next boundary, when every hook has had its turn: so no
    hook's state is saved half a step late, and no average is ever caught swapped in.
    """

    points = ("after_train_epoch", "after_val", "after_save_checkpoint")
    phase = "last"
    reads: ClassVar[Slots] = {"after_val": ("metrics",)}

    def __init__(
        self,
        monitor: Annotated[str | None, Field(description="the metric that says which checkpoint is best")] = None,
        mode: Annotated[
            Literal["max", "min"], Field(description="whether more or less of the metric is better")
        ] = "max",
        keep: Annotated[int, Field(ge=1, description="how many of the newest checkpoints stay, beside the best")] = 1,
    ) -> None:
        self.monitor = monitor
        self.mode = mode
        self.keep = keep
        self.best: float | None = None

    def after_train_epoch(self, run: Run) -> None:
        run.save_checkpoint("last")

    after_train_iter = after_train_epoch

    def after_val(self, run: Run, metrics: Mapping[str, float]) -> None:
        if self.monitor is None:
            return
        value = run.metric(self.monitor)
        if math.isnan(value):
            return  # nothing would ever be better than that
        if self.best is None or (value > self.best if self.mode == "max" else value < self.best):
            self.best = value
            run.save_checkpoint("best")

    def after_save_checkpoint(self, run: Run) -> None:
        run.prune_checkpoints(self.keep)

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best = state["best"]
