"""What is changed in batches on the device, with chance that can be drawn again."""

from __future__ import annotations

from typing import Any

import torch

from hookflow.runner.data.draw import Draw, seed_of
from hookflow.runner.data.loader_parts import LoaderParts
from hookflow.runner.data.transfer import moved


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
        self._generator.manual_seed(seed_of(parts.seed, Draw.AUGMENT, epoch, index, parts.rank))
        return moved(parts.augment(batch, self._generator), parts.device, parts.channels_last)
