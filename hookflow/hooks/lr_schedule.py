"""Learning-rate schedules over the whole run: up, then down."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from hookflow.hooks.base import Hook

if TYPE_CHECKING:
    from hookflow.hooks.run import Run

Shape = Literal["linear", "cosine", "constant"]


class LRSchedule(Hook):
    """Sets each parameter group's learning rate before every iteration: a linear warm-up, then down to the end.

    The factor multiplies what the group started with, and depends on nothing but the share of the run that is done;
    so a resumed run needs no state to go on exactly.
    """

    reads = ("optimizer",)
    writes = ("lr",)

    def __init__(
        self,
        shape: Annotated[Shape, Field(description="the way down after the warm-up")] = "cosine",
        warmup: Annotated[float, Field(ge=0, lt=1, description="share of the run that the warm-up takes")] = 0.0,
        start: Annotated[float, Field(ge=0, description="factor of the first iteration of the warm-up")] = 0.0,
        end: Annotated[float, Field(ge=0, description="factor of the end of the run")] = 0.0,
    ) -> None:
        self.shape = shape
        self.warmup = warmup
        self.start = start
        self.end = end

    def before_train_iter(self, run: Run) -> None:
        factor = self.factor(run.iter / run.max_iters)
        for optimizer in run.optimizers.values():
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * factor

    def factor(self, done: float) -> float:
        """Return the factor when `done` (0 to 1) of the run is over."""
        if done < self.warmup:
            return self.start + (1 - self.start) * done / self.warmup
        way = min((done - self.warmup) / (1 - self.warmup), 1.0)
        if self.shape == "linear":
            return 1 + (self.end - 1) * way
        if self.shape == "cosine":
            return self.end + (1 - self.end) * (1 + math.cos(math.pi * way)) / 2
        return 1.0
