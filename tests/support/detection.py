"""Data as object detectors have them: a batch is lists of images and of boxes,
and no tensor says how many.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

INFO = {"name": "images", "synthetic": True, "note": ""}


class Images(Dataset[Any]):
    """Images, float32 (3, height, width), of unlike sizes; each with a box, float32 (4,)."""

    def __init__(self, examples: int = 43) -> None:
        generator = torch.Generator().manual_seed(7)
        sizes = torch.randint(5, 9, (examples, 2), generator=generator).tolist()
        self.images = [torch.rand(3, *size, generator=generator) for size in sizes]
        self.boxes = torch.stack([image.mean((1, 2)).repeat(2)[:4] for image in self.images])

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.images[index], self.boxes[index]


def collate(examples: list[Any]) -> tuple[list[Tensor], list[Tensor]]:
    return [image for image, _ in examples], [box for _, box in examples]


class Detector(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(3, 4, 3)
        self.head = nn.Linear(4, 4)

    def forward(self, images: list[Tensor]) -> Tensor:
        return self.head(torch.stack([self.body(image).tanh().mean((1, 2)) for image in images]))  # type: ignore[no-any-return]


def step(run: Any, batch: Any) -> dict[str, Tensor]:
    images, boxes = batch
    return {"loss": (run.model(images) - torch.stack(boxes)).square().mean()}


class Counts:
    def step(self, run: Any, batch: Any) -> dict[str, Tensor]:
        return step(run, batch)

    def batch_size(self, batch: Any) -> int:
        return len(batch[0])


class EveryNth:
    def __init__(self, examples: int, rank: int, world: int) -> None:
        self.indices = range(rank, examples, world)

    def __len__(self) -> int:
        return len(self.indices)

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices)


def own_loader(
    examples: int = 43, batch_size: int = 10, rank: int = 0, world: int = 1
) -> DataLoader[Any]:
    sampler = EveryNth(examples, rank, world)
    return DataLoader(
        Images(examples), batch_size=batch_size // world, sampler=sampler, collate_fn=collate
    )


class Silent:
    """A source of one's own, which does not say how many examples its batches have."""

    def __init__(self, examples: int = 43, size: int = 10, rank: int = 0, world: int = 1) -> None:
        self.images = Images(examples)
        self.examples, self.size, self.rank, self.world = examples, size, rank, world
        self.info = {**INFO, "examples": examples, "batches": len(self), "batch_size": size}

    def __len__(self) -> int:
        return -(-self.examples // self.size)

    def indices(self, index: int) -> range:
        begin = index * self.size
        return range(begin + self.rank, min(begin + self.size, self.examples), self.world)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Any]:
        for index in range(start, len(self)):
            yield collate([self.images[example] for example in self.indices(index)])


class SaysItsOwn(Silent):
    def batch_size(self, index: int) -> int:
        return len(self.indices(index))


class SaysBoth(SaysItsOwn):
    def global_batch_size(self, index: int) -> int:
        return min(self.size, self.examples - index * self.size)


class Tells:
    def after_train_iter(self, run: Any) -> None:
        run.say(f"size {run.batch_size}")


class Trims:
    writes = ("batch",)

    def before_train_iter(self, run: Any, batch: Any) -> None:
        run.replace_batch((batch[0][1:], batch[1][1:]))
        run.say(f"left {run.batch_size}")
