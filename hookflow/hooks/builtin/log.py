"""Log: writes the scalars of the training into the run record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from hookflow.hooks.base import Hook, Slots
from hookflow.hooks.builtin.means import EpochSums, Window, on_device, over_ranks

if TYPE_CHECKING:
    from hookflow.hooks.run import Run


class Log(Hook):
    """Logs the loss, every other single number among the task's outputs, and the learning rate.

    When it fires, it logs the newest value of each output since it last fired: not every iteration may return it. The
    end of the run warns of an output that was never logged.

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
        self.newest: dict[str, tuple[Any, int]] = {}
        """The newest value of each name since the last firing, and the examples that it is of."""
        self.logged: set[str] = set()
        self.watches = {"after_train_iter": self.add}

    @classmethod
    def points_for(cls, args: Mapping[str, Any]) -> tuple[str, ...]:
        return (*cls.points, "after_train_epoch") if args.get("mean") else cls.points

    def add(self, run: Run, outputs: dict[str, Any]) -> None:
        """Take in what an iteration has given, logged or not."""
        picked = self._picked(outputs)
        examples = run.batch_size or 1  # where nobody knows, each batch counts alike
        for name, value in picked.items():
            self.newest[name] = value.detach() if hasattr(value, "detach") else value, examples
        if not (self.window or self.epoch):
            return
        numbers = {name: on_device(value, run.device) for name, value in picked.items()}
        if self.window:
            self.window.add(run.iter, numbers, examples)
        if self.epoch:
            self.epoch.add(run.epoch, numbers, examples)

    def after_train_iter(self, run: Run, outputs: dict[str, Any]) -> None:  # `add` is given the same arguments
        for name, value in self._means(run).items():
            run.log(name, value)
        self.logged |= self.newest.keys()
        self.newest = {}
        for name, optimizer in run.optimizers.items():
            run.log("lr" if len(run.optimizers) == 1 else f"lr/{name}", optimizer.param_groups[-1]["lr"])

    def after_train_epoch(self, run: Run) -> None:
        if self.epoch:
            for name, value in over_ranks(run, self.epoch.sums()).items():
                run.log(f"{name}_epoch", value)
                self.logged.add(name)

    def complaints(self) -> Iterator[str]:
        """Yield a line for each output that was never logged, although others were."""
        for name in self.newest if self.logged else ():
            if name not in self.logged:
                yield f'the hook "{self.name}" never logged the output "{name}" of the task: let it fire more often'

    def _means(self, run: Run) -> Mapping[str, Any]:
        """Return what is logged of each name that an iteration has given since the last firing."""
        if self.window:
            return over_ranks(run, self.window.sums(self.newest))
        if run.world == 1:
            return {name: value for name, (value, _) in self.newest.items()}
        return over_ranks(
            run, {name: (on_device(value, run.device) * size, size) for name, (value, size) in self.newest.items()}
        )

    def _picked(self, outputs: dict[str, Any]) -> dict[str, Any]:
        return {
            name: value
            for name, value in outputs.items()
            if (name in self.only if self.only is not None else _is_number(value))
        }

    def state_dict(self) -> dict[str, Any]:
        means = {"window": self.window, "epoch": self.epoch}
        states = {name: one.state_dict() for name, one in means.items() if one}
        newest = {name: list(one) for name, one in self.newest.items()}
        return {**states, "newest": newest, "logged": sorted(self.logged)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, one in (("window", self.window), ("epoch", self.epoch)):
            if one and name in state:
                one.load_state_dict(state[name])
        self.newest = {name: (value, size) for name, (value, size) in state.get("newest", {}).items()}
        self.logged = set(state.get("logged", ()))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) or getattr(value, "ndim", None) == 0
