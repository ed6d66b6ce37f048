"""Statistics of parameters (`param_stats`) and of activations (`activation_stats`)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from hookflow.hooks.base import Hook, Slots
from hookflow.hooks.globs import matching, named_parameters, require_matches
from hookflow.hooks.tensors import first_tensor, full

if TYPE_CHECKING:
    from torch import Tensor, nn

    from hookflow.hooks.run import Run


Stat = Literal["mean", "std", "norm", "min", "max"]


@dataclass(eq=False)
class ParamStats(Hook):
    """Logs statistics of each parameter, `param/<name>/<statistic>`, and a histogram of its values if asked for.

    The `std` is that of the population, the `norm` Euclidean. They are computed and stay on the device, so that nothing
    waits. A network has many parameters: give it `every`. A sharded parameter is gathered for it.
    """

    phase = "late"
    reads = ("model",)

    match: Annotated[tuple[str, ...], Field(min_length=1, description="globs over the names of parameters")] = ("*",)
    stats: Annotated[tuple[Stat, ...], Field(description="what to log of each")] = ("mean", "std", "norm")
    histogram: Annotated[bool, Field(description="log the distribution of the values, too")] = False

    def before_train(self, run: Run) -> None:
        require_matches(self.match, named_parameters(run.model), "parameter of the network")

    def after_train_iter(self, run: Run) -> None:
        for name, parameter in matching(named_parameters(run.model), self.match).items():
            values = full(parameter.detach())
            for stat, value in statistics(values, self.stats).items():
                run.log(f"param/{name}/{stat}", value)
            if self.histogram:
                run.log_histogram(f"param/{name}", values)


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

    def before_run(self, run: Run) -> None:
        self.names = {id(module): name or "model" for name, module in run.model.named_modules()}

    def forward(self, run: Run, module: nn.Module, output: Any) -> None:
        values = first_tensor(output)
        if values is not None and values.is_floating_point():
            for stat, value in statistics(values.detach(), ("mean", "std", "zeros")).items():
                run.log(f"activation/{self.names[id(module)]}/{stat}", value)


def statistics(values: Tensor, of: Collection[str]) -> dict[str, Tensor]:
    """Return statistics of a tensor's values as tensors of no dimensions, float32 or better."""
    import torch

    wide = values if values.dtype == torch.float64 else values.float()
    compute = {
        "mean": torch.mean,
        "std": lambda tensor: torch.std(tensor, correction=0),
        "norm": torch.linalg.vector_norm,
        "min": torch.amin,
        "max": torch.amax,
        "zeros": lambda tensor: (tensor == 0).to(tensor.dtype).mean(),
    }
    return {stat: compute[stat](wide) for stat in of}
