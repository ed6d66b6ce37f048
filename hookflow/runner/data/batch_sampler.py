"""Which examples each batch of an epoch takes: a pure function of the seed, the epoch and the index."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from hookflow.errors import Problem, UserError, Where
from hookflow.runner.data.rng import RNGStream, derive_seed, seeded
from hookflow.sharding import BatchSharding


class BatchSampler(BatchSharding):
    """The order of the examples in each epoch, the same on every rank, and the batches that it is cut into.

    `batches` of them make an epoch, or all if left out: a shuffled epoch takes others each time.
    """

    def __init__(
        self,
        examples: int,
        batch_size: int,
        *,
        shuffle: bool,
        drop_last: bool,
        seed: int,
        rank: int = 0,
        world: int = 1,
        batches: int | None = None,
    ) -> None:
        super().__init__(examples, batch_size, drop_last=drop_last, rank=rank, world=world)
        self.available = super().__len__()
        self._taken = self.available if batches is None else batches
        self.shuffle = shuffle
        self.seed = seed

    def __len__(self) -> int:
        return self._taken

    def indices(self, epoch: int) -> Tensor:
        """Return the indices of all examples, int64 (examples,), in the order of the epoch."""
        if not self.shuffle:
            return torch.arange(self.examples)
        generator = torch.Generator().manual_seed(derive_seed(self.seed, RNGStream.ORDER, epoch))
        return torch.randperm(self.examples, generator=generator)


class CustomBatchSampler(BatchSampler):
    """Batches in the order of the user's sampler, which is run through at the start of each epoch.

    The global generators are seeded for the epoch meanwhile, so that its order can be reproduced though the sampler
    has no state. `set_epoch(epoch)` is called if there is one. Raises UserError at `where` when the sampler gives
    something else than indices of examples, or more or fewer in later epochs.
    """

    def __init__(self, sampler: Iterable[Any], data: int, where: Where, *, seed: int, **options: Any) -> None:
        self._sampler = sampler
        self._data = data
        self._where = where
        self.seed = seed
        super().__init__(len(self._sampled(0)), shuffle=False, seed=seed, **options)

    def indices(self, epoch: int) -> Tensor:
        """Return the indices that the sampler gives in the epoch."""
        found = self._sampled(epoch)
        if len(found) != self.examples:
            said = f"the sampler gave {self.examples} indices in epoch 0, and {len(found)} in epoch {epoch}"
            raise UserError(Problem(said, self._where, "every epoch must have as many"))
        return found

    def _sampled(self, epoch: int) -> Tensor:
        if set_epoch := getattr(self._sampler, "set_epoch", None):
            set_epoch(epoch)
        with seeded(derive_seed(self.seed, RNGStream.ORDER, epoch)):
            return torch.tensor([self._index(given) for given in self._sampler], dtype=torch.int64)

    def _index(self, given: Any) -> int:
        try:
            index: int = given.__index__()
        except (AttributeError, TypeError):
            said = f"the sampler gave a {type(given).__name__} where an index is needed"
            hint = "a sampler gives one index at a time; batches are made of them here"
            raise UserError(Problem(said, self._where, hint)) from None
        if not 0 <= index < self._data:
            said = f"the sampler gave the index {index}, and the dataset has {self._data} examples"
            raise UserError(Problem(said, self._where, f"they count from 0 to {self._data - 1}"))
        return index
