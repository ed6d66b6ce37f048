"""An exponential moving average of the weights (B. Polyak and A. Juditsky, 1992), used wherever the model is judged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from hookflow.hooks.base import Hook, Slots
from hookflow.hooks.shards import local, shard_like

if TYPE_CHECKING:
    from hookflow.hooks.run import Run


class EMA(Hook):
    """Averages the weights (and floating-point buffers) after each optimizer step; validates and tests the average.

    The average starts as a copy of the weights and, so that it soon forgets them, at step n moves by no less than
    1 / (n + 1). A checkpoint keeps it as `model_<hook's name>`, a plain state_dict beside the trained weights.

    Where there are several models it averages all of them, or `model` alone; at each step of an optimizer of theirs.
    """

    reads: ClassVar[Slots] = {
        **dict.fromkeys(("before_train", "after_optimizer_step", "around_val", "around_test"), ("model.{model}",)),
        "before_save_checkpoint": ("model.{model}",),
        "after_load_checkpoint": ("checkpoint.model_{name}",),
    }
    writes: ClassVar[Slots] = {
        "around_val": ("model.{model}",),
        "around_test": ("model.{model}",),
        "before_save_checkpoint": ("checkpoint.model_{name}",),
    }

    def __init__(
        self,
        decay: Annotated[float, Field(gt=0, lt=1, description="share of the average that a step keeps")] = 0.999,
        every: Annotated[int, Field(ge=1, description="iterations between two updates")] = 1,
        model: Annotated[str | None, Field(description="which of several models; all of them if left out")] = None,
    ) -> None:
        self.decay = decay
        self.every = every
        self.model = model
        self.updates = 0
        self.average: dict[str, Any] = {}
        self.averages: list[Any] = []
        self.weights: list[Any] = []

    def before_train(self, run: Run) -> None:
        weights = _floating(self._model(run))
        if not self.average:
            self.average = {name: tensor.clone() for name, tensor in weights.items()}
        self.average = {name: shard_like(tensor, weights[name]) for name, tensor in self.average.items()}
        self.averages = [local(tensor) for tensor in self.average.values()]
        self.weights = [local(weights[name]) for name in self.average]

    def after_optimizer_step(self, run: Run) -> None:
        if (run.iter + 1) % self.every or run.stepped(self.model) is None:
            return
        import torch

        self.updates += 1
        weight = max(1 - self.decay, 1 / (self.updates + 1))
        with torch.no_grad():
            torch._foreach_lerp_(self.averages, self.weights, weight)

    def around_val(self, run: Run) -> Iterator[None]:
        self._swap(run)
        yield
        self._swap(run)

    around_test = around_val

    def before_save_checkpoint(self, run: Run, checkpoint: dict[str, Any]) -> None:
        checkpoint[f"model_{self.name}"] = dict(self._model(run).state_dict()) | self.average

    def after_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        saved = checkpoint.get(f"model_{self.name}")
        if saved:
            self.average = {name: tensor.clone() for name, tensor in saved.items() if tensor.is_floating_point()}

    def state_dict(self) -> dict[str, Any]:
        return {"updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.updates = state["updates"]

    def _model(self, run: Run) -> Any:
        return run.model if self.model is None else run.models[self.model]

    def _swap(self, run: Run) -> None:
        """Exchange the weights with their average, in place: whoever holds the tensors sees the other ones."""
        weights = _floating(self._model(run))
        for name, tensor in self.average.items():
            weight, average = local(weights[name]), local(tensor)
            kept = weight.clone()
            weight.copy_(average)
            average.copy_(kept)


def _floating(model: Any) -> dict[str, Any]:
    """Return the floating-point tensors of the model, which share their memory with it."""
    return {name: tensor for name, tensor in model.state_dict().items() if tensor.is_floating_point()}
