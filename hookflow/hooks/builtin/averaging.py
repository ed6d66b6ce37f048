"""What hooks have in common that keep an average of the weights and evaluate it in their place."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from hookflow.hooks.base import Hook
from hookflow.hooks.builtin.amounts import iterations
from hookflow.hooks.tensors import local, shard_like
from hookflow.metric_mode import Mode, mode_of

if TYPE_CHECKING:
    from torch import Tensor, nn

    from hookflow.hooks.run import Run


READS = {
    **dict.fromkeys(("before_train", "around_test", "before_save_checkpoint"), ("model.{model}",)),
    "around_val": ("model.{model}", "metrics.{monitor}"),
    "after_load_checkpoint": ("checkpoint.model_{name}",),
}
WRITES = {
    **dict.fromkeys(("around_val", "around_test"), ("model.{model}",)),
    "before_save_checkpoint": ("checkpoint.model_{name}",),
}
"""The slots of every average; a subclass adds those of the method that moves it."""


class Average(Hook):
    """An average of the floating-point weights and buffers, from `begin` on; a subclass says how it moves.

    Until there is an average, the weights themselves are validated and tested.
    """

    def __init__(self, begin: int | str, model: str | None, monitor: str | None, mode: Mode | None) -> None:
        self.begin = begin
        self.first = 0
        """The iterations that are done when the average begins."""
        self.model = model
        self.modes = {} if monitor is None else {monitor: mode_of(monitor, mode)}
        self.best: float | None = None
        self.updates = 0
        self.average: dict[str, Tensor] = {}
        self.averages: list[Tensor] = []
        self.weights: list[Tensor] = []

    @classmethod
    def check_arguments(cls, args: Mapping[str, Any]) -> None:
        if args.get("monitor") is not None:
            mode_of(args["monitor"], args.get("mode"))

    @classmethod
    def slot_keys(cls, args: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**args, "monitor": args.get("monitor") or ()}

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

    def around_val(self, run: Run) -> Iterator[None]:
        before = run.metrics
        self._swap(run)
        yield
        self._swap(run)
        if self.average and run.metrics is not before:  # they are the same when a signal has cut the pass short
            self._save_best(run)

    def around_test(self, run: Run) -> Iterator[None]:
        self._swap(run)
        yield
        self._swap(run)

    def before_save_checkpoint(self, run: Run, checkpoint: dict[str, Any]) -> None:
        if self.average:
            model = self.network(run)
            first = _first_names(model)
            averaged = {name: self.average[one] for name, one in first.items() if one in self.average}
            checkpoint[f"model_{self.name}"] = dict(model.state_dict()) | averaged

    def after_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        saved = checkpoint.get(f"model_{self.name}")
        if saved:
            self.average = {name: value.clone() for name, value in saved.items() if _is_floating(value)}

    def state_dict(self) -> dict[str, Any]:
        return {"updates": self.updates, "best": self.best}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.updates, self.best = state["updates"], state["best"]

    def network(self, run: Run) -> nn.Module:
        """Return what is averaged."""
        return run.model if self.model is None else run.models[self.model]

    def _hold(self, run: Run) -> None:
        """Keep the tensors of the average beside those of the model, in the same order."""
        weights = _floating(self.network(run))
        self.average = {name: shard_like(self.average[name], weight) for name, weight in weights.items()}
        self.averages = [local(tensor) for tensor in self.average.values()]
        self.weights = [local(weight) for weight in weights.values()]

    def _swap(self, run: Run) -> None:
        """Exchange the weights with their average, in place: whoever holds the tensors sees the other ones."""
        weights = _floating(self.network(run)) if self.average else {}
        for name, tensor in weights.items():
            weight, average = local(tensor), local(self.average[name])
            kept = weight.clone()
            weight.copy_(average)
            average.copy_(kept)

    def _save_best(self, run: Run) -> None:
        """Ask for a checkpoint when the average has never done better by the metric that it monitors."""
        for metric, mode in self.modes.items():
            value = run.metric(metric)
            sign = 1 if mode == "max" else -1
            if not math.isnan(value) and (self.best is None or sign * value > sign * self.best):
                self.best = value
                run.save_checkpoint(f"best-{self.name}")


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
    """Return whether a value of a `state_dict` is a floating-point tensor; a module's extra state may be anything."""
    import torch

    return isinstance(value, torch.Tensor) and value.is_floating_point()
