"""Checkpoint: asks for the state of the run to be saved, regularly and whenever it is among the best so far."""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from hookflow.hooks.base import Hook, Slots
from hookflow.metric_mode import MODE_MEANING, Mode, mode_of

if TYPE_CHECKING:
    from hookflow.hooks.run import Run


@dataclass(eq=False)
class Checkpoint(Hook):
    """Saves `last` after each epoch (or iteration, where it is bound to that), and the best by validation metrics.

    The best go by `best`, `best-2`, …; where several metrics are watched, by `best-accuracy`, `best-accuracy-2`, …
    Bound to `on_exception`, it saves what stands when something raises, apart from what a run resumes from.

    With `from`, as `from = "3ep"`, it begins then: what comes earlier is not saved, and is no best. With `out_dir` the
    checkpoints are in `<out_dir>/<run.name>/<id>/`, and `checkpoints` in the run directory is a link to that: what
    looks for them there finds them.

    The hook requests a save, and the runner makes it at the next safe point, after all hooks: so no
    hook's state is saved half a step late, and no average is ever caught swapped in.
    """

    points = ("after_train_epoch", "after_val")
    phase = "last"
    reads: ClassVar[Slots] = {"after_val": ("metrics.{monitor?}",)}
    writes: ClassVar[Slots] = {"after_train_iter": ("checkpoint",)}

    monitor: Annotated[
        str | dict[str, Mode] | None,
        Field(description='the metric that says which are best, or several: { accuracy = "max", loss = "min" }'),
    ] = None
    mode: Annotated[Mode | None, Field(description=MODE_MEANING)] = None
    top: Annotated[int, Field(ge=1, description="how many of the best by each metric stay")] = 1
    keep: Annotated[int, Field(ge=1, description="how many of the newest stay, beside the best")] = 1
    out_dir: Annotated[str | None, Field(description="the folder; checkpoints/ in the run directory if left out")] = (
        None
    )

    def __post_init__(self) -> None:
        self.keeps_checkpoints_in = self.out_dir
        self.modes = _modes(self.monitor, self.mode)
        self.best: dict[str, list[tuple[float, int]]] = {metric: [] for metric in self.modes}
        """For each metric the best values with the iterations that had them, the best first."""

    @classmethod
    def check_arguments(cls, args: Mapping[str, Any]) -> None:
        _modes(args.get("monitor"), args.get("mode"))

    def after_train_epoch(self, run: Run) -> None:
        run.save_checkpoint("last", keep=self.keep)

    after_train_iter = after_train_epoch

    def after_val(self, run: Run) -> None:
        for metric, mode in self.modes.items():
            value, sign = run.metric(metric), -1 if mode == "max" else 1
            best = self.best[metric]
            rank = bisect([sign * other for other, _ in best], sign * value)
            if rank == self.top or math.isnan(value):
                continue
            best.insert(rank, (value, run.iter))
            del best[self.top :]
            first = "best" if len(self.modes) == 1 else f"best-{metric.replace('/', '_')}"
            names = [first, *(f"{first}-{k}" for k in range(2, self.top + 1))]
            down = {names[k]: best[k][1] for k in range(rank + 1, len(best))}
            run.save_checkpoint(names[rank], moved=down, keep=self.keep)

    def on_exception(self, run: Run) -> None:
        run.save_checkpoint("exception")

    def state_dict(self) -> dict[str, Any]:
        return {"best": {metric: list(best) for metric, best in self.best.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best |= {metric: best[: self.top] for metric, best in state["best"].items() if metric in self.best}


def _modes(monitor: str | dict[str, Mode] | None, mode: Mode | None) -> dict[str, Mode]:
    if isinstance(monitor, str):
        return {monitor: mode_of(monitor, mode)}
    return monitor or {}
