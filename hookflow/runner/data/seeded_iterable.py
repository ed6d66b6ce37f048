"""An iterable dataset with reproducible random numbers, which finds its place again."""

from __future__ import annotations

from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from hookflow.runner.data.rng import RNGStream, derive_seed, seeded


class SeededIterable(IterableDataset[Any]):
    """An iterable dataset that seeds the generators for each example, and counts those that it has given.

    So it gives the same examples after a resume, and finds its place though the dataset itself has no state: then by
    loading what lies before it.

    Of `world` ranks each goes through all of it, and gives every `world`-th example from its `rank` on. What is not
    enough at the end for each of them to have one is left out. A dataset that `shards_itself` gives this rank's
    examples already.
    """

    def __init__(self, data: Any, seed: int, *, rank: int = 0, world: int = 1, shards_itself: bool = False) -> None:
        self.data = data
        self.seed = seed
        self.rank, self.world = (0, 1) if shards_itself else (rank, world)
        self.seed_suffix = (rank,) if shards_itself and rank else ()
        self.pass_ = 0

    def set_epoch(self, pass_: int) -> None:
        """Say how many times the dataset has been gone through."""
        self.pass_ = pass_
        if set_epoch := getattr(self.data, "set_epoch", None):
            set_epoch(pass_)

    def __iter__(self) -> SeededIterator:
        return SeededIterator(self)


class SeededIterator:
    """One pass through an iterable dataset, in one worker; its state says how far it has come."""

    def __init__(self, of: SeededIterable) -> None:
        worker = get_worker_info()
        self._place = (of.pass_, worker.id if worker else 0)
        self._data = of.data
        self._seed = of.seed
        self._rank, self._world, self._seed_suffix = of.rank, of.world, of.seed_suffix
        self._given = 0
        self._over = False
        with seeded(derive_seed(self._seed, RNGStream.STREAM, *self._place)):
            self._examples = iter(self._data)

    def __iter__(self) -> SeededIterator:
        return self

    def __next__(self) -> Any:
        try:
            return [self._next() for _ in range(self._world)][self._rank]
        except StopIteration:
            self._over = True
            raise

    def _next(self) -> Any:
        place = *self._place, self._given, *self._seed_suffix
        with seeded(derive_seed(self._seed, RNGStream.EXAMPLES, *place)):
            example = next(self._examples)
        self._given += 1
        return example

    def state_dict(self) -> dict[str, Any]:
        """Return how many examples were given, and the states of the dataset and its iterator, if they have one."""
        parts = {"data": self._data, "examples": self._examples}
        states = {key: part.state_dict() for key, part in parts.items() if hasattr(part, "state_dict")}
        return {"drawn": self._given, "over": self._over, **states}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to where `state_dict` was called."""
        if "data" in state:
            self._data.load_state_dict(state["data"])
            self._examples = iter(self._data)
        if state["over"]:
            self._examples = iter(())  # a dataset that is through may stand at its beginning again
        elif "examples" in state:
            self._examples.load_state_dict(state["examples"])
        elif "data" not in state:
            for _ in range(state["drawn"]):
                self._next()
        self._given, self._over = state["drawn"], state["over"]


def examples_to_reload(state: Any) -> int:
    """Return how many examples are loaded again to go where a loader's state says: none where data have a state."""
    if not isinstance(state, dict):
        return 0
    if "drawn" in state:
        return 0 if state["over"] or {"data", "examples"} & state.keys() else state["drawn"]
    return sum(examples_to_reload(inner) for inner in state.values())
