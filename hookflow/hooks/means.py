"""Sums of numbers over iterations, weighted by examples, made where the numbers are computed: nothing waits.

A number of an iteration is a mean over the examples of its batch. The mean over many is the sum of each times its
examples, over all those examples; so the ranks of a run add up theirs before they divide.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hookflow.errors import Problem, UserError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from hookflow.hooks.run import Run

Sums = Mapping[str, tuple["Tensor", int]]
"""By name: a sum of numbers times their examples, and the number of those examples."""


def on_device(value: float | Tensor, device: torch.device) -> Tensor:
    """Return a number as a float64 on the device."""
    import torch

    if isinstance(value, torch.Tensor):
        return value.detach().to(device, torch.float64, non_blocking=True).reshape(())
    return torch.full((), value, dtype=torch.float64, device=device)


def over_ranks(run: Run, sums: Sums) -> dict[str, Tensor]:
    """Return the mean of each number over the examples of all ranks, all of which must call it with the same names."""
    import torch

    if run.world == 1 or not sums:
        return {name: total / max(examples, 1) for name, (total, examples) in sums.items()}
    totals = [total for total, _ in sums.values()]
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
    """The numbers of the last `length` iterations."""

    def __init__(self, length: int) -> None:
        self.length = length
        self._kept: dict[str, deque[tuple[int, Tensor, int]]] = {}

    def add(self, it: int, numbers: Mapping[str, Tensor], examples: int) -> None:
        """Take in the numbers of the iteration `it`, and forget those that are too old."""
        for name, value in numbers.items():
            self._kept.setdefault(name, deque()).append((it, value * examples, examples))
        for kept in self._kept.values():
            while kept and kept[0][0] <= it - self.length:
                kept.popleft()

    def sums(self) -> dict[str, tuple[Tensor, int]]:
        import torch

        return {
            name: (torch.stack([total for _, total, _ in kept]).sum(), sum(examples for *_, examples in kept))
            for name, kept in self._kept.items()
            if kept
        }

    def state_dict(self) -> dict[str, Any]:
        import torch

        return {
            name: {
                "it": [it for it, *_ in kept],
                "total": torch.stack([total for _, total, _ in kept]),
                "examples": [examples for *_, examples in kept],
            }
            for name, kept in self._kept.items()
            if kept
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned, maybe of a window of another length."""
        self._kept = {
            name: deque(zip(kept["it"], kept["total"].unbind(), kept["examples"], strict=True))
            for name, kept in state.items()
        }


class EpochSums:
    """The numbers of one epoch, the newest of which any was added."""

    def __init__(self) -> None:
        self._epoch = 0
        self._sums: dict[str, tuple[Tensor, int]] = {}

    def add(self, epoch: int, numbers: Mapping[str, Tensor], examples: int) -> None:
        """Take in the numbers of an iteration of an epoch."""
        if epoch != self._epoch:
            self._epoch, self._sums = epoch, {}
        for name, value in numbers.items():
            total, before = self._sums.get(name, (0.0, 0))
            self._sums[name] = total + value * examples, before + examples

    def sums(self) -> Sums:
        return self._sums

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self._epoch, "sums": {name: list(one) for name, one in self._sums.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._epoch = state["epoch"]
        self._sums = {name: (total, examples) for name, (total, examples) in state["sums"].items()}
