"""Views of a run as hooks of other frameworks know it: the parts that several adapters share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, ClassVar, Self
from weakref import WeakValueDictionary

from hookflow.errors import Problem, UserError
from hookflow.hooks.run import Run

if TYPE_CHECKING:
    from hookflow.pipeline.schema import Pipeline
    from hookflow.pipeline.values import Interval


class RunView:
    """A view of a run as hooks of another framework know it.

    Any attribute of `shown` beyond its own raises.
    """

    shown: ClassVar[str]
    """The name of the framework's object in messages."""

    def __init__(self, run: Any, *_: Any) -> None: ...

    @classmethod
    def shared(cls, run: Run, *args: Any) -> Self:
        """Return the view that the hooks of a run share.

        The first call makes it, with these further arguments.
        """
        key = cls, id(run)
        view: Self | None = SHARED_VIEWS.get(key)
        if view is None:
            view = cls(run, *args)
            SHARED_VIEWS[key] = view
        return view

    def itself(self) -> Self:
        """Return the view.

        A hook keeps this method and not the view, whose state is none of the hook's.
        """
        return self

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"hookflow's view of {self.shown} has no {name}")


def find_sets(run: Run, split: str) -> list[str]:
    """Return the sources of a split in `run.data`: "val", or "val.clean" and "val.ood"."""
    return [name for name in run.data if name == split or name.startswith(f"{split}.")]


def name_set(source: str) -> str:
    """Return the name of a set by that of its source: "ood" of "val.ood", and "" of "val"."""
    return source.partition(".")[2]


def name_metrics_of_set(metrics: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return the metrics of one set as those of all sets are named: "ood/loss" of "loss"."""
    own_set = name_set(source)
    return {f"{own_set}/{name}": value for name, value in metrics.items()}


def find_common_interval(pipeline: Pipeline) -> Interval:
    """Return `run.val_every`, or the interval of the first set where each set has its own."""
    intervals = [pipeline.val_intervals[name] for name in pipeline.validated_sets]
    common = pipeline.run.validates
    if not intervals or common in intervals:
        return common
    return intervals[0]


SHARED_VIEWS: WeakValueDictionary[tuple[type, int], Any] = WeakValueDictionary()
"""The shared views by class and by the identity of the run.

The hooks of the run keep them alive.
"""


class CheckpointView(MutableMapping[str, Any]):
    """The state of a checkpoint by another framework's keys.

    Additions of hooks are kept in a section of their own.
    """

    KEYS: ClassVar[Mapping[str, str]]
    """The framework's keys of what the state has."""
    SECTION: ClassVar[str]
    """The key of the state that holds what hooks add."""

    def __init__(self, state: dict[str, Any]) -> None:
        self.state = state
        position = state.get("position", {})
        self._epoch = position.get("epoch", 0)
        self._iter = position.get("iter", 0)
        if position and self.SECTION not in state:
            state[self.SECTION] = {}
        self._added: dict[str, Any] = state.get(self.SECTION, {})
        self._meta = {"epoch": self._epoch, "iter": self._iter}

    def __getitem__(self, key: str) -> Any:
        if key == "meta":
            return self._meta
        if key in self.KEYS:
            return self.state[self.KEYS[key]]
        return self._added[key]

    def __setitem__(self, key: str, value: Any) -> None:
        if key in self.KEYS:
            self.state[self.KEYS[key]] = value
        else:
            self._added[key] = value

    def __delitem__(self, key: str) -> None:
        del self._added[key]

    def __iter__(self) -> Iterator[str]:
        for key, ours in self.KEYS.items():
            if ours in self.state:
                yield key
        yield "meta"
        yield from self._added

    def __len__(self) -> int:
        return len([*self])


class DataLoaderView(RunView):
    """The data of a split, as hooks use a dataloader.

    The batches that it yields are apart from the training's.

    `owner` is the view of the run: it has `run`, and `point`, the name of the point that fires.
    """

    shown = "a dataloader"
    FORWARDED: ClassVar = ("sampler", "collate_fn", "num_workers")
    """Attributes of the run's own loader that hooks may read."""

    def __init__(self, owner: Any, split: str) -> None:
        self._owner = owner
        self._split = split
        self._source: Any = owner.run.data[split]
        self.dataset = getattr(self._source, "dataset", self._source)

    @property
    def batch_size(self) -> int | None:
        """The examples of a batch of all ranks; None where batches have none in common."""
        return self._source.info["batch_size"] or None

    def __len__(self) -> int:
        return len(self._source)

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of the current epoch.

        The random numbers of the training stay as they are.
        """
        import torch

        run = self._owner.run
        is_train = self._split == "train"
        if self.persistent_workers and is_train and self._owner.point.endswith("train_iter"):
            message = (
                "a hook iterates the training data in the middle of an epoch, whose workers are"
                " busy"
            )
            raise UserError(Problem(message, hint="data.train.loader.workers = 0"))
        devices = []
        if run.device.type == "cuda":
            devices.append(run.device)
        epoch = 0
        if is_train:
            epoch = run.epoch
        with torch.random.fork_rng(devices):
            yield from self._source.epoch(epoch)

    @property
    def persistent_workers(self) -> bool:
        workers: int = getattr(self._source, "workers", 0)
        return workers > 0

    def __setattr__(self, name: str, value: Any) -> None:
        """End the workers where a hook sets `_iterator` to None.

        The workers of the next epoch get the dataset as it is now.
        """
        if name == "_iterator" and value is None and hasattr(self._source, "close"):
            self._source.close()
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        if name in self.FORWARDED:
            for loader in (self._source, getattr(self._source, "loader", None)):
                if hasattr(loader, name):
                    return getattr(loader, name)
        return super().__getattr__(name)
