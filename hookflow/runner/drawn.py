"""An iterable data set whose chance can be drawn again, and whose place can be found again."""

from __future__ import annotations

from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from hookflow.runner.draw import Draw, drawing, seed_of


class Drawn(IterableDataset[Any]):
    """An iterable data set that seeds the generators for each example, and knows how many it has given.

    So it draws the same again after a resume, and finds its place though the data set itself has no state: then by
    loading what lies before it.
    """

    def __init__(self, data: Any, seed: int) -> None:
        self.data = data
        self.seed = seed
        self.pass_ = 0

    def set_epoch(self, pass_: int) -> None:
        """Say how many times the data set has been gone through."""
        self.pass_ = pass_
        if set_epoch := getattr(self.data, "set_epoch", None):
            set_epoch(pass_)

    def __iter__(self) -> Examples:
        return Examples(self.data, self.seed, self.pass_)


class Examples:
    """One way through an iterable data set, in one worker; its state says how far it has come."""

    def __init__(self, data: Any, seed: int, pass_: int) -> None:
        worker = get_worker_info()
        self._key = (pass_, worker.id if worker else 0)
        self._data = data
        self._seed = seed
        self._drawn = 0
        self._over = False
        with drawing(seed_of(seed, Draw.STREAM, *self._key)):
            self._examples = iter(data)

    def __iter__(self) -> Examples:
        return self

    def __next__(self) -> Any:
        try:
            with drawing(seed_of(self._seed, Draw.EXAMPLES, *self._key, self._drawn)):
                example = next(self._examples)
        except StopIteration:
            self._over = True
            raise
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
                next(self)
        self._drawn, self._over = state["drawn"], state["over"]


def again_of(state: Any) -> int:
    """Return how many examples are loaded again to go where a loader's state says: none where data have a state."""
    if not isinstance(state, dict):
        return 0
    if "drawn" in state:
        return 0 if state["over"] or {"data", "examples"} & state.keys() else state["drawn"]
    return sum(again_of(inner) for inner in state.values())
