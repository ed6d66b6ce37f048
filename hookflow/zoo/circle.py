"""The smallest thing to learn: whether a point of the plane lies in a circle.

For tutorials and smoke runs.
"""

from collections.abc import Iterator
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from hookflow.runner.data.loader_parts import BatchSharding

SPLIT_SIZES = {"train": 1024, "val": 256, "test": 256}
"""Points of each split."""

CIRCLE_RADIUS = 0.8
"""The radius of the circle around the origin; half of the square from -1 to 1 lies in it."""


class Circle(BatchSharding):
    """Batches of points, float32 (batch, 2), drawn evenly from a square, with 1 for each in the
    circle, int64 (batch,).

    The points of a split are always the same. The order of an epoch is a pure function of `seed`
    and the epoch.
    """

    def __init__(
        self,
        *,
        split: Literal["train", "val", "test"] = "train",
        batch_size: Annotated[int, Field(ge=1, le=256)] = 64,
        seed: int,
        device: torch.device,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        examples = SPLIT_SIZES[split]
        split_seed = list(SPLIT_SIZES).index(split)
        generator = torch.Generator().manual_seed(split_seed)
        unit_square = torch.rand(examples, 2, generator=generator)
        self._points = (2 * unit_square - 1).to(device)
        distance = self._points.norm(dim=1)
        self._inside = (distance < CIRCLE_RADIUS).long()
        self._seed = seed
        super().__init__(examples, batch_size, drop_last=True, rank=rank, world=world)
        self.info = self.describe(
            "circle", "points drawn at random, in or out of a circle", synthetic=True
        )

    def epoch(self, epoch: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + epoch)
        order = torch.randperm(len(self._points), generator=generator)
        order = order.to(self._points.device)
        for index in range(start, len(self)):
            chosen = self.shard(order, index)
            yield self._points[chosen], self._inside[chosen]


class Net(nn.Sequential):
    """Two layers, from a point (batch, 2) to the logits of outside and inside (batch, 2)."""

    def __init__(self, width: Annotated[int, Field(ge=1)] = 16) -> None:
        super().__init__(nn.Linear(2, width), nn.ReLU(), nn.Linear(width, 2))
