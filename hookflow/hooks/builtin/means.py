"""Sums of numbers over iterations, weighted by examples, made where the numbers are computed: nothing waits.

A number of an iteration is a mean over the examples of its batch. The mean over many is the sum of each times its
examples, over all those examples; so the ranks of a run add up theirs before they divide.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hookflow.errors import Problem, UserError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from hookflow.hooks.run import Run


Sums = Mapping[str, tuple["float | Tensor", int]]
"""By name: a sum of numbers times their examples, and the number of those examples."""


def sum_dtype(device: torch.device) -> torch.dtype:
    """Return the dtype to add up in: float64, but float32 on MPS, which has no float64."""
    import torch

    return torch.float32 if device.type == "mps" else torch.float64


def on_device(value: float | Tensor, device: torch.device) -> Tensor:
    """Return a number on the device, in the dtype to add up in."""
    import torch

    if isinstance(value, torch.Tensor):
        return value.detach().to(device, sum_dtype(device), non_blocking=True).reshape(())
    return torch.full((), value, dtype=sum_dtype(device), device=device)


class WeightedSum:
    """A sum of numbers times their weights, which stays where the numbers are computed.

    In float32 it is compensated (W. Kahan, 1965): a long sum would lose what each number adds.
    """

    def __init__(self, total: float | Tensor = 0.0, weight: int = 0, lost: float | Tensor = 0.0) -> None:
        self.total = total
        self.weight = weight
        self.lost = lost
        """The rounding error of `total`; only in float32."""

    def add(self, value: float | Tensor, weight: int) -> None:
        """Add a number; from the second on, all are on the device of the latest."""
        import torch

        self.weight += weight
        if not isinstance(value, torch.Tensor):
            self.total = self.total + value * weight
            return
        total = self.total
        if not isinstance(total, torch.Tensor) or total.device != value.device:  # after a resume it is in the host's
            total = on_device(total, value.device)
        if total.dtype is torch.float64:
            self.total = torch.add(total, value.detach(), alpha=weight)
        else:
            more = on_device(value, value.device) * weight - self.lost
            self.total = total + more
            self.lost = (self.total - total) - more

    def state_dict(self) -> list[Any]:
        return [self.total, self.weight, self.lost]


def over_ranks(run: Run, sums: Sums) -> dict[str, Tensor]:
    """Return the mean of each number over the examples of all ranks, all of which must call it with the same names."""
    import torch

    totals = [on_device(total, run.device) for total, _ in sums.values()]  # a resume loads sums into the host's memory
    if run.world == 1 or not sums:
        counts = [max(count, 1) for _, count in sums.values()]
        return {name: total / count for name, total, count in zip(sums, totals, counts, strict=True)}
    examples = [on_device(count, run.device) for _, count in sums.values()]
    summed = run.sum(torch.stack([*totals, *examples]))
    return dict(zip(sums, (summed[: len(sums)] / summed[len(sums) :]).unbind(), strict=True))


def loss_over_ranks(run: Run, outputs: Mapping[str, Any], hook: str) -> float:
    """Return the mean loss over the examples of all ranks. Raises UserError, which names the hook, without a loss."""
    if "loss" not in outputs:
        raise UserError(Problem(f'{hook} needs the output "loss" of the task'))
    examples = run.batch_size or 1
    total = on_device(outputs["loss"], run.device) * examples
    return float(over_ranks(run, {"loss": (total, examples)})["loss"])


class Window:
    """The numbers of the last `length` iterations up to the newest one that had a number of the name."""

    def __init__(self, length: int) -> None:
        self.length = length
        self._kept: dict[str, deque[tuple[int, Tensor, int]]] = {}

    def add(self, it: int, numbers: Mapping[str, Tensor], examples: int) -> None:
        """Take in the numbers of the iteration `it`, and forget those of their names that are too old."""
        for name, value in numbers.items():
            kept = self._kept.setdefault(name, deque())
            kept.append((it, value * examples, examples))
            while kept[0][0] <= it - self.length:
                kept.popleft()

    def sums(self, names: Collection[str]) -> Sums:
        """Return the sums of these names."""
        windows = {name: self._kept[name] for name in names}
        return {name: (_stacked(kept).sum(), sum(examples for *_, examples in kept)) for name, kept in windows.items()}

    def state_dict(self) -> dict[str, Any]:
        return {
            name: {
                "it": [it for it, *_ in kept],
                "total": _stacked(kept),
                "examples": [examples for *_, examples in kept],
            }
            for name, kept in self._kept.items()
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned, maybe of a window of another length."""
        self._kept = {
            name: deque(zip(kept["it"], kept["total"].unbind(), kept["examples"], strict=True))
            for name, kept in state.items()
        }


def _stacked(kept: Sequence[tuple[int, Tensor, int]]) -> Tensor:
    """Return the totals on the device of the newest one: a resume loads the others into the host's memory."""
    import torch

    device = kept[-1][1].device
    return torch.stack([total.to(device) for _, total, _ in kept])


class EpochSums:
    """The numbers of one epoch, the newest of which any was added."""

    def __init__(self) -> None:
        self._epoch = 0
        self._sums: dict[str, WeightedSum] = {}

    def add(self, epoch: int, numbers: Mapping[str, Tensor], examples: int) -> None:
        """Take in the numbers of an iteration of an epoch."""
        if epoch != self._epoch:
            self._epoch, self._sums = epoch, {}
        for name, value in numbers.items():
            self._sums.setdefault(name, WeightedSum()).add(value, examples)

    def sums(self) -> Sums:
        return {name: (item.total, item.weight) for name, item in self._sums.items()}

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self._epoch, "sums": {name: item.state_dict() for name, item in self._sums.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._epoch = state["epoch"]
        self._sums = {name: WeightedSum(*saved) for name, saved in state["sums"].items()}
