"""An iterable dataset with reproducible random numbers, which finds its place again."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from copy import deepcopy
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from hookflow.runner.data.rng import RNGStream, derive_seed, generator_states, seeded
from hookflow.runner.data.workers import Shipped

GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)

STATES = ("data", "examples")
"""The keys of a pass's state that hold the dataset's own state, and its iterator's."""


class SeededIterable(Shipped, IterableDataset[Any]):
    """An iterable dataset that gives batches, and seeds the generators for each of them.

    The dataset's `__iter__` runs within the first batch, under its seed. So a pass gives the same batches after a
    resume, and finds its place though the dataset itself has no state: then by loading what lies before it.

    Of `world` ranks each goes through all of it, and takes every `world`-th example from its `rank` on. A last group of
    fewer than `world` examples is left out. A dataset that `shards_itself` gives this rank's examples already.
    """

    def __init__(
        self,
        data: Any,
        seed: int,
        *,
        batch_size: int,
        drop_last: bool,
        collate: Callable[[list[Any]], Any],
        rank: int = 0,
        world: int = 1,
        shards_itself: bool = False,
    ) -> None:
        self.data = data
        self.seed = seed
        self.batch_size, self.drop_last, self.collate = batch_size, drop_last, collate
        self.rank, self.world = (0, 1) if shards_itself else (rank, world)
        self.seed_suffix = (rank,) if shards_itself and rank else ()
        self.pass_ = 0

    def set_epoch(self, pass_: int) -> None:
        """Say how many times the dataset has been gone through."""
        self.pass_ = pass_
        if set_epoch := getattr(self.data, "set_epoch", None):
            set_epoch(pass_)

    def own_generators(self) -> list[str]:
        """Return the dataset's attributes that are random generators, where no state of the dataset can hold them."""
        if hasattr(self.data, "state_dict"):
            return []
        return [name for name, value in getattr(self.data, "__dict__", {}).items() if isinstance(value, GENERATORS)]

    def __iter__(self) -> SeededIterator:
        return SeededIterator(self)


class SeededIterator:
    """One pass through an iterable dataset, in one worker; its state says how far it has come.

    A dataset may shuffle in `__iter__`, or with its first example if that is a generator function. So a resume begins
    the pass under the seed of its first batch. A shuffle with the first example costs that example's random numbers.
    Hence the state is taken one example early where a first batch draws random numbers, and that example is discarded.
    """

    def __init__(self, of: SeededIterable) -> None:
        worker = get_worker_info()
        self._of = of
        self._place = (of.pass_, worker.id if worker else 0)
        self._examples: Iterator[Any] | None = None  # begun under the seed of the first batch
        self._batches = self._drawn = 0
        self._over = False
        self._draws_random = True
        self._earlier: dict[str, Any] = {}

    def __iter__(self) -> SeededIterator:
        return self

    def __next__(self) -> tuple[int, Any]:
        if self._over:
            raise StopIteration
        with self._seeded(self._batches):
            examples = self._draw()
            if not examples:
                raise StopIteration
            return len(examples), self._of.collate(examples)

    def _seeded(self, batch: int) -> Any:
        return seeded(derive_seed(self._of.seed, RNGStream.EXAMPLES, *self._place, batch, *self._of.seed_suffix))

    def _draw(self) -> list[Any]:
        """Return the examples of the next batch, none where the dataset has no more."""
        if self._examples is None:
            self._examples = iter(self._of.data)
        before = generator_states() if not self._batches else None
        world, wanted = self._of.world, self._of.batch_size * self._of.world
        drawn = list(islice(self._examples, wanted - world))
        if len(drawn) == wanted - world:
            self._earlier = deepcopy(self._states()) if self._draws_random else {}
            drawn += islice(self._examples, world)
        if before is not None:
            self._draws_random = before != generator_states()
        self._over = len(drawn) < wanted
        self._batches += 1
        self._drawn += len(drawn)
        return [] if self._over and self._of.drop_last else drawn[: len(drawn) // world * world][self._of.rank :: world]

    def _states(self) -> dict[str, Any]:
        parts = zip(STATES, (self._of.data, self._examples), strict=True)
        return {key: part.state_dict() for key, part in parts if hasattr(part, "state_dict")}

    def state_dict(self) -> dict[str, Any]:
        """Return how many batches were given, and the states of the dataset and its iterator, if they have one."""
        early = self._draws_random and self._batches > 0 and not self._over
        place = {"batches": self._batches, "drawn": self._drawn, "over": self._over, "early": early}
        return {**place, **(self._earlier if early else self._states())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to where `state_dict` was called."""
        if "data" in state:
            self._of.data.load_state_dict(deepcopy(state["data"]))
        if state["over"]:
            self._examples = iter(())  # a dataset that is through may stand at its beginning again
        elif has_state(state) and state["batches"]:
            with self._seeded(0):
                self._go_on(state)
        else:
            while self._batches < state["batches"]:
                with self._seeded(self._batches):
                    self._draw()
        self._batches, self._drawn, self._over = state["batches"], state["drawn"], state["over"]
        self._draws_random = state["early"] or not state["batches"]
        self._earlier = {key: deepcopy(state[key]) for key in STATES if key in state}

    def _go_on(self, state: dict[str, Any]) -> None:
        examples: Any = iter(self._of.data)
        self._examples = examples
        if "examples" in state:
            examples.load_state_dict(deepcopy(state["examples"]))
        if state["early"]:
            for _ in islice(examples, self._of.world):
                pass


def has_state(state: dict[str, Any]) -> bool:
    """Say whether a dataset or its iterator has a state of its own in that of a pass."""
    return any(key in state for key in STATES)


def examples_to_reload(state: Any) -> int:
    """Return how many examples are loaded again to go where a loader's state says: none where data have a state."""
    if not isinstance(state, dict):
        return 0
    if "drawn" in state:
        return 0 if state["over"] or has_state(state) else state["drawn"]
    return sum(examples_to_reload(inner) for inner in state.values())
