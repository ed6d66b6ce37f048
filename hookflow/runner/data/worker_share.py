"""The share of a stream that one worker takes, where the dataset does not take it itself."""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import get_worker_info
from torch.utils.data._utils import worker as torch_worker

WORKER_INFO = ("id", "num_workers", "dataset")
"""What a dataset reads of `torch.utils.data.get_worker_info()` to take the share of its worker."""

MAX_DEPTH = 3
"""How many datasets within one another are searched for generators."""

Generators = dict[str, Any]
"""By its path from the dataset: a generator."""


class WatchedWorkerInfo:
    """PyTorch's description of a worker, which remembers whether somebody has read which worker it is.

    Its `dataset` is that of the user, and not the one around it that a loader of hookflow has.
    """

    def __init__(self, info: Any, *, is_read: bool) -> None:
        self._info = info
        self.is_read = is_read

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._info, name)
        if name in WORKER_INFO:
            self.is_read = True
        return getattr(value, "data", value) if name == "dataset" else value


def watch_worker_info(*, is_read: bool) -> None:
    """Have `get_worker_info` remember, in this worker, that it was read; `is_read` says that it was already."""
    info: Any = get_worker_info()
    torch_worker._worker_info = WatchedWorkerInfo(info, is_read=is_read)  # type: ignore[assignment]


def this_worker() -> tuple[int, int]:
    """Return the number of this worker, and how many there are: (0, 1) in the process that trains."""
    info: Any = get_worker_info()
    if info is None:
        return 0, 1
    if isinstance(info, WatchedWorkerInfo):
        info = info._info
    return info.id, info.num_workers


def worker_info_was_read() -> bool:
    """Say whether a dataset, or a function of the user, knows which worker this is."""
    info: Any = get_worker_info()
    return not isinstance(info, WatchedWorkerInfo) or info.is_read


class WorkerShare:
    """The examples of a dataset that this worker gives.

    A dataset that asks `get_worker_info` which worker it is in takes its share itself, and all its examples are given.
    Any other gives the same examples in every worker: of these, each worker gives every `workers`-th one.
    """

    def __init__(self, examples: Iterator[Any]) -> None:
        self._examples = examples
        self._worker, self._workers = this_worker()
        self.drawn = 0
        """How many examples the dataset has given."""
        self.divides: bool | None = None if self._workers > 1 else False
        """Whether the examples are divided here; None before the first one, by which the dataset has asked."""

    def __iter__(self) -> "WorkerShare":
        return self

    def __next__(self) -> Any:
        """Return the next example. Raises RuntimeError where the dataset asks for its worker too late."""
        example = self._next()
        if self.divides is None:
            self.divides = not worker_info_was_read()
        if not self.divides:
            return example
        while (self.drawn - 1) % self._workers != self._worker:
            example = self._next()
        if worker_info_was_read():
            raise RuntimeError(
                "the dataset reads get_worker_info() after its first example, when its examples have been divided "
                "among the workers already: let it read that before it gives an example"
            )
        return example

    def _next(self) -> Any:
        example = next(self._examples)
        self.drawn += 1
        return example

    def state_dict(self) -> dict[str, Any]:
        return {"drawn": self.drawn, "divides": self.divides}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take on that the dataset stands at the place of `state`."""
        self.drawn, self.divides = state["drawn"], state["divides"]


def generators_of(owner: Any, path: str = "", depth: int = MAX_DEPTH) -> Generators:
    """Return the random generators that a dataset holds as attributes, or a dataset within it."""
    found: Generators = {}
    for name, value in getattr(owner, "__dict__", {}).items():
        if isinstance(value, random.Random | np.random.Generator | np.random.RandomState | torch.Generator):
            found[path + name] = value
        elif depth > 1 and hasattr(value, "__iter__") and not isinstance(value, type | torch.Tensor):
            found |= generators_of(value, f"{path}{name}.", depth - 1)
    return found


def save_generators(generators: Generators) -> dict[str, Any]:
    """Return the state of each generator, made of what a checkpoint holds."""
    return {name: _state_of(generator) for name, generator in generators.items()}


def load_generators(generators: Generators, states: dict[str, Any]) -> None:
    """Put back what `save_generators` returned; generators that are gone, or of another kind, are left alone."""
    for name, state in states.items():
        generator = generators.get(name)
        if generator is None or type(generator).__name__ != state["type"]:
            continue
        if isinstance(generator, random.Random):
            version, words, next_gauss = state["state"]
            generator.setstate((version, tuple(words), next_gauss))
        elif isinstance(generator, torch.Generator):
            generator.set_state(state["state"])
        elif isinstance(generator, np.random.RandomState):
            generator.set_state(_as_arrays(state["state"]))
        else:
            generator.bit_generator.state = _as_arrays(state["state"])


def _state_of(generator: Any) -> dict[str, Any]:
    state: Any
    if isinstance(generator, random.Random):
        version, words, next_gauss = generator.getstate()
        state = [version, list(words), next_gauss]
    elif isinstance(generator, torch.Generator):
        state = generator.get_state()
    elif isinstance(generator, np.random.RandomState):
        state = _as_lists(generator.get_state(legacy=False))
    else:
        state = _as_lists(generator.bit_generator.state)
    return {"type": type(generator).__name__, "state": state}


def _as_lists(state: Any) -> Any:
    """Return the state of a generator of NumPy with lists in the place of arrays."""
    if isinstance(state, dict):
        return {key: _as_lists(value) for key, value in state.items()}
    return state.tolist() if isinstance(state, np.ndarray) else state


def _as_arrays(state: Any) -> Any:
    """Return the state of a generator of NumPy with arrays in the place of lists."""
    if isinstance(state, dict):
        return {key: _as_arrays(value) for key, value in state.items()}
    return np.asarray(state, dtype=np.uint64) if isinstance(state, list) else state
