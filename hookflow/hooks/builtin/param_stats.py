"""Parameter statistics: where the weights are, and how they are spread."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from hookflow.hooks.base import Hook
from hookflow.hooks.globs import matching, named_parameters, require_matches
from hookflow.hooks.tensors import full

if TYPE_CHECKING:
    from torch import Tensor

    from hookflow.hooks.run import Run


Stat = Literal["mean", "std", "norm", "min", "max"]


class ParamStats(Hook):
    """Logs statistics of each parameter, `param/<name>/<statistic>`, and a histogram of its values if asked for.

    The `std` is that of the population, the `norm` Euclidean. They are computed and stay on the device, so that nothing
    waits. A network has many parameters: give it `every`. A sharded parameter is gathered for it.
    """

    phase = "late"
    reads = ("model",)

    def __init__(
        self,
        match: Annotated[list[str], Field(min_length=1, description="globs over the names of parameters")] = ["*"],  # noqa: B006  # it is read, never changed
        stats: Annotated[list[Stat], Field(description="what to log of each")] = ["mean", "std", "norm"],  # noqa: B006  # it is read, never changed
        histogram: Annotated[bool, Field(description="log the distribution of the values, too")] = False,
    ) -> None:
        self.match = match
        self.stats = stats
        self.histogram = histogram

    def before_train(self, run: Run) -> None:
        require_matches(self.match, named_parameters(run.model), "parameter of the network")

    def after_train_iter(self, run: Run) -> None:
        for name, parameter in matching(named_parameters(run.model), self.match).items():
            values = full(parameter.detach())
            for stat, value in statistics(values, self.stats).items():
                run.log(f"param/{name}/{stat}", value)
            if self.histogram:
                run.log_histogram(f"param/{name}", values)


def statistics(values: Tensor, of: Collection[Stat]) -> dict[str, Tensor]:
    """Return statistics of a tensor's values as tensors of no dimensions, float32 or better."""
    import torch

    wide = values if values.dtype == torch.float64 else values.float()
    compute = {
        "mean": torch.mean,
        "std": lambda tensor: torch.std(tensor, correction=0),
        "norm": torch.linalg.vector_norm,
        "min": torch.amin,
        "max": torch.amax,
    }
    return {stat: compute[stat](wide) for stat in of}
