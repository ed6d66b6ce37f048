"""mir-group/nequip#590: a checkpoint is saved while the average is still swapped in for the validation."""

from __future__ import annotations

from typing import Any

import torch


class SwappedAverage:
    """Swaps the average in before a validation and out after it, by two methods that know nothing of each other."""

    def __init__(self) -> None:
        self.average: dict[str, torch.Tensor] = {}

    def after_optimizer_step(self, run: Any) -> None:
        for name, weights in run.model.named_parameters():
            self.average.setdefault(name, weights.detach().clone()).lerp_(weights.detach(), 0.1)

    def before_val(self, run: Any) -> None:
        self.swap(run)

    def after_val(self, run: Any) -> None:
        self.swap(run)

    def swap(self, run: Any) -> None:
        for name, weights in run.model.named_parameters():
            kept = weights.detach().clone()
            weights.data.copy_(self.average[name])
            self.average[name].copy_(kept)
