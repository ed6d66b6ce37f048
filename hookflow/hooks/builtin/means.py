"""Sums of numbers over iterations, weighted by examples, made where the numbers are computed: nothing waits.

A number of an iteration is a mean over the examples of its batch. The mean over many is the sum of each times its
examples, over all those examples; so the ranks of a run add up theirs before they divide.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from hookflow.hooks.tensors import output

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
    """A sum of numbers times their weights, which stays where the numbers are computed."""

    def __init__(self, total: float | Tensor = 0.0, weight: int = 0) -> None:
        self.total = total
        self.weight = weight

    def add(self, value: float | Tensor, weight: int) -> None:
        """Add a number; from the second on, all are on the device of the latest."""
        import torch

        self.weight += weight
        if not isinstance(value, torch.Tensor):
            self.total = self.total + value * weight
            return
        if not isinstance(self.total, torch.Tensor) or self.total.device != value.device:
            self.total = on_device(self.total, value.device)  # after a resume it is in the host's memory
        self.total = torch.add(self.total, value.detach(), alpha=weight)


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
    examples = run.batch_size or 1
    total = on_device(output(outputs, "loss", hook), run.device) * examples
    return float(over_ranks(run, {"loss": (total, examples)})["loss"])


class Window:
    """The numbers of the last `length` iterations up to the newest one that had a number of the name."""

    def __init__(self, length: int) -> None:
        self.length = length
        self._kept: dict[str, deque[tuple[int, Tensor, int]]] = {}
        """By name: iteration, sum over the examples, examples."""

    def add(self, it: int, numbers: Mapping[str, Tensor], examples: int) -> None:
        """Take in the numbers of the iteration `it`, and forget those of their names that are too old."""
        for name, value in numbers.items():
            kept = self._kept.setdefault(name, deque())
            while kept and kept[-1][0] >= it:  # a fork with other batches counts its iterations anew
                kept.pop()
            kept.append((it, value * examples, examples))
            while kept[0][0] <= it - self.length:
                kept.popleft()

    def sums(self, names: Iterable[str]) -> Sums:
        states = {name: _state(self._kept[name]) for name in names}
        return {name: (state["total"].sum(), sum(state["examples"])) for name, state in states.items()}

    def state_dict(self) -> dict[str, Any]:
        return {name: _state(kept) for name, kept in self._kept.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back the state of a window, maybe of another length."""
        self._kept = {
            name: deque(zip(kept["it"], kept["total"].unbind(), kept["examples"], strict=True))
            for name, kept in state.items()
        }


def _state(kept: Iterable[tuple[int, Tensor, int]]) -> dict[str, Any]:
    """Return the columns, the totals on the device of the newest one: a resume loads them into the host's memory."""
    import torch

    its, totals, examples = zip(*kept, strict=True)
    total = torch.stack([total.to(totals[-1].device) for total in totals])
    return {"it": list(its), "total": total, "examples": list(examples)}


class EpochSums:
    """The sums of the newest epoch."""

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
        return {"epoch": self._epoch, "sums": {name: list(pair) for name, pair in self.sums().items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._epoch = state["epoch"]
        self._sums = {name: WeightedSum(*saved) for name, saved in state["sums"].items()}
