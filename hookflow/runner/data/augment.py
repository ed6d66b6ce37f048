"""Augmentation of batches on the device, with reproducible random numbers."""

from __future__ import annotations

from typing import Any

import torch

from hookflow.runner.data.loader_parts import LoaderParts
from hookflow.runner.data.rng import RNGStream, derive_seed
from hookflow.runner.data.to_device import to_device


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
        self._generator.manual_seed(derive_seed(parts.seed, RNGStream.AUGMENT, epoch, index, parts.rank))
        return to_device(parts.augment(batch, self._generator), parts.device, parts.channels_last)
