"""The order of the examples of an epoch, the batches that it is cut into, and each rank's shard of a batch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from hookflow.errors import Problem, UserError, Where
from hookflow.events.records import DataInfo
from hookflow.runner.numerics.random_state import RNGStream, derive_seed, seeded


class BatchSharding:
    """The batches of an epoch of `examples`, each sharded across the ranks; the base of sources that make batches.

    `batch_size` counts the examples of all `world` ranks together. Each example is taken once, and the shards of a
    batch differ by one example at most. A last batch that is too small for every rank to have an example of it is
    added to the one before. With `drop_last` an incomplete last batch is left out. Raises ValueError when a batch has
    fewer examples than there are ranks.
    """

    def __init__(self, examples: int, batch_size: int, *, drop_last: bool, rank: int = 0, world: int = 1) -> None:
        if batch_size < world:
            raise ValueError(f"batches of {batch_size} cannot be sharded across {world} ranks")
        self.examples = examples
        self.rank = rank
        self.world = world
        full, rest = divmod(examples, batch_size)
        self._batches = full + (rest >= world and not drop_last)
        self._full = batch_size
        self._last = batch_size if drop_last else examples - (self._batches - 1) * batch_size
        self._full_here, self._last_here = (len(range(rank, size, world)) for size in (self._full, self._last))

    def __len__(self) -> int:
        """Return the number of batches of an epoch: the same on every rank."""
        return self._batches

    def batch_size(self, index: int) -> int:
        """Return how many examples this rank has in the batch at `index`."""
        return self._full_here if index + 1 < self._batches else self._last_here

    def global_batch_size(self, index: int) -> int:
        """Return how many examples all ranks together have in the batch at `index`."""
        return self._full if index + 1 < self._batches else self._last

    def shard(self, indices: Tensor, index: int) -> Tensor:
        """Return this rank's part of the batch at `index`: of the `indices` of the epoch, one for each example."""
        begin = index * self._full
        return indices[begin + self.rank : begin + self.global_batch_size(index) : self.world]

    def describe(self, name: str, note: str, *, synthetic: bool) -> DataInfo:
        """Return the `info` of a source of these batches."""
        return DataInfo(
            name=name,
            examples=self.examples,
            batches=len(self),
            batch_size=self._full,
            synthetic=synthetic,
            note=note,
        )


class BatchSampler(BatchSharding):
    """The order of the examples in each epoch, the same on every rank, and the batches that it is cut into.

    `batches` of them make an epoch, or all if left out: a shuffled epoch takes others each time.
    """

    def __init__(
        self, examples: int, batch_size: int, *, shuffle: bool, seed: int, batches: int | None = None, **sharding: Any
    ) -> None:
        """`sharding` is `drop_last`, `rank` and `world`."""
        super().__init__(examples, batch_size, **sharding)
        self.available = super().__len__()
        self._taken = self.available if batches is None else batches
        self.shuffle, self.seed = shuffle, seed

    def __len__(self) -> int:
        return self._taken

    @property
    def order(self) -> Any:
        """The user's sampler; this object where there is none."""
        return self

    def indices(self, epoch: int) -> Tensor:
        """Return the indices of all examples, int64 (examples,), in the order of the epoch."""
        if not self.shuffle:
            return torch.arange(self.examples)
        generator = torch.Generator().manual_seed(derive_seed(self.seed, RNGStream.ORDER, epoch))
        return torch.randperm(self.examples, generator=generator)

    def batches(self, epoch: int) -> list[Tensor]:
        """Return the indices of this rank's examples in each batch of the epoch."""
        order = self.indices(epoch)
        return [self.shard(order, index) for index in range(len(self))]


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

    @property
    def order(self) -> Any:
        return self._sampler

    def indices(self, epoch: int) -> Tensor:
        """Return the indices that the sampler gives in the epoch."""
        result = self._sampled(epoch)
        if len(result) != self.examples:
            message = f"the sampler gave {self.examples} indices in epoch 0, and {len(result)} in epoch {epoch}"
            raise UserError(Problem(message, self._where, "every epoch must have as many"))
        return result

    def _sampled(self, epoch: int) -> Tensor:
        if set_epoch := getattr(self._sampler, "set_epoch", None):
            set_epoch(epoch)
        with seeded(derive_seed(self.seed, RNGStream.ORDER, epoch)):
            return torch.tensor([self._index(provided) for provided in self._sampler], dtype=torch.int64)

    def _index(self, provided: Any) -> int:
        try:
            index: int = provided.__index__()
        except (AttributeError, TypeError):
            message = f"the sampler gave a {type(provided).__name__} where an index is needed"
            hint = "a sampler gives one index at a time; batches are made of them here"
            raise UserError(Problem(message, self._where, hint)) from None
        if not 0 <= index < self._data:
            message = f"the sampler gave the index {index}, and the dataset has {self._data} examples"
            raise UserError(Problem(message, self._where, f"they count from 0 to {self._data - 1}"))
        return index
