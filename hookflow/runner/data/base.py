"""The context of all sources of batches, the length of an epoch, and the transfer to the device."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from hookflow.events.records import DataInfo

Sizes = tuple[Callable[[int], int] | None, Callable[[int], int] | None]
"""From a batch's index in the epoch to its examples, of this rank and of all ranks together; None where unknown."""


@dataclass(frozen=True)
class DataContext:
    """The settings of a run that its data of all splits share; `say` takes lines for people, and their level."""

    seed: int
    device: torch.device
    channels_last: bool
    say: Callable[..., None]
    rank: int = 0
    world: int = 1

    def to_device(self, batch: Any) -> Any:
        """Return the batch with every tensor on the device; on CUDA without waiting for the copy.

        Tensors of four dimensions get the channels_last memory format if asked for. Dicts, lists and tuples are
        traversed; anything else is left as it is.
        """
        if not isinstance(batch, Tensor):
            return map_parts(batch, self.to_device)
        if batch.device == self.device and not self.channels_last:
            return batch
        layout = torch.channels_last if self.channels_last and batch.ndim == 4 else torch.preserve_format
        return batch.to(self.device, non_blocking=self.device.type == "cuda", memory_format=layout)


class Sized:
    """A source whose `info` says how many batches an epoch has."""

    info: DataInfo

    def __len__(self) -> int:
        return self.info["batches"]


class OverLoader(Sized):
    """A source out of a `loader` of batches, whose dataset and sampler are its own; None where it has none."""

    loader: Any

    @property
    def dataset(self) -> Any:
        return getattr(self.loader, "dataset", None)

    @property
    def sampler(self) -> Any:
        return getattr(self.loader, "sampler", None)


def data_info(data: Any, examples: int, batches: int, batch_size: int, note: str = "") -> DataInfo:
    """Return the description of a user's data, named by their class."""
    return DataInfo(
        name=type(data).__name__,
        examples=examples,
        batches=batches,
        batch_size=batch_size,
        synthetic=False,
        note=note,
    )


def map_parts(batch: Any, change: Callable[[Any], Any]) -> Any:
    """Return a dict, list or (named) tuple with each of its parts changed; anything else as it is.

    A `UserDict`, such as the batches of tokenizers of transformers, becomes a dict.
    """
    if isinstance(batch, dict | UserDict):
        return {key: change(part) for key, part in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*map(change, batch))
    return type(batch)(map(change, batch)) if isinstance(batch, list | tuple) else batch


def tensors(batch: Any) -> Iterator[Tensor]:
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, dict | UserDict | list | tuple):
        for part in batch if isinstance(batch, list | tuple) else batch.values():
            yield from tensors(part)


def prefetch(batches: Iterable[Any], context: DataContext) -> Iterator[Any]:
    """Yield the batches on the device. On CUDA each is copied on a stream of its own, beside the step before."""
    if context.device.type != "cuda":
        yield from map(context.to_device, batches)
        return
    side = torch.cuda.Stream(context.device)  # type: ignore[no-untyped-call]
    for batch in batches:
        with torch.cuda.stream(side):
            moved, copied = context.to_device(batch), side.record_event()
        for tensor in tensors(moved):
            current = torch.cuda.current_stream(tensor.device)
            current.wait_event(copied)  # the CPU does not wait
            tensor.record_stream(current)  # so that its memory is not reused before this stream is done with it
        yield moved  # before the next one is fetched, which may take long


def split_of(name: str) -> Literal["val", "test"]:
    """Return the split that a source of `run.data` belongs to: "val" of "val" and "val.ood"."""
    return name.partition(".")[0]  # type: ignore[return-value]


def sets_of(name: str, data: Iterable[str]) -> tuple[str, ...]:
    """Return the sources of a split, or the one of that name: those of "val" may be "val.clean" and "val.ood"."""
    return tuple(source for source in data if name in (source, split_of(source)))


def in_set(name: str, metric: str) -> str:
    """Return what a metric of a set is called among those of all sets: "ood/accuracy" of "val.ood"."""
    _, _, own = name.partition(".")
    return f"{own}/{metric}" if own else metric
