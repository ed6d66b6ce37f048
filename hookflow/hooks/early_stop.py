"""Early stopping (L. Prechelt, *Early stopping – but when?*, 1998)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from hookflow.hooks.base import Hook
from hookflow.numbers import number

if TYPE_CHECKING:
    from hookflow.hooks.run import Run


class EarlyStop(Hook):
    """Stops the run when a validation metric has not improved for `patience` validations in a row."""

    phase = "late"
    reads = ("metrics",)
    writes = ("control",)

    def __init__(
        self,
        monitor: Annotated[str, Field(description="the validation metric to watch")] = "accuracy",
        mode: Annotated[
            Literal["max", "min"], Field(description="whether more or less of the metric is better")
        ] = "max",
        patience: Annotated[int, Field(ge=1, description="validations without improvement before the stop")] = 5,
        min_delta: Annotated[float, Field(ge=0, description="the least change that counts as improvement")] = 0.0,
    ) -> None:
        self.monitor = monitor
        self.mode = mode
        self.patience = patience
        self.min_delta = min_delta
        self.best: float | None = None
        self.waited = 0

    def after_val(self, run: Run) -> None:
        value = run.metric(self.monitor)
        better = math.inf if self.best is None else (value - self.best) * (1 if self.mode == "max" else -1)
        if better > self.min_delta and not math.isnan(value):
            self.best, self.waited = value, 0
            return
        self.waited += 1
        if self.waited >= self.patience:
            best = "NaN" if self.best is None else number(self.best)
            run.stop(f"{self.monitor} has not improved on {best} for {self.waited} validations")

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "waited": self.waited}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best, self.waited = state["best"], state["waited"]
