"""Lightning#9950: what is entered A, B, C is left A, B, C, and each puts back what it found when it was entered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn


class Changes:
    """Validates other weights: keeps those that it finds, and puts these back."""

    def __init__(self, factor: float = 0.5) -> None:
        self.factor = factor
        self.found: list[torch.Tensor] = []

    def before_val(self, run: Any) -> None:
        self.found = _scaled(run.model, self.factor)

    def after_val(self, run: Any) -> None:
        _put_back(run.model, self.found)


class Encloses:
    """Does the same by one method around the validation: the halves cannot come apart."""

    def __init__(self, factor: float = 0.5) -> None:
        self.factor = factor

    def around_val(self, run: Any) -> Iterator[None]:
        found = _scaled(run.model, self.factor)
        yield
        _put_back(run.model, found)


def _scaled(model: nn.Module, factor: float) -> list[torch.Tensor]:
    found = [weights.detach().clone() for weights in model.parameters()]
    for weights in model.parameters():
        weights.data.mul_(factor)
    return found


def _put_back(model: nn.Module, found: list[torch.Tensor]) -> None:
    for weights, before in zip(model.parameters(), found, strict=True):
        weights.data.copy_(before)
