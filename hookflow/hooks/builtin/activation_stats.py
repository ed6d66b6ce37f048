"""Activation statistics: what leaves the modules of the network in training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from hookflow.hooks.base import Hook, Slots
from hookflow.hooks.tensors import first_tensor

if TYPE_CHECKING:
    from torch import Tensor, nn

    from hookflow.hooks.run import Run


class ActivationStats(Hook):
    """Logs mean, standard deviation and fraction of zeros of module outputs in training.

    They are called `activation/<name>/mean`, `…/std` (of the population) and `…/zeros` (from 0 to 1); those of the
    network itself go by `model`. `modules` says which by globs over their names; all of them if left out. If a module
    returns several tensors, the first counts, and a tensor of integers is left out. A ReLU whose share of zeros is
    nearly 1 is dead. Computed on the device, on this rank's share of the batch, so that nothing waits; while `every`
    keeps it idle, it computes nothing.
    """

    reads: ClassVar[Slots] = {"before_run": ("model",)}
    modules = ("*",)
    ranks = "zero"

    def __init__(self) -> None:
        self.names: dict[int, str] = {}

    def before_run(self, run: Run) -> None:
        self.names = {id(module): name or "model" for name, module in run.model.named_modules()}

    def forward(self, run: Run, module: nn.Module, output: Any) -> None:
        values = first_tensor(output)
        if values is not None and values.is_floating_point():
            for stat, value in statistics(values).items():
                run.log(f"activation/{self.names[id(module)]}/{stat}", value)


def statistics(values: Tensor) -> dict[str, Tensor]:
    """Return the mean, the standard deviation of the population, and the share of zeros, as float32 or better."""
    values = values.detach()
    wide = values if values.element_size() > 2 else values.float()
    return {"mean": wide.mean(), "std": wide.std(correction=0), "zeros": (wide == 0).to(wide.dtype).mean()}
