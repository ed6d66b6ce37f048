"""A source from a `DataLoader`, or from any iterable of batches with a length."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

from hookflow.runner.data.base import DataContext, Sized, data_info
from hookflow.runner.numerics.random_state import random_state, set_random_state

SizeAt = Callable[[int], int]
"""From a batch's index in the epoch to its number of examples."""

Sizes = tuple[SizeAt | None, SizeAt | None]
"""The examples of this rank, and of all ranks together; None where unknown."""


class Batches(Sized):
    """A source out of any iterable of batches with a length, such as a `torch.utils.data.DataLoader`.

    Each epoch iterates anew, after `set_epoch(epoch)` of its sampler if that has one. Its random numbers come from the
    global generators or the loader's own, whose state a checkpoint keeps. To resume in the middle of an epoch, the
    batches before that place are loaded again and thrown away.
    """

    def __init__(self, batches: Any, context: DataContext) -> None:
        self.batch_size, self.global_batch_size = _sizes_of(batches, context.world)
        self.loader: Iterable[Any] = batches
        self._context = context
        self._generator: torch.Generator | None = getattr(batches, "generator", None)
        self._began: dict[str, Any] | None = None
        data = getattr(batches, "dataset", batches)
        size = getattr(batches, "batch_size", None) or 0
        examples = len(data) if data is not batches and hasattr(data, "__len__") else len(batches) * size
        self.info = data_info(data, examples, len(batches), size)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Any]:
        """Yield the batches of an epoch (counted from 0), from batch `start` on, on the device."""
        for name in ("sampler", "batch_sampler"):
            set_epoch = getattr(getattr(self.loader, name, None), "set_epoch", None)
            if set_epoch is not None:
                set_epoch(epoch)
        yield from map(self._context.to_device, self._from(start))

    def _from(self, start: int) -> Iterator[Any]:
        if not start:
            self._began = self._random()
            return iter(self.loader)
        text = f"{self.info['name']}: loading {start} batches again to find the place in the epoch"
        self._context.say(text, "warn")
        now = self._random()
        if self._began:
            self._set_random(self._began)
        batches = iter(self.loader)
        for _ in islice(batches, start):
            pass
        self._set_random(now)
        return batches

    def _random(self) -> dict[str, Any]:
        own = None if self._generator is None else self._generator.get_state()
        return {"global": random_state(self._context.device), "own": own}

    def _set_random(self, state: dict[str, Any]) -> None:
        set_random_state(state["global"], self._context.device)
        if self._generator is not None and state["own"] is not None:
            self._generator.set_state(state["own"])

    def state_dict(self) -> dict[str, Any]:
        """Return the random state at the beginning of the current epoch, and that of the loader's own generator."""
        return {"began": self._began, "own": self._random()["own"]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._began = state["began"]
        if self._generator is not None and state["own"] is not None:
            self._generator.set_state(state["own"])


def _sizes_of(loader: Any, world: int) -> Sizes:
    """Return the batch sizes of a map-style DataLoader that makes its batches itself.

    A DistributedSampler gives every rank as many.
    """
    if not isinstance(loader, DataLoader) or loader.batch_size is None or isinstance(loader.dataset, IterableDataset):
        return None, None
    sampler: Any = loader.sampler
    try:
        examples = len(sampler)
    except TypeError:  # nor is there a number of batches, which `as_source` reports
        return None, None
    size, drop_last = loader.batch_size, loader.drop_last
    full, rest = divmod(examples, size)

    def here(index: int) -> int:
        return size if drop_last or index < full else rest

    even = world == 1 or (type(sampler) is DistributedSampler and sampler.num_replicas == world)
    return here, (lambda index: here(index) * world) if even else None
