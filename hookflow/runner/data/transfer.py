"""Batches on their way to the device, and augmented there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from hookflow.runner.data.loader_parts import LoaderParts
from hookflow.runner.numerics.random_state import RNGStream, batch_seed


class Augment:
    """Calls `augment(batch, generator)`, if there is one, with a generator of the device seeded for that batch."""

    def __init__(self, parts: LoaderParts) -> None:
        self._parts = parts
        self._generator = torch.Generator(parts.device) if parts.augment else None

    def __call__(self, batch: Any, epoch: int, index: int) -> Any:
        """Return the batch of an epoch, changed."""
        parts = self._parts
        if parts.augment is None or self._generator is None:
            return batch
        self._generator.manual_seed(batch_seed(parts.seed, RNGStream.AUGMENT, epoch, parts.rank, batch=index))
        return to_device(parts.augment(batch, self._generator), parts.device, parts.channels_last)


def to_device(batch: Any, device: torch.device, channels_last: bool) -> Any:
    """Return the batch with every tensor on the device; on CUDA without waiting for the copy.

    Tensors of four dimensions get the channels_last memory format if asked for. Dicts, lists and tuples are looked
    into, and anything else is left as it is.
    """
    if isinstance(batch, Tensor):
        if batch.device == device and not channels_last:
            return batch
        layout = torch.channels_last if channels_last and batch.ndim == 4 else torch.preserve_format
        return batch.to(device, non_blocking=device.type == "cuda", memory_format=layout)
    return map_parts(batch, lambda part: to_device(part, device, channels_last))


def map_parts(batch: Any, change: Callable[[Any], Any]) -> Any:
    """Return a dict, list or (named) tuple with each of its parts changed; anything else as it is."""
    if isinstance(batch, dict):
        return {key: change(part) for key, part in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*map(change, batch))
    return type(batch)(map(change, batch)) if isinstance(batch, list | tuple) else batch


def tensors(batch: Any) -> Iterator[Tensor]:
    """Yield every tensor of a batch."""
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, dict | list | tuple):
        for part in batch.values() if isinstance(batch, dict) else batch:
            yield from tensors(part)


def prefetch(batches: Iterable[Any], device: torch.device, channels_last: bool) -> Iterator[Any]:
    """Yield the batches on the device. On CUDA the next one is copied meanwhile, on a stream of its own."""
    if device.type == "cuda":
        yield from _by_side_stream(batches, device, channels_last)
        return
    for batch in batches:
        yield to_device(batch, device, channels_last)


def _by_side_stream(batches: Iterable[Any], device: torch.device, channels_last: bool) -> Iterator[Any]:
    side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    in_flight: list[tuple[Any, torch.cuda.Event]] = []
    for batch in batches:
        with torch.cuda.stream(side):
            in_flight.append((to_device(batch, device, channels_last), side.record_event()))
        if len(in_flight) > 1:
            yield _after_copy(*in_flight.pop(0))
    for last in in_flight:
        yield _after_copy(*last)


def _after_copy(batch: Any, copied: torch.cuda.Event) -> Any:
    """Return the batch for the current stream, which waits until it is copied; the CPU does not."""
    for tensor in tensors(batch):
        current = torch.cuda.current_stream(tensor.device)
        current.wait_event(copied)
        tensor.record_stream(current)  # so that its memory is not reused before this stream is done with it
    return batch
