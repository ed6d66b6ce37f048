"""How the examples of an epoch become batches, and how the processes that train together share each of these out."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


class Shares:
    """The batches of an epoch of `examples`, of which each rank takes its share; for any source that makes batches.

    `batch_size` counts the examples of all `world` ranks together. Each example is taken once, and shares of a batch
    differ by one example at most. A last batch that is too small for every rank to have an example of it goes to the
    one before. With `drop_last` what does not fill a batch is left out. Raises ValueError when a batch has fewer
    examples than there are ranks.
    """

    def __init__(self, examples: int, batch_size: int, *, drop_last: bool, rank: int = 0, world: int = 1) -> None:
        if batch_size < world:
            raise ValueError(f"batches of {batch_size} cannot be shared out among {world} processes")
        self.examples = examples
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.rank = rank
        self.world = world

    def __len__(self) -> int:
        """Return the number of batches of an epoch: the same on every rank."""
        full, rest = divmod(self.examples, self.batch_size)
        return full + (rest >= self.world and not self.drop_last)

    def whole(self, index: int) -> int:
        """Return how many examples all ranks together have in the batch of this index."""
        if self.drop_last or index + 1 < len(self):
            return self.batch_size
        return self.examples - index * self.batch_size

    def share(self, order: Tensor, index: int) -> Tensor:
        """Return this rank's share of a batch: of what stands in the order of the epoch, one for each example."""
        begin = index * self.batch_size
        return order[begin : begin + self.whole(index)][self.rank :: self.world]
