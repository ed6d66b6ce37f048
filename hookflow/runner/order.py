"""Which examples each batch of an epoch takes: a pure function of the seed, the epoch and the index."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from hookflow.errors import Problem, UserError, Where
from hookflow.runner.draw import Draw, drawing, seed_of


class Order:
    """The order of `examples` in each epoch, cut into batches, of which each rank takes its share.

    Every rank draws the same order, so `batch_size` counts the examples of all `world` ranks together. Where the
    last batch cannot be shared out evenly, the epoch's first examples fill it up: no rank may have more to do.
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
    ) -> None:
        self.examples = examples
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.seed = seed
        self.rank = rank
        self.world = world

    def __len__(self) -> int:
        """Return the number of batches of an epoch."""
        full, rest = divmod(self.examples, self.batch_size)
        return full + bool(rest and not self.drop_last)

    def epoch(self, epoch: int) -> Tensor:
        """Return the indices of all examples, int64 (examples,), in the order of the epoch."""
        if not self.shuffle:
            return torch.arange(self.examples)
        generator = torch.Generator().manual_seed(seed_of(self.seed, Draw.ORDER, epoch))
        return torch.randperm(self.examples, generator=generator)

    def share(self, order: Tensor, index: int) -> Tensor:
        """Return this rank's share of a batch out of the order of its epoch."""
        batch = order[index * self.batch_size : (index + 1) * self.batch_size]
        lacking = -len(batch) % self.world
        if lacking:
            batch = torch.cat([batch, order.repeat(-(-lacking // len(order)))[:lacking]])
        return batch[self.rank :: self.world]


class SampledOrder(Order):
    """The order that a sampler gives: drawn at the beginning of an epoch, from a seed of that epoch's own.

    So an epoch's order can be drawn again, though the sampler has no state. `set_epoch(epoch)` is called if there is
    one. Raises UserError at `where` when the sampler gives no indices of examples, or more or fewer in later epochs.
    """

    def __init__(self, sampler: Iterable[Any], data: int, where: Where, **order: Any) -> None:
        self._sampler = sampler
        self._data = data
        self._where = where
        super().__init__(examples=0, shuffle=False, **order)
        self.examples = len(self._drawn(0))

    def epoch(self, epoch: int) -> Tensor:
        """Return the indices that the sampler gives in the epoch."""
        drawn = self._drawn(epoch)
        if len(drawn) != self.examples:
            said = f"the sampler gave {self.examples} indices in epoch 0, and {len(drawn)} in epoch {epoch}"
            raise UserError(Problem(said, self._where, "every epoch must have as many"))
        return drawn

    def _drawn(self, epoch: int) -> Tensor:
        if set_epoch := getattr(self._sampler, "set_epoch", None):
            set_epoch(epoch)
        with drawing(seed_of(self.seed, Draw.ORDER, epoch)):
            return torch.tensor([self._index(given) for given in self._sampler], dtype=torch.int64)

    def _index(self, given: Any) -> int:
        try:
            index: int = given.__index__()
        except (AttributeError, TypeError):
            said = f"the sampler gave a {type(given).__name__} where an index is needed"
            hint = "a sampler gives one index at a time; batches are made of them here"
            raise UserError(Problem(said, self._where, hint)) from None
        if not 0 <= index < self._data:
            said = f"the sampler gave the index {index}, and the data set has {self._data} examples"
            raise UserError(Problem(said, self._where, f"they count from 0 to {self._data - 1}"))
        return index
