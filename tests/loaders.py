"""Data that is none of ours: what users have, and hand over as it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, TensorDataset


def dataset(examples: int = 24) -> TensorDataset:
    target = torch.arange(examples) % 3
    return TensorDataset(2 * torch.eye(3, 4)[target], target)


class Noisy(Dataset[Any]):
    """Draws from the global generator whenever an example is asked for, as augmentation does."""

    def __init__(self, examples: int) -> None:
        self.plain = dataset(examples)

    def __len__(self) -> int:
        return len(self.plain)

    def __getitem__(self, index: int) -> Any:
        inputs, target = self.plain[index]
        return inputs + torch.randn(4), target


def shuffled() -> DataLoader[Any]:
    return DataLoader(Noisy(24), batch_size=8, shuffle=True)


def with_generator() -> DataLoader[Any]:
    return DataLoader(Noisy(24), batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(3))


def with_sampler() -> DataLoader[Any]:
    data = dataset()
    return DataLoader(data, batch_size=8, sampler=DistributedSampler(data, num_replicas=1, rank=0, seed=5))


def a_list() -> list[Any]:
    inputs, target = dataset().tensors
    return list(zip(inputs.split(8), target.split(8), strict=True))


def of_dicts() -> list[Any]:
    return [{"inputs": inputs, "target": target, "names": ["x"] * 8} for inputs, target in a_list()]


def too_short(examples: int = 4) -> DataLoader[Any]:
    return DataLoader(dataset(examples), batch_size=8, drop_last=True)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from a_list()


def stream() -> DataLoader[Any]:
    return DataLoader(Stream(), batch_size=None)


class Says:
    """Promises another number of batches than it yields."""

    def __init__(self, promised: int) -> None:
        self.promised = promised

    def __len__(self) -> int:
        return self.promised

    def __iter__(self) -> Iterator[Any]:
        yield from a_list()


class Half:
    """Has an epoch, and says nothing of itself."""

    def __init__(self) -> None:
        self.info = {"name": "half"}

    def __len__(self) -> int:
        return 3

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Any]:
        yield from a_list()


def splits() -> dict[str, Any]:
    return {"train": a_list(), "val": a_list()}


class FromDicts:
    """A task for batches that are dicts."""

    def step(self, model: Any, batch: dict[str, Any]) -> dict[str, Any]:
        return {"loss": torch.nn.functional.cross_entropy(model(batch["inputs"]), batch["target"])}

    evaluate = step


def pictures() -> list[Any]:
    return [(torch.randn(4, 3, 8, 8), torch.zeros(4, dtype=torch.long))] * 2


class ConvNet(torch.nn.Sequential):
    def __init__(self) -> None:
        conv = torch.nn.Conv2d(3, 3, 3)
        super().__init__(conv, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
