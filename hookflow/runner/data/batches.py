"""A source from a `DataLoader`, or from any iterable of batches with a length."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

from hookflow.events.records import DataInfo
from hookflow.runner.data.transfer import to_device
from hookflow.runner.numerics.random_state import random_state, set_random_state

SizeAt = Callable[[int], int]
"""From a batch's index in the epoch to its number of examples."""

Sizes = tuple[SizeAt | None, SizeAt | None]
"""The examples of this rank, and of all ranks together; None where unknown."""


class Batches:
    """A source out of any iterable of batches with a length, such as a `torch.utils.data.DataLoader`.

    Each epoch iterates anew, after `set_epoch(epoch)` of its sampler if that has one.
    Its random numbers come from the global generators (or the loader's own), whose state a checkpoint keeps; so
    every epoch that begins after a resume is the one that it would have been. To resume in the middle of an epoch,
    the batches before that place are loaded again and thrown away.
    """

    def __init__(
        self,
        batches: Any,
        device: torch.device,
        channels_last: bool,
        say: Callable[[str, str], None],
        world: int = 1,
    ) -> None:
        self.batch_size, self.global_batch_size = _sizes_of(batches, world)
        self.loader: Iterable[Any] = batches
        self._device = device
        self._channels_last = channels_last
        self._say = say
        self._generator: torch.Generator | None = getattr(batches, "generator", None)
        self._began: dict[str, Any] | None = None
        data = getattr(batches, "dataset", batches)
        batch_size = getattr(batches, "batch_size", None) or 0
        examples = len(data) if data is not batches and hasattr(data, "__len__") else len(batches) * batch_size
        self.info = DataInfo(
            name=type(data).__name__,
            examples=examples,
            batches=len(batches),
            batch_size=batch_size,
            synthetic=False,
            note="",
        )

    def __len__(self) -> int:
        """Return the number of batches of an epoch."""
        return self.info["batches"]

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Any]:
        """Yield the batches of an epoch (counted from 0), from batch `start` on, on the device."""
        for name in ("sampler", "batch_sampler"):
            set_epoch = getattr(getattr(self.loader, name, None), "set_epoch", None)
            if set_epoch is not None:
                set_epoch(epoch)
        for batch in self._from(start):
            yield to_device(batch, self._device, self._channels_last)

    def _from(self, start: int) -> Iterator[Any]:
        if not start:
            self._began = self._random()
            return iter(self.loader)
        self._say(f"{self.info['name']}: loading {start} batches again to find the place in the epoch", "warn")
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
        return {"global": random_state(self._device), "own": own}

    def _set_random(self, state: dict[str, Any]) -> None:
        set_random_state(state["global"], self._device)
        if self._generator is not None and state["own"] is not None:
            self._generator.set_state(state["own"])

    def state_dict(self) -> dict[str, Any]:
        """Return how the epoch at hand began, and where the loader's own generator is."""
        return {"began": self._began, "own": self._random()["own"]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        self._began = state["began"]
        if self._generator is not None and state["own"] is not None:
            self._generator.set_state(state["own"])


def _sizes_of(loader: Any, world: int) -> Sizes:
    """Return the sizes of what a map-style DataLoader gives, if it makes its batches itself: of so many examples each.

    A DistributedSampler gives every rank as many.
    """
    if not isinstance(loader, DataLoader) or loader.batch_size is None or isinstance(loader.dataset, IterableDataset):
        return None, None
    sampler: Any = loader.sampler
    try:
        examples = len(sampler)
    except TypeError:  # nor is there a number of batches, as reported below
        return None, None
    size, drop_last = loader.batch_size, loader.drop_last
    full, rest = divmod(examples, size)

    def here(index: int) -> int:
        return size if drop_last or index < full else rest

    even = world == 1 or (type(sampler) is DistributedSampler and sampler.num_replicas == world)
    return here, (lambda index: here(index) * world) if even else None
