"""A source from a dataset that stays on the device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from hookflow.errors import Problem, UserError
from hookflow.events.records import DataInfo
from hookflow.runner.data.loader import examples_of
from hookflow.runner.data.loader_parts import LoaderParts
from hookflow.runner.data.transfer import Augment, map_parts, tensors, to_device
from hookflow.runner.numerics.random_state import RNGStream, derive_seed, seeded


class OnDevice:
    """A source out of a map-style dataset that is collated once, as one batch of all its examples, and kept.

    Each batch is a pure function of the run's seed, the epoch and its index. Random draws of the dataset are made once;
    what should differ from epoch to epoch belongs in `augment`. Raises UserError where what `collate` makes is not
    tensors with a row for each example.
    """

    def __init__(self, data: Any, parts: LoaderParts) -> None:
        self._parts = parts
        self._sampler = parts.batch_sampler(data)
        self.batch_size, self.global_batch_size = self._sampler.batch_size, self._sampler.global_batch_size
        self._augment = Augment(parts)
        with seeded(derive_seed(parts.seed, RNGStream.EXAMPLES)):
            full = parts.collate(examples_of(data, list(range(len(data)))))
        _check_rows(full, len(data), parts)
        self._full = to_device(full, parts.device, parts.channels_last)
        held = sum(tensor.nbytes for tensor in tensors(self._full))
        self.info = DataInfo(
            name=type(data).__name__,
            examples=self._sampler.examples,
            batches=len(self._sampler),
            batch_size=parts.section.batch_size,
            synthetic=False,
            note=f"{held / 2**20:.1f} MiB on {parts.device}",
        )

    def __len__(self) -> int:
        """Return the number of batches of an epoch."""
        return self.info["batches"]

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Any]:
        """Yield the batches of an epoch (counted from 0), from batch `start` on, on the device."""
        indices = self._sampler.indices(epoch).to(self._parts.device)
        for index in range(start, len(self)):
            batch = _rows(self._full, self._sampler.shard(indices, index))
            yield self._augment(batch, epoch, index)


def _rows(batch: Any, rows: Tensor) -> Any:
    return batch[rows] if isinstance(batch, Tensor) else map_parts(batch, lambda part: _rows(part, rows))


def _check_rows(batch: Any, examples: int, parts: LoaderParts) -> None:
    """Refuse a batch of which some part cannot be taken row by row on the device."""
    if isinstance(batch, dict | list | tuple):
        for part in batch.values() if isinstance(batch, dict) else batch:
            _check_rows(part, examples, parts)
    elif not isinstance(batch, Tensor) or batch.ndim == 0 or len(batch) != examples:
        made = f"a tensor of shape {tuple(batch.shape)}" if isinstance(batch, Tensor) else f"a {type(batch).__name__}"
        message = f"on_device needs tensors with a row for each of the {examples} examples, and collate makes {made}"
        raise UserError(Problem(message, parts.place("on_device")))
