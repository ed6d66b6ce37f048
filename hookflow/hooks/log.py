"""Log: writes the scalars of the training into the run record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from hookflow.hooks.base import Hook, Slots
from hookflow.hooks.means import EpochSums, Window, on_device, over_ranks

if TYPE_CHECKING:
    from hookflow.hooks.run import Run


class Log(Hook):
    """Logs the loss, every other single number among the task's outputs, and the learning rate.

    The rate is that of the last parameter group, which holds what the pipeline gives no group of its own; several
    optimizers have one each, `lr/<name>`.

    `window` and `mean` make means over iterations, of which none is left out, whatever `every` says of when they are
    logged. Each example counts alike, with gradient accumulation and over several processes too. An epoch's mean is
    logged when the epoch is done, as `<name>_epoch`. A resumed run logs the means of one that was never interrupted.

    Numbers that live on the device are copied over later by somebody who may wait; the training does not. Where
    several processes train together, an output is the mean over the examples of all of them.
    """

    phase = "late"
    points = ("after_train_iter",)
    reads: ClassVar[Slots] = {"after_train_iter": ("batch", "outputs", "lr")}

    def __init__(
        self,
        only: Annotated[
            list[str] | None, Field(description="the outputs to log; all single numbers if left out")
        ] = None,
        window: Annotated[
            int | None,
            Field(ge=1, description="log the mean over the last so many iterations, in place of the newest value"),
        ] = None,
        mean: Annotated[
            Literal["epoch"] | None, Field(description='"epoch" logs the mean over each epoch too, at its end')
        ] = None,
    ) -> None:
        self.only = only
        self.window = Window(window) if window else None
        self.epoch = EpochSums() if mean else None
        if self.window or self.epoch:
            self.watches = {"after_train_iter": self.add}

    @classmethod
    def points_for(cls, args: Mapping[str, Any]) -> tuple[str, ...]:
        return (*cls.points, "after_train_epoch") if args.get("mean") else cls.points

    def add(self, run: Run, outputs: dict[str, Any]) -> None:
        """Take in what an iteration has given, logged or not."""
        numbers = {name: on_device(value, run.device) for name, value in self._picked(outputs).items()}
        examples = run.batch_size or 1  # where nobody knows, each batch counts alike
        if self.window:
            self.window.add(run.iter, numbers, examples)
        if self.epoch:
            self.epoch.add(run.epoch, numbers, examples)

    def after_train_iter(self, run: Run, outputs: dict[str, Any]) -> None:
        for name, value in self._newest(run, outputs).items():
            run.log(name, value)
        for name, optimizer in run.optimizers.items():
            run.log("lr" if len(run.optimizers) == 1 else f"lr/{name}", optimizer.param_groups[-1]["lr"])

    def after_train_epoch(self, run: Run) -> None:
        if self.epoch:
            for name, value in over_ranks(run, self.epoch.sums()).items():
                run.log(f"{name}_epoch", value)

    def _newest(self, run: Run, outputs: dict[str, Any]) -> Mapping[str, Any]:
        if self.window:
            return over_ranks(run, self.window.sums())
        numbers = self._picked(outputs)
        if run.world == 1:
            return numbers
        size = run.batch_size
        return over_ranks(run, {name: (on_device(value, run.device) * size, size) for name, value in numbers.items()})

    def _picked(self, outputs: dict[str, Any]) -> dict[str, Any]:
        return {
            name: value
            for name, value in outputs.items()
            if (name in self.only if self.only is not None else _is_number(value))
        }

    def state_dict(self) -> dict[str, Any]:
        means = {"window": self.window, "epoch": self.epoch}
        return {name: one.state_dict() for name, one in means.items() if one}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, one in (("window", self.window), ("epoch", self.epoch)):
            if one and name in state:
                one.load_state_dict(state[name])


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) or getattr(value, "ndim", None) == 0
