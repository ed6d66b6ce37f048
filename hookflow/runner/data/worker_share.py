"""The share of a stream that one worker takes, where the dataset does not take it itself."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

from torch.utils.data import get_worker_info
from torch.utils.data._utils import worker as torch_worker

WORKER_INFO = ("id", "num_workers", "dataset")
"""The attributes of `torch.utils.data.get_worker_info()` that say which share a worker takes.

A dataset reads them.
"""


class WatchedWorkerInfo:
    """PyTorch's description of a worker, which remembers whether its number was read.

    Its `dataset` is that of the user, and not the one around it that a loader of hookflow has.
    """

    def __init__(self, info: Any, *, is_read: bool) -> None:
        self._info = info
        self.is_read = is_read

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._info, name)
        if name in WORKER_INFO:
            self.is_read = True
        if name == "dataset":
            return getattr(value, "data", value)
        return value


def watch_worker_info(*, is_read: bool) -> None:
    """Have `get_worker_info` remember, in this worker, that it was read.

    `is_read` says that it was already.
    """
    info: Any = get_worker_info()
    torch_worker._worker_info = WatchedWorkerInfo(info, is_read=is_read)  # type: ignore[assignment]


def this_worker() -> tuple[int, int]:
    """Return the number of this worker, and how many there are.

    It is (0, 1) in the process that trains.
    """
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

    A dataset that asks `get_worker_info` which worker it is in takes its share itself, and all its
    examples are given. Any other gives the same examples in every worker: of these, each worker
    gives every `workers`-th one.
    """

    def __init__(self, examples: Iterator[Any]) -> None:
        self._examples = examples
        self._worker, self._workers = this_worker()
        self.drawn = 0
        """How many examples the dataset has given."""
        if self._workers > 1:
            self.divides: bool | None = None
        else:
            self.divides = False
        """Whether the examples are divided here.

        It is None before the first example, by which a dataset that divides them itself has asked.
        """

    def take(self, count: int) -> list[Any]:
        """Return the next examples: as many, or all that are left."""
        if self.divides is False:  # at no call for an example
            examples = list(islice(self._examples, count))
            self.drawn += len(examples)
            return examples
        return list(islice(self, count))

    def __iter__(self) -> "WorkerShare":
        return self

    def __next__(self) -> Any:
        """Return the next example.

        Raises RuntimeError where the dataset asks for its worker too late.
        """
        example = self._next()
        if self.divides is None:
            self.divides = not worker_info_was_read()
        if not self.divides:
            return example
        while (self.drawn - 1) % self._workers != self._worker:
            example = self._next()
        if worker_info_was_read():
            raise RuntimeError(
                "the dataset reads get_worker_info() after its first example, when its examples"
                " have been divided among the workers already: let it read that before it gives an"
                " example"
            )
        return example

    def _next(self) -> Any:
        example = next(self._examples)
        self.drawn += 1
        return example

    def state_dict(self) -> dict[str, Any]:
        return {"drawn": self.drawn, "divides": self.divides}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Assume that the dataset is at the place of `state`."""
        self.drawn = state["drawn"]
        self.divides = state["divides"]
