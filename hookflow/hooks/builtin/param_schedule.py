"""Schedules of momentum and weight decay over the run, beside those of the learning rate."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field

from hookflow.errors import Problem, UserError
from hookflow.hooks.base import Hook, Slots
from hookflow.hooks.builtin.amounts import Progress, at_iterations, eased

if TYPE_CHECKING:
    from hookflow.hooks.run import Run


Shape = Literal["linear", "cosine", "constant"]


def _not_negative(values: list[tuple[int | str, float]]) -> list[tuple[int | str, float]]:
    for _, value in values:
        if value < 0:
            raise ValueError(f"{value} is below zero")
    return values


Values = Annotated[list[tuple[Progress, float]], Field(min_length=1), AfterValidator(_not_negative)]
"""What a setting is when so much of the run is done: [[0, 0.95], ["30%", 0.85], ["100%", 0.95]]."""


class ParamSchedule(Hook):
    """Schedules momentum and weight decay: interpolates between values at iterations, epochs or shares of the run.

    Between two places a value goes from one to the other by `shape`; before the first place and after the last it
    stays. Momentum is `betas[0]` of optimizers that have those, as with `torch.optim.lr_scheduler.OneCycleLR`. A
    parameter group that began with a weight decay of 0 keeps that: those are the biases and the norms. The values
    depend on nothing but the iteration, so a resumed run needs no state to go on exactly.
    """

    reads: ClassVar[Slots] = ("optimizer",)
    writes: ClassVar[Slots] = dict.fromkeys(("before_train", "before_train_iter"), ("optimizer",))

    def __init__(
        self,
        momentum: Annotated[
            Values | None,
            Field(description="its values, each at its place", examples=[[[0, 0.95], ["30%", 0.85], ["100%", 0.95]]]),
        ] = None,
        weight_decay: Annotated[Values | None, Field(description='its values: [[0, 0.04], ["100%", 0.4]]')] = None,
        shape: Annotated[Shape, Field(description="the way from one value to the next")] = "cosine",
        optimizer: Annotated[str | None, Field(description="which of several optimizers; all if left out")] = None,
    ) -> None:
        if momentum is None and weight_decay is None:
            hint = 'e.g. weight_decay = [[0, 0.04], ["100%", 0.4]]'
            raise UserError(Problem("neither momentum nor weight_decay is given", hint=hint))
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.shape = shape
        self.optimizer = optimizer
        self.schedules: dict[str, list[tuple[int, float]]] = {}
        """The places in iterations, with their values, by setting."""

    def before_run(self, run: Run) -> None:
        for name, group in self._groups(run):
            if self.momentum is not None and not ("momentum" in group or "betas" in group):
                raise _has_no(name, "momentum")
            if self.weight_decay is not None and "weight_decay" not in group:
                raise _has_no(name, "weight decay")

    def before_train(self, run: Run) -> None:
        given = {"momentum": self.momentum, "weight_decay": self.weight_decay}
        self.schedules = {
            name: at_iterations(name, values, run) for name, values in given.items() if values is not None
        }
        for _, group in self._groups(run) if self.weight_decay is not None else ():
            group.setdefault("initial_weight_decay", group["weight_decay"])  # after a checkpoint has been loaded

    def before_train_iter(self, run: Run) -> None:
        now = {name: value_at(run.iter, places, self.shape) for name, places in self.schedules.items()}
        for _, group in self._groups(run):
            if "momentum" in now:
                if "betas" in group:
                    group["betas"] = (now["momentum"], *group["betas"][1:])
                else:
                    group["momentum"] = now["momentum"]
            if "weight_decay" in now and group["initial_weight_decay"]:
                group["weight_decay"] = now["weight_decay"]

    def _groups(self, run: Run) -> list[tuple[str, dict[str, Any]]]:
        """Return the parameter groups, each with the name of its optimizer."""
        chosen = run.optimizers if self.optimizer is None else [self.optimizer]
        return [(name, group) for name in chosen for group in run.optimizers[name].param_groups]


def _has_no(optimizer: str, setting: str) -> UserError:
    said = f'the optimizer "{optimizer}" has no {setting}'
    return UserError(Problem(said, hint='name one that has: args = { optimizer = "…" }'))


def value_at(done: int, places: Sequence[tuple[int, float]], shape: Shape) -> float:
    """Return the value of the iteration before which `done` are done, by the values at some places, in order."""
    after = bisect_right(places, done, key=lambda place: place[0])
    if after == 0:
        return places[0][1]
    begin, value = places[after - 1]
    if after == len(places) or shape == "constant":
        return value
    end, target = places[after]
    way = (done - begin) / (end - begin)
    return value + (target - value) * eased(way, shape)
