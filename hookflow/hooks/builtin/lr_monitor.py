"""LR monitor: the learning rate of each parameter group, and the momentum and weight decay if asked for."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from hookflow.hooks.base import Hook

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from hookflow.hooks.run import Run


Setting = Literal["momentum", "weight_decay"]


class LRMonitor(Hook):
    """Logs the learning rate of each parameter group as `lr/0`, `lr/1`, …, or by the group's own `name`.

    Where there are several optimizers, the optimizer's name comes first: `lr/generator/0`. What `also` names is logged
    likewise: `momentum/0`, `weight_decay/0`. The momentum of Adam and its kin is the first of their `betas`.
    """

    reads = ("lr", "optimizer")

    def __init__(
        self,
        also: Annotated[list[Setting], Field(description="further settings of each group to log")] = [],  # noqa: B006  # it is read, never changed
    ) -> None:
        self.also = also

    def after_train_iter(self, run: Run) -> None:
        for name, value in settings(run.optimizers, ("lr", *self.also)).items():
            run.log(name, value)


def settings(optimizers: Mapping[str, Optimizer], of: Collection[str] = ("lr",)) -> dict[str, Any]:
    """Return settings of every parameter group, by the names that they are logged by.

    A group that lacks one (plain SGD's parameters have no `betas`) is left out of it.
    """
    found: dict[str, Any] = {}
    for name, optimizer in optimizers.items():
        prefix = f"{name}/" if len(optimizers) > 1 else ""
        for k, group in enumerate(optimizer.param_groups):
            known = {**group, **({"momentum": group["betas"][0]} if "betas" in group else {})}
            called = f"{prefix}{group.get('name', k)}"
            found |= {f"{setting}/{called}": known[setting] for setting in of if setting in known}
    return found
