"""A model that computes the same in one process and in several, and data of which each example is known."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset


class Plain(nn.Module):
    """Two layers whose result for an example depends on no other: no batch norm, no dropout."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, width), nn.LayerNorm(width), nn.GELU())
        self.head = nn.Linear(width, 3)
        self.frozen = nn.Linear(2, 2).requires_grad_(False)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.body(inputs))  # type: ignore[no-any-return]


class Normed(Plain):
    """With what is kept beside the parameters, and changes."""

    def __init__(self) -> None:
        super().__init__()
        self.body.append(nn.BatchNorm1d(8))
        self.body.append(nn.Dropout(0.1))


class Clouds(Dataset[Any]):
    """Points of three clouds."""

    def __init__(self, examples: int = 40, seed: int = 7) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.target = torch.randint(3, (examples,), generator=generator)
        self.inputs = 2 * torch.eye(3, 4)[self.target] + torch.randn(examples, 4, generator=generator)

    def __len__(self) -> int:
        return len(self.target)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.inputs[index], self.target[index]
