"""A source from a map-style dataset, with or without worker processes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, default_collate

from hookflow.events.records import DataInfo
from hookflow.runner.data.loader_parts import BatchSampler, LoaderParts
from hookflow.runner.data.transfer import Augment, prefetch
from hookflow.runner.data.workers import Shipped, begin_worker, end_workers, let_be_killed, start_method
from hookflow.runner.numerics.random_state import ForkRNG, RNGStream, seed_for_batch
from hookflow.runner.process.launch import cores

Key = tuple[int, int, Tensor]
"""Key of a batch: its epoch, its index there, and the indices of its examples."""


class Loader:
    """A source out of a map-style dataset: each batch is a pure function of the run's seed, the epoch and its index.

    That holds for the random numbers of the dataset, too: the fetching process seeds the generators of Python, NumPy
    and torch for it alone. So neither the number of workers nor a resume changes a bit.
    """

    def __init__(self, data: Any, parts: LoaderParts) -> None:
        self._sampler = parts.batch_sampler(data)
        self.batch_size, self.global_batch_size = self._sampler.batch_size, self._sampler.global_batch_size
        self.workers = workers = parts.section.workers
        self._parts = parts
        self._augment = Augment(parts)
        self._keys = _Keys(self._sampler)
        self._batches: Any = None
        self.dataset = data
        warn_if_oversubscribed(workers, parts.say)
        self._draws = may_draw(data) or parts.collate is not default_collate
        fetches = _FetchBatch(data, parts, self._draws)
        pinned = parts.device.type == "cuda"
        self._loader: Any = _loader(fetches, self._keys, pinned, parts) if workers or pinned else None
        self._fetched = partial(map, fetches.__getitem__, self._keys)
        self.info = DataInfo(
            name=type(data).__name__,
            examples=self._sampler.examples,
            batches=len(self._sampler),
            batch_size=parts.section.batch_size,
            synthetic=False,
            note=f"fetched by {workers} worker{'s' * (workers > 1)}" if workers else "",
        )

    def __len__(self) -> int:
        """Return the number of batches of an epoch."""
        return self.info["batches"]

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Any]:
        """Yield the batches of an epoch (counted from 0), from batch `start` on, on the device."""
        self._keys.begin(epoch, start)
        with no_loader_warnings():
            self._batches = self._fetched() if self._loader is None else iter(self._loader)
        let_be_killed(self._batches)
        fetched = forked(self._batches, len(self._keys)) if self._draws else self._batches
        batches = prefetch(fetched, self._parts.device, self._parts.channels_last)
        for index, batch in enumerate(batches, start):
            yield self._augment(batch, epoch, index)

    def close(self) -> None:
        """End the workers, wherever they are."""
        if self._parts.section.workers and self._batches is not None:
            end_workers(self._batches, self.info["name"], self._parts.say)
            self._batches = self._loader._iterator = None  # its pipes close at once, not at a garbage collection


class _Keys:
    """The keys of the batches of an epoch from an index on, passed to the fetching processes."""

    def __init__(self, sampler: BatchSampler) -> None:
        self._sampler = sampler
        self._epoch = self._start = 0

    def begin(self, epoch: int, start: int) -> None:
        self._epoch, self._start = epoch, start

    def __len__(self) -> int:
        return len(self._sampler) - self._start

    def __iter__(self) -> Iterator[Key]:
        epoch = self._epoch
        indices = self._sampler.indices(epoch)
        for index in range(self._start, len(self._sampler)):
            yield epoch, index, self._sampler.shard(indices, index)


class _FetchBatch(Shipped, Dataset[Any]):
    """The dataset as torch's DataLoader sees it: an item is a whole batch."""

    def __init__(self, data: Any, parts: LoaderParts, draws: bool) -> None:
        self.data = data
        self._draws = draws
        self._collate = parts.collate
        self._seed = parts.seed
        self._rank = parts.rank

    def __getitem__(self, key: Key) -> Any:
        epoch, index, indices = key
        if self._draws:
            seed_for_batch(self._seed, RNGStream.EXAMPLES, epoch, self._rank, batch=index)
        return self._collate(examples_of(self.data, indices.tolist()))


def _loader(fetches: _FetchBatch, keys: _Keys, pinned: bool, parts: LoaderParts) -> DataLoader[Any]:
    """Return the loader for workers or pinned memory; without them PyTorch's takes 17 µs a batch for a call."""
    workers = parts.section.workers
    with no_loader_warnings():
        return DataLoader(
            fetches,
            batch_size=None,
            sampler=keys,
            collate_fn=identity,
            num_workers=workers,
            persistent_workers=workers > 0,
            pin_memory=pinned,
            worker_init_fn=begin_worker,
            multiprocessing_context=start_method(fetches, type(fetches.data).__name__, parts),
            # Seeds of workers are drawn from it. They mean nothing here; the training's generator would be missed.
            generator=torch.Generator(),
        )


def examples_of(data: Any, indices: list[int]) -> list[Any]:
    """Return the examples, all at once where the dataset has `__getitems__`."""
    fetch: Callable[[list[int]], list[Any]] | None = getattr(data, "__getitems__", None)
    return fetch(indices) if fetch else [data[index] for index in indices]


def may_draw(data: Any) -> bool:
    """Say whether a dataset may draw random numbers: PyTorch's own of tensors, and a subset of one, draw none."""
    return may_draw(data.dataset) if type(data) is Subset else type(data) is not TensorDataset


def forked(batches: Iterator[Any], count: int) -> Iterator[Any]:
    """Yield so many batches. The training's random numbers are the same whether they are fetched here or by workers."""
    fork = ForkRNG()
    for _ in range(count):  # a resume at the end of an epoch does not go beyond it either
        with fork:
            batch = next(batches)
        yield batch


def identity(batch: Any) -> Any:
    """Return a batch as it is: the dataset that a DataLoader of hookflow sees has collated it."""
    return batch


def warn_if_oversubscribed(workers: int, say: Callable[..., None]) -> None:
    """Warn when there are more workers than processors for them."""
    processors = cores()
    if workers > processors:
        say(f"{workers} workers share {processors} processors, and the training needs one too", "warn")


@contextmanager
def no_loader_warnings() -> Iterator[None]:
    """Suppress the warnings of a loader that the user is given otherwise, or can do nothing about."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This DataLoader will create")
        warnings.filterwarnings("ignore", "'set_vital' is deprecated")  # torchdata calls it
        yield
