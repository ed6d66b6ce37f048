"""A source out of a data set that gives examples by index; processes of their own may fetch them."""

from __future__ import annotations

import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from hookflow.events.records import DataInfo
from hookflow.runner.cores import cores
from hookflow.runner.data.augment import Augment
from hookflow.runner.data.draw import Draw, drawing, seed_of
from hookflow.runner.data.loader_parts import LoaderParts
from hookflow.runner.data.order import Order
from hookflow.runner.data.transfer import ahead

Key = tuple[int, int, Tensor]
"""What a batch is made of: its epoch, its index there, and the indices of its examples."""


class Loader:
    """A source out of a map-style data set: each batch is a pure function of the run's seed, the epoch and its index.

    That holds for what is drawn while examples are fetched, too: whoever fetches a batch seeds Python's, NumPy's and
    torch's generators for it alone. So neither the number of workers nor a resume changes a bit.
    """

    def __init__(self, data: Any, parts: LoaderParts) -> None:
        self._order = order = parts.order(data)
        workers = parts.section.workers
        self._parts = parts
        self._augment = Augment(parts)
        self._keys = _Keys(order)
        self._batches: Any = None
        tell_if_many(workers, parts.say)
        with quietly():
            self._loader: DataLoader[Any] = DataLoader(
                _Fetch(data, parts),
                batch_size=None,
                sampler=self._keys,
                collate_fn=_as_it_is,
                num_workers=workers,
                persistent_workers=workers > 0,
                pin_memory=parts.device.type == "cuda",
                worker_init_fn=leave_signals_to_the_training,
                # A new process would not know the module of a "./file.py", and a forked one does.
                multiprocessing_context="fork" if workers else None,
                # Seeds of workers are drawn from it. They mean nothing here; the training's generator would be missed.
                generator=torch.Generator(),
            )
        self.info = DataInfo(
            name=type(data).__name__,
            examples=order.examples,
            batches=len(order),
            batch_size=parts.section.batch_size,
            synthetic=False,
            note=f"fetched by {workers} worker{'s' * (workers > 1)}" if workers else "",
        )

    def __len__(self) -> int:
        """Return the number of batches of an epoch."""
        return self.info["batches"]

    def whole(self, index: int) -> int:
        """Return how many examples all ranks together have in the batch of this index."""
        return self._order.whole(index)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Any]:
        """Yield the batches of an epoch (counted from 0), from batch `start` on, on the device."""
        self._keys.begin(epoch, start)
        with quietly():
            self._batches = iter(self._loader)
        batches = ahead(self._batches, self._parts.device, self._parts.channels_last)
        for index, batch in enumerate(batches, start):
            yield self._augment(batch, epoch, index)

    def close(self) -> None:
        """End the workers, wherever they are."""
        if self._parts.section.workers and self._batches is not None:
            self._batches._shutdown_workers()
            self._batches = None


class _Keys:
    """The keys of the batches of an epoch from a place on, for the loader to hand to whoever fetches."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._epoch = self._start = 0

    def begin(self, epoch: int, start: int) -> None:
        self._epoch, self._start = epoch, start

    def __len__(self) -> int:
        return len(self._order) - self._start

    def __iter__(self) -> Iterator[Key]:
        epoch = self._epoch
        order = self._order.epoch(epoch)
        for index in range(self._start, len(self._order)):
            yield epoch, index, self._order.share(order, index)


class _Fetch(Dataset[Any]):
    """The data set as a loader sees it: asked for a key, it gives the whole batch."""

    def __init__(self, data: Any, parts: LoaderParts) -> None:
        self._data = data
        self._collate = parts.collate
        self._seed = parts.seed
        self._rank = parts.rank

    def __getitem__(self, key: Key) -> Any:
        epoch, index, examples = key
        with drawing(seed_of(self._seed, Draw.EXAMPLES, epoch, index, self._rank)):
            return self._collate(examples_of(self._data, examples.tolist()))


def examples_of(data: Any, indices: list[int]) -> list[Any]:
    """Return the examples, all at once where the data set can give them so."""
    fetch: Callable[[list[int]], list[Any]] | None = getattr(data, "__getitems__", None)
    return fetch(indices) if fetch else [data[index] for index in indices]


def _as_it_is(batch: Any) -> Any:
    return batch


def leave_signals_to_the_training(worker: int) -> None:
    """Let the training decide what becomes of Ctrl-C, or of a SIGTERM to all processes of a job.

    It may want some more batches. A second SIGTERM ends the worker: nothing else would, were it stuck.
    """
    for number in (signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: signal.signal(signal.SIGTERM, signal.SIG_DFL))


def tell_if_many(workers: int, say: Callable[..., None]) -> None:
    """Say so when there are more workers than processors for them."""
    processors = cores()
    if workers > processors:
        say(f"{workers} workers share {processors} processors, and the training needs one too", "warn")


@contextmanager
def quietly() -> Iterator[None]:
    """Make a loader, or its iterator, without warnings of which the user hears otherwise, or can do nothing about."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This DataLoader will create")
        warnings.filterwarnings("ignore", "'set_vital' is deprecated")  # torchdata calls it
        yield
