"""Log: writes the scalars of the training into the run record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from hookflow.hooks.base import Hook

if TYPE_CHECKING:
    from hookflow.hooks.run import Run


class Log(Hook):
    """Logs the loss, every other single number among the task's outputs, and the learning rate.

    The rate is that of the last parameter group, which holds what the pipeline gives no group of its own; several
    optimizers have one each, `lr/<name>`.

    Numbers that live on the device are copied over later by somebody who may wait; the training does not. Where
    several processes train together, an output is the mean over the examples of all of them.
    """

    phase = "late"
    reads = ("outputs", "lr")

    def __init__(
        self,
        only: Annotated[
            list[str] | None, Field(description="the outputs to log; all single numbers if left out")
        ] = None,
    ) -> None:
        self.only = only

    def after_train_iter(self, run: Run, outputs: dict[str, Any]) -> None:
        numbers = {
            name: value
            for name, value in outputs.items()
            if (name in self.only if self.only is not None else _is_number(value))
        }
        for name, value in (numbers if run.world == 1 else _over_ranks(run, numbers)).items():
            run.log(name, value)
        for name, optimizer in run.optimizers.items():
            run.log("lr" if len(run.optimizers) == 1 else f"lr/{name}", optimizer.param_groups[-1]["lr"])


def _over_ranks(run: Run, numbers: dict[str, Any]) -> dict[str, Any]:
    """Return the mean of each number over the examples of all ranks, of which each has given the mean over its own."""
    import torch

    def on_device(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.detach().to(run.device, torch.float64, non_blocking=True).reshape(())
        return torch.full((), value, dtype=torch.float64, device=run.device)

    here = torch.stack([*map(on_device, numbers.values()), on_device(1.0)])
    there = run.sum(here * run.batch_size)
    return dict(zip(numbers, (there[:-1] / there[-1]).unbind(), strict=True))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) or getattr(value, "ndim", None) == 0
