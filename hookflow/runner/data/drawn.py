"""An iterable data set whose chance can be drawn again, and whose place can be found again."""

from __future__ import annotations

from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from hookflow.runner.data.draw import Draw, drawing, seed_of


class Drawn(IterableDataset[Any]):
    """An iterable data set that seeds the generators for each example, and knows how many it has given.

    So it draws the same again after a resume, and finds its place though the data set itself has no state: then by
    loading what lies before it.

    Of `world` processes that train together each goes through all of it, and gives every `world`-th example from its
    `rank` on. What is not enough at the end for each of them to have one is left out. A data set that `shares_itself`
    gives the share of this rank already.
    """

    def __init__(self, data: Any, seed: int, *, rank: int = 0, world: int = 1, shares_itself: bool = False) -> None:
        self.data = data
        self.seed = seed
        self.rank, self.world = (0, 1) if shares_itself else (rank, world)
        self.apart = (rank,) if shares_itself and rank else ()
        self.pass_ = 0

    def set_epoch(self, pass_: int) -> None:
        """Say how many times the data set has been gone through."""
        self.pass_ = pass_
        if set_epoch := getattr(self.data, "set_epoch", None):
            set_epoch(pass_)

    def __iter__(self) -> Examples:
        return Examples(self)


class Examples:
    """One way through an iterable data set, in one worker; its state says how far it has come."""

    def __init__(self, drawn: Drawn) -> None:
        worker = get_worker_info()
        self._key = (drawn.pass_, worker.id if worker else 0)
        self._data = drawn.data
        self._seed = drawn.seed
        self._rank, self._world, self._apart = drawn.rank, drawn.world, drawn.apart
        self._drawn = 0
        self._over = False
        with drawing(seed_of(self._seed, Draw.STREAM, *self._key)):
            self._examples = iter(self._data)

    def __iter__(self) -> Examples:
        return self

    def __next__(self) -> Any:
        try:
            return [self._next() for _ in range(self._world)][self._rank]
        except StopIteration:
            self._over = True
            raise

    def _next(self) -> Any:
        with drawing(seed_of(self._seed, Draw.EXAMPLES, *self._key, self._drawn, *self._apart)):
            example = next(self._examples)
        self._drawn += 1
        return example

    def state_dict(self) -> dict[str, Any]:
        """Return how many examples were given, and the states of the data set and its iterator, if they have one."""
        parts = {"data": self._data, "examples": self._examples}
        states = {key: part.state_dict() for key, part in parts.items() if hasattr(part, "state_dict")}
        return {"drawn": self._drawn, "over": self._over, **states}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to where `state_dict` was asked for."""
        if "data" in state:
            self._data.load_state_dict(state["data"])
            self._examples = iter(self._data)
        if state["over"]:
            self._examples = iter(())  # a data set that is through may stand at its beginning again
        elif "examples" in state:
            self._examples.load_state_dict(state["examples"])
        elif "data" not in state:
            for _ in range(state["drawn"]):
                self._next()
        self._drawn, self._over = state["drawn"], state["over"]


def again_of(state: Any) -> int:
    """Return how many examples are loaded again to go where a loader's state says: none where data have a state."""
    if not isinstance(state, dict):
        return 0
    if "drawn" in state:
        return 0 if state["over"] or {"data", "examples"} & state.keys() else state["drawn"]
    return sum(again_of(inner) for inner in state.values())
