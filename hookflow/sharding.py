"""How the examples of an epoch become batches, and how each batch is sharded across the ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hookflow.events.records import DataInfo

if TYPE_CHECKING:
    from torch import Tensor


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
            batches=self._batches,
            batch_size=self._full,
            synthetic=synthetic,
            note=note,
        )
