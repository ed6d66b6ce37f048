"""Averages of the weights: `ema` and `swa`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from hookflow.hooks.base import Hook, Slots
from hookflow.hooks.builtin.metrics import latest
from hookflow.hooks.builtin.schedules import Progress, iterations
from hookflow.hooks.tensors import local, shard_like
from hookflow.metric_mode import MODE_MEANING, Mode, mode_of

if TYPE_CHECKING:
    from torch import Tensor, nn

    from hookflow.hooks.run import Run


READS = {
    **dict.fromkeys(("before_train", "around_test", "before_save_checkpoint"), ("model.{model}",)),
    "around_val": ("model.{model}", "metrics.{monitor?}"),
    "after_load_checkpoint": ("checkpoint.model_{name}",),
}
WRITES = dict.fromkeys(("around_val", "around_test"), ("model.{model}",))
WRITES["before_save_checkpoint"] = ("checkpoint.model_{name}",)
"""The slots of every average; a subclass adds those of the method that moves it."""


@dataclass(eq=False, kw_only=True)
class Average(Hook):
    """An average of the floating-point weights and buffers, from `begin` on; a subclass says how it moves.

    Until there is an average, the weights themselves are validated and tested.
    """

    begin: Annotated[Progress, Field(description='when the average starts: 0, 1000, "5ep", "10%" of the run')] = 0
    model: Annotated[str | None, Field(description="which of several models; all of them if left out")] = None
    monitor: Annotated[str | None, Field(description="the validation metric for the checkpoint best-<name>")] = None
    mode: Annotated[Mode | None, Field(description=MODE_MEANING)] = None

    def __post_init__(self) -> None:
        self.first = 0
        """The iterations that are done when the average begins."""
        self.modes = {} if self.monitor is None else {self.monitor: mode_of(self.monitor, self.mode)}
        self.best: float | None = None
        self.updates = 0
        self.average: dict[str, Tensor] = {}
        self.averages: list[Tensor] = []
        """The local tensors of the average, in the order of `weights`."""
        self.weights: list[Tensor] = []

    @classmethod
    def check_arguments(cls, args: Mapping[str, Any]) -> None:
        if args.get("monitor") is not None:
            mode_of(args["monitor"], args.get("mode"))

    def before_train(self, run: Run) -> None:
        self.first = iterations(self.begin, run)
        if self.average:
            self._hold(run)

    def start(self, run: Run) -> None:
        """Let the average be a copy of the weights."""
        self.average = {name: tensor.clone() for name, tensor in _floating(self.network(run)).items()}
        self._hold(run)

    def move(self, weight: float) -> None:
        """Move the average towards the weights, by this share of the way."""
        import torch

        self.updates += 1
        with torch.no_grad():
            torch._foreach_lerp_(self.averages, self.weights, weight)

    def around_test(self, run: Run) -> Iterator[None]:
        self._swap(run)
        try:
            yield
        finally:
            self._swap(run)

    def around_val(self, run: Run) -> Iterator[None]:
        before = run.metrics
        yield from self.around_test(run)
        if not self.average or run.metrics is before:  # a signal has cut the pass short
            return
        for metric, mode in self.modes.items():
            value, sign = latest(run, metric), 1 if mode == "max" else -1
            if value is not None and not math.isnan(value) and (self.best is None or sign * value > sign * self.best):
                self.best = value
                run.save_checkpoint(f"best-{self.name}")

    def before_save_checkpoint(self, run: Run, checkpoint: dict[str, Any]) -> None:
        if self.average:
            model = self.network(run)
            first = _first_names(model)
            averaged = {name: self.average[item] for name, item in first.items() if item in self.average}
            checkpoint[f"model_{self.name}"] = dict(model.state_dict()) | averaged

    def after_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if saved := checkpoint.get(f"model_{self.name}"):
            self.average = {name: value.clone() for name, value in saved.items() if _is_floating(value)}

    def state_dict(self) -> dict[str, Any]:
        return {"updates": self.updates, "best": self.best}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.updates, self.best = state["updates"], state["best"]

    def network(self, run: Run) -> nn.Module:
        return run.model if self.model is None else run.models[self.model]

    def _hold(self, run: Run) -> None:
        weights = _floating(self.network(run))
        self.average = {name: shard_like(self.average[name], weight) for name, weight in weights.items()}
        self.averages = [local(tensor) for tensor in self.average.values()]
        self.weights = [local(weight) for weight in weights.values()]

    def _swap(self, run: Run) -> None:
        """Exchange the weights with their average in place: all references to the tensors see the other values."""
        for name, tensor in (_floating(self.network(run)) if self.average else {}).items():
            weight, average = local(tensor), local(self.average[name])
            kept = weight.clone()
            weight.copy_(average)
            average.copy_(kept)


def _floating(model: nn.Module) -> dict[str, Tensor]:
    """Return the floating-point tensors of the model, which share their memory with it: each once."""
    state = model.state_dict()
    return {name: state[name] for name in dict.fromkeys(_first_names(model).values())}


def _first_names(model: nn.Module) -> dict[str, str]:
    """Return the first name of each floating-point tensor of the model, by every name that it has: weights are tied."""
    first: dict[int, str] = {}
    state = model.state_dict(keep_vars=True).items()
    return {name: first.setdefault(id(value), name) for name, value in state if _is_floating(value)}


def _is_floating(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor) and value.is_floating_point()


@dataclass(eq=False)
class EMA(Average):
    """Averages the weights (and floating-point buffers) after each optimizer step; validates and tests the average.

    The average starts as a copy of the weights when `begin` is reached. Its momentum is annealed so that it soon
    forgets them: at step n it moves by no less than `gamma` / (`gamma` + n). Before `begin` the weights themselves are
    validated. A checkpoint keeps the average as `model_<hook's name>`, a plain state_dict beside the trained weights.

    Where there are several models it averages all of them, or `model` alone; at each step of an optimizer of theirs.
    """

    settable = ("decay", "every")
    reads: ClassVar[Slots] = {**READS, "after_optimizer_step": ("model.{model}",)}
    writes: ClassVar[Slots] = WRITES

    decay: Annotated[float, Field(gt=0, lt=1, description="share of the average that a step keeps")] = 0.999
    every: Annotated[int, Field(ge=1, description="iterations between two updates")] = 1
    gamma: Annotated[float, Field(ge=0, description="how slowly the momentum reaches 1 - decay; 0: at once")] = 1.0

    def before_train(self, run: Run) -> None:
        super().before_train(run)
        if not self.average and self.first == 0:
            self.start(run)

    def after_optimizer_step(self, run: Run) -> None:
        if not self.average:
            if run.iter + 1 >= self.first:
                self.start(run)
        elif (run.iter + 1) % self.every == 0 and run.stepped(self.model) is not None:
            self.move(max(1 - self.decay, self.gamma / (self.gamma + self.updates + 1)))


@dataclass(eq=False)
class SWA(Average):
    """Averages the weights, one sample every `every` from `begin` on; validates and tests the average.

    Buffers are those of the last sample, so that the statistics of batch norms are not those of the mean: let
    `precise_bn` estimate them anew before each validation. A checkpoint keeps the mean as `model_<hook's name>`. For a
    constant rate while it samples, end the chain of `scheduler` with `torch.optim.swa_utils:SWALR`.
    """

    phase = "late"  # beside `ema`, its average is the inner one
    reads: ClassVar[Slots] = {**READS, "after_train_iter": ("model.{model}",)}
    writes: ClassVar[Slots] = WRITES

    begin: Annotated[Progress, Field(description='when sampling begins: 0, 1000, "5ep", "75%" of the run')] = "75%"
    every: Annotated[Progress, Field(description='how often it samples: 100, "1ep", "1%" of the run')] = "1ep"

    def before_train(self, run: Run) -> None:
        super().before_train(run)
        self.period = max(1, iterations(self.every, run))

    def after_train_iter(self, run: Run) -> None:
        """Sample the weights, once an iteration however many optimizers step in it."""
        if run.iter <= self.first or run.iter % self.period:
            return
        if not self.average:
            self.start(run)
            self.updates = 1
        else:
            self.move(1 / (self.updates + 1))
            for name, buffer in self.network(run).named_buffers():
                if name in self.average:
                    local(self.average[name]).copy_(local(buffer))
