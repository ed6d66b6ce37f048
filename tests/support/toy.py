"""A model and data so small that a run takes milliseconds:
named by the tests' pipelines as "./toy.py:…".
"""

from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn


class Net(nn.Module):
    """Two layers with batch norm and dropout: buffers and random numbers,
    as real nets have them.
    """

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(4, width), nn.BatchNorm1d(width), nn.GELU(), nn.Dropout(0.1)
        )
        self.head = nn.Linear(width, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(inputs))  # type: ignore[no-any-return]


class Frozen(Net):
    """A net whose head is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.head.requires_grad_(False)


MEAN = torch.zeros(3)


class Forgets(Net):
    """A net that counts its calls and sums its outputs, beside its tensors,
    and keeps its latest outputs and a mask.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.sums, self.outputs, self.hidden, self.mask = (
            0,
            torch.zeros(3),
            None,
            None,
            None,
        )
        self.draws, self.used, self.dead = np.random.default_rng(0), np.zeros(3), deque([0])
        self.register_buffer("recent", torch.zeros(3), persistent=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.used += self.draws.random()
        self.dead.append(self.calls)
        self.recent = self.recent * 0.9 + 1
        self.outputs = super().forward(inputs)
        self.mask = (
            torch.ones(len(inputs))
            if self.mask is None or len(self.mask) != len(inputs)
            else self.mask
        )
        last = self.outputs[-1].detach()
        self.hidden = last if self.hidden is None else 0.5 * self.hidden + last
        global MEAN
        MEAN = 0.9 * MEAN + 0.1 * last
        self.sums += self.outputs.detach().sum(0)
        return self.outputs


class Counts(Forgets):
    """A net whose checkpoints hold its count."""

    def get_extra_state(self) -> Any:
        return {"calls": self.calls}

    def set_extra_state(self, state: Any) -> None:
        self.calls = state["calls"]


class Pooled(Net):
    """A net that takes images of any size, and points."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        images = inputs.view(-1, 1, 2, 2) if inputs.ndim == 2 else inputs
        return super().forward(nn.functional.adaptive_avg_pool2d(images, 2).flatten(1))


class Tied(nn.Module):
    """A net whose first and last layer share their weights."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(3, 4)
        self.middle = nn.Linear(4, 4)
        self.head = nn.Linear(4, 3, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.middle(self.embed(tokens)))  # type: ignore[no-any-return]


class Points:
    """Points of three clouds. The batches of an epoch depend on nothing but the seed, the epoch and
    the index.

    `whole` keeps what does not fill a batch; `begin` leaves so many examples of each epoch's order
    out.
    """

    def __init__(
        self,
        seed: int,
        device: torch.device,
        examples: int = 40,
        batch_size: int = 8,
        split: int = 0,
        *,
        whole: bool = False,
        begin: int = 0,
    ) -> None:
        generator = torch.Generator().manual_seed(7 + split)
        self.target = torch.randint(3, (examples,), generator=generator).to(device)
        centres = 2 * torch.eye(3, 4)
        self.inputs = (
            centres[self.target.cpu()] + torch.randn(examples, 4, generator=generator)
        ).to(device)
        self.seed = seed
        self.batch_size = batch_size
        self.whole, self.begin = whole, begin
        self.info: dict[str, Any] = {
            "name": "points",
            "examples": examples,
            "batches": len(self),
            "batch_size": batch_size,
            "synthetic": True,
            "note": "three clouds of points",
        }

    def __len__(self) -> int:
        left = len(self.target) - self.begin
        return -(-left // self.batch_size) if self.whole else left // self.batch_size

    def epoch(self, epoch: int, start: int = 0) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        order = torch.randperm(
            len(self.target), generator=torch.Generator().manual_seed(1000 * self.seed + epoch)
        )
        order = order[self.begin :]
        for k in range(start, len(self)):
            chosen = order[k * self.batch_size : (k + 1) * self.batch_size]
            yield self.inputs[chosen], self.target[chosen]


class Squares(Points):
    """The points as images of two pixels each way."""

    def epoch(self, epoch: int, start: int = 0) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        points = super().epoch(epoch, start)
        return ((inputs.view(-1, 1, 2, 2), target) for inputs, target in points)
