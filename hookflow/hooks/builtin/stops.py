"""Hooks that end a run: at its time limit, or early (L. Prechelt, *Early stopping – but when?*, 1998)."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from hookflow.hooks.base import Hook, Slots
from hookflow.hooks.builtin.metrics import latest
from hookflow.metric_mode import MODE_MEANING, Mode, mode_of
from hookflow.numbers import counted, number
from hookflow.pipeline.values import parse_amount

if TYPE_CHECKING:
    from hookflow.hooks.run import Run


@dataclass(eq=False)
class EarlyStop(Hook):
    """Stops the run when a validation metric has not improved for `patience` validations in a row.

    With `stage = "train"` it looks after each epoch at a number that the training has logged, such as `loss_epoch` of
    `log` with `mean = "epoch"`, or `train/accuracy` of `accuracy`; `patience` counts epochs then. It also stops as soon
    as the metric is as good as `stopping_threshold`, worse than `divergence_threshold`, or, with `check_finite`, NaN or
    infinite; without it NaN is no improvement.
    """

    settable = ("patience", "min_delta", "stopping_threshold", "divergence_threshold", "check_finite")
    phase = "late"
    reads: ClassVar[Slots] = {"after_val": ("metrics.{monitor}",), "after_train_epoch": ("scalars.{monitor}",)}
    writes = ("control",)

    monitor: Annotated[str, Field(description="the metric to watch")] = "accuracy"
    mode: Annotated[Mode | None, Field(description=MODE_MEANING)] = None
    patience: Annotated[int, Field(ge=1, description="validations without improvement before the stop")] = 5
    min_delta: Annotated[float, Field(ge=0, description="the least change that counts as improvement")] = 0.0
    stopping_threshold: Annotated[float | None, Field(description="stop when the metric is as good as this")] = None
    divergence_threshold: Annotated[float | None, Field(description="stop when the metric is worse than this")] = None
    check_finite: Annotated[bool, Field(description="stop at once when the metric is NaN or infinite")] = False
    stage: Annotated[Literal["val", "train"], Field(description="where the number comes from")] = "val"

    def __post_init__(self) -> None:
        self.modes = {self.monitor: mode_of(self.monitor, self.mode)}
        self.sign = 1 if self.modes[self.monitor] == "max" else -1
        self.looks_up = (self.monitor,) if self.stage == "train" else ()
        self.best: float | None = None
        self.waited = 0

    @classmethod
    def points_for(cls, args: Mapping[str, Any]) -> tuple[str, ...]:
        return ("after_train_epoch",) if args.get("stage") == "train" else ("after_val",)

    @classmethod
    def check_arguments(cls, args: Mapping[str, Any]) -> None:
        if "monitor" in args:
            mode_of(args["monitor"], args.get("mode"))

    def after_val(self, run: Run) -> None:
        value = latest(run, self.monitor)
        if value is not None:
            self.judge(run, value)

    def after_train_epoch(self, run: Run) -> None:
        self.judge(run, run.scalar(self.monitor))

    def judge(self, run: Run, value: float) -> None:
        """Take in a value, and ask for the stop where it is due."""
        if why := self.beyond(value) or self.stalled(value):
            run.stop(f"{self.monitor} {why}")

    def beyond(self, value: float) -> str:
        """Return why the run stops at this value, whatever came before it; an empty string if it does not."""
        good, bad = self.stopping_threshold, self.divergence_threshold
        if self.check_finite and not math.isfinite(value):
            return f"is {number(value)}, which is not finite"
        if good is not None and (value - good) * self.sign >= 0:
            return f"is {number(value)}, as good as the threshold of {number(good)}"
        if bad is not None and (value - bad) * self.sign < 0:
            return f"is {number(value)}, worse than the threshold of {number(bad)}"
        return ""

    def stalled(self, value: float) -> str:
        """Take in the value of a validation; return why the run stops, if it has waited for a better one too long."""
        better = math.inf if self.best is None else (value - self.best) * self.sign
        if better > self.min_delta and not math.isnan(value):
            self.best, self.waited = value, 0
            return ""
        self.waited += 1
        if self.waited < self.patience:
            return ""
        best = "NaN" if self.best is None else number(self.best)
        return f"has not improved on {best} for {counted(self.waited, 'epoch' if self.looks_up else 'validation')}"

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "waited": self.waited}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best, self.waited = state["best"], state["waited"]


def _duration(written: object) -> object:
    parse_amount(written, ["s"])
    return written


@dataclass(eq=False)
class TimeLimit(Hook):
    """Stops the run at a safe point, with a checkpoint, when its time limit is reached.

    Time is counted from when this process has made its hooks, anew in each one: a run that a batch system such as Slurm
    ends after four hours gets "230m", and the next job resumes it. It is looked at after each iteration and each
    validation; neither is cut short, so leave time for a validation and for writing the checkpoint. Over several
    processes this lets them wait for one another after each iteration in which it fires: give it `every = "10s"`.
    """

    phase = "late"
    writes: ClassVar[Slots] = ("control", "checkpoint")

    limit: Annotated[str, BeforeValidator(_duration), Field(description='how long: "230m", "3.8h"', examples=["230m"])]

    def __post_init__(self) -> None:
        self.end = time.monotonic() + float(parse_amount(self.limit).value)

    def after_train_iter(self, run: Run) -> None:
        if time.monotonic() >= self.end:
            run.save_checkpoint()
            run.stop(f"the time limit of {self.limit} is reached", this_process=True)

    after_val = after_train_iter
