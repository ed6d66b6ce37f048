"""Which examples each batch of an epoch takes: a pure function of the seed, the epoch and the index."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from hookflow.errors import Problem, UserError, Where
from hookflow.runner.data.draw import Draw, drawing, seed_of
from hookflow.sharding import Shares


class Order(Shares):
    """The order of `examples` in each epoch, cut into batches, of which each rank takes its share.

    Every rank draws the same order.
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
        super().__init__(examples, batch_size, drop_last=drop_last, rank=rank, world=world)
        self.shuffle = shuffle
        self.seed = seed

    def epoch(self, epoch: int) -> Tensor:
        """Return the indices of all examples, int64 (examples,), in the order of the epoch."""
        if not self.shuffle:
            return torch.arange(self.examples)
        generator = torch.Generator().manual_seed(seed_of(self.seed, Draw.ORDER, epoch))
        return torch.randperm(self.examples, generator=generator)


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
