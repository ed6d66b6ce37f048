"""Pruning: weights that stay zero, chosen by magnitude on a schedule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from hookflow.errors import Problem, UserError
from hookflow.hooks.base import Hook, Slots
from hookflow.hooks.builtin.schedules import Progress, iterations
from hookflow.hooks.globs import matching, named_parameters, require_matches

if TYPE_CHECKING:
    from torch import Tensor

    from hookflow.hooks.run import Run


@dataclass(eq=False)
class Prune(Hook):
    """Prunes the weights of smallest magnitude, more and more of them from `begin` to `end`, and keeps them zero.

    The masks are those of `torch.nn.utils.prune`: `global_unstructured` with `L1Unstructured`, or `l1_unstructured` of
    each parameter. The share grows by the cubic schedule of Zhu and Gupta, "To prune, or not to prune" (2017).
    Parameters keep their names, so that a checkpoint loads into the plain network; the masks are the hook's state.
    Pruned weights have no gradient. On FSDP's shards the hook is refused.
    """

    # It masks gradients before clipping and norms see them, and weights before averages take them.
    phase = "early"
    reads: ClassVar[Slots] = {"after_optimizer_step": ("model",)}
    writes: ClassVar[Slots] = {"after_backward": ("grads",), "after_optimizer_step": ("model",)}

    params: Annotated[list[str], Field(min_length=1, description="globs over parameters", examples=[["*.weight"]])]
    amount: Annotated[float, Field(gt=0, lt=1, description="the share that is zero in the end")] = 0.5
    begin: Annotated[Progress, Field(description='when it begins: 0, 100, "100it", "2ep", "30%" of the run')] = 0
    end: Annotated[Progress, Field(description="when the share is reached")] = "50%"
    every: Annotated[int, Field(ge=1, description="iterations between two choices of weights")] = 100
    scope: Annotated[Literal["global", "layer"], Field(description="which weights are compared")] = "global"

    def __post_init__(self) -> None:
        self.masks: dict[str, Tensor] = {}
        self.chosen_at = -1
        """The iterations done when the masks were chosen."""

    def before_train(self, run: Run) -> None:
        there = named_parameters(run.model)
        require_matches(self.params, there, "parameter")
        self.pruned = matching(there, self.params)
        if any(hasattr(parameter, "full_tensor") for parameter in self.pruned.values()):
            raise UserError(Problem(f'hook "{self.name}" prunes whole parameters, and FSDP has sharded them'))
        self.first, self.last = iterations(self.begin, run), iterations(self.end, run)
        if self.last < self.first:
            message = f'hook "{self.name}" would end at iteration {self.last}, before it begins at {self.first}'
            raise UserError(Problem(message))
        self.masks = {name: mask.to(self.pruned[name].device) for name, mask in self.masks.items()}

    def after_backward(self) -> None:
        for name, mask in self.masks.items():
            gradient = self.pruned[name].grad
            if gradient is not None:
                gradient.mul_(mask)

    def after_optimizer_step(self, run: Run) -> None:
        done = run.iter + 1
        place = min(done, self.last)
        if place < self.last:
            place -= (place - self.first) % self.every
        self._mask()  # before a choice, too: momentum moves pruned weights, and the choice must see zeros
        if place >= self.first and place > self.chosen_at:
            self.chosen_at = place
            self.masks = self.choose(self.amount_at(place))
            self._mask()

    def _mask(self) -> None:
        import torch

        with torch.no_grad():
            for name, mask in self.masks.items():
                self.pruned[name].mul_(mask)

    def amount_at(self, done: int) -> float:
        """Return the share that is zero after so many iterations, within the schedule."""
        left = (self.last - done) / max(self.last - self.first, 1)
        return self.amount * (1 - left**3)

    def choose(self, amount: float) -> dict[str, Tensor]:
        """Return masks, 0 at the weights of smallest magnitude; zeros come first, so that what is pruned stays so."""
        import torch
        from torch.nn.utils.prune import L1Unstructured

        flat = {name: parameter.detach().flatten() for name, parameter in self.pruned.items()}
        weights = [torch.cat([*flat.values()])] if self.scope == "global" else [*flat.values()]
        method: Any = L1Unstructured(amount)  # PyTorch has no types for it
        masks: Tensor = torch.cat([method.compute_mask(each, torch.ones_like(each)) for each in weights])
        parts = torch.split(masks, [each.numel() for each in flat.values()])
        return {name: part.view_as(self.pruned[name]) for name, part in zip(flat, parts, strict=True)}

    def state_dict(self) -> dict[str, Any]:
        return {"masks": {name: mask.bool() for name, mask in self.masks.items()}, "chosen_at": self.chosen_at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.masks, self.chosen_at = dict(state["masks"]), state["chosen_at"]
