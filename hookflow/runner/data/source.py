"""The contract of a source of batches, and the conversion of datasets and loaders into sources."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from torch.utils.data import DataLoader, Dataset, IterableDataset

from hookflow.errors import Problem, UserError, Where
from hookflow.events.records import DataInfo
from hookflow.runner.data.base import DataContext
from hookflow.runner.data.batches import Batches
from hookflow.runner.data.loader import Loader, OnDevice
from hookflow.runner.data.loader_parts import LoaderParts
from hookflow.runner.data.stream import Stateful, stream_source

EXPECTED = (
    "a dataset, with a loader beside use; a torch.utils.data.DataLoader, or another iterable of batches that has a "
    "length; or an object with info, __len__ and epoch(epoch, start)"
)


class Source(Protocol):
    """One split of the data, as the runner and the hooks see it in `run.data`.

    It may have two more methods about its latest batch, by index in the epoch:
    `batch_size(index)` returns how many examples this rank has in it, and `global_batch_size(index)`, how many all
    ranks have together. Without the first, the size of a batch is what its tensors say, where they cannot be mistaken
    (`hookflow.runner.data.batch_size.size_of`); without the second, the ranks sum what each of them has.
    """

    info: DataInfo
    """A description of the data; every face of a run shows it."""

    def __len__(self) -> int:
        """Return the number of batches of an epoch: the same in every epoch, at least one."""

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Any]:
        """Yield the batches of an epoch (counted from 0), from batch `start` on, on the run's device.

        They should be a pure function of the run's seed, the epoch and the index: then a run that is resumed in the
        middle of an epoch goes on with the very batches that it would have had, and loads no others to find them.

        Over several ranks these are the shards of this one, and each rank has as many batches.
        """


def as_source(
    made: Any,
    where: Where,
    context: DataContext,
    loader: LoaderParts | None = None,
    *,
    shards_itself: bool = False,
) -> Source:
    """Return what `use` at `where` has made as a source; `loader` says how to make batches, where it is a dataset.

    A source is taken as it is; batches with a length get an adapter. `shards_itself` says that it was given `rank` and
    `world`, as it must be over several ranks where no loader shards its examples. Raises UserError for anything else,
    for a dataset without a loader, and when there are no batches.
    """
    if loader is not None:
        return _from_dataset(made, where, loader, shards_itself)
    if _has_examples(made):
        hint = "loader = { batch_size = 64, shuffle = true }"
        raise _not_a_source(made, "which is a dataset: add `loader`", where, hint)
    if not hasattr(made, "__len__"):
        raise _not_a_source(made, "which has no length", where)
    if callable(getattr(made, "epoch", None)):
        missing = [key for key in DataInfo.__annotations__ if key not in getattr(made, "info", ())]
        if missing:
            raise _not_a_source(made, f"whose info lacks {', '.join(missing)}", where)
    elif not hasattr(made, "__iter__") or isinstance(made, str | Mapping):
        raise _not_a_source(made, "which yields no batches", where)
    try:
        batches = len(made)
    except TypeError as error:  # a DataLoader always has __len__, which may raise
        raise _not_a_source(made, f"which has no length: {error}", where) from None
    _check_not_empty(batches, where)
    if context.world > 1 and not shards_itself:
        message = f"this makes a {type(made).__name__}, which is not sharded across {context.world} ranks"
        hint = "let it take rank and world and give its rank's share, or give a dataset with a loader beside use"
        raise UserError(Problem(message, where, hint))
    if hasattr(made, "epoch"):
        return made  # type: ignore[no-any-return]
    source = Batches(made, context)
    if hasattr(made, "state_dict") and hasattr(made, "load_state_dict") and hasattr(made, "dataset"):
        return Stateful(made, source.info, context, (source.batch_size, source.global_batch_size))
    return source


def close(source: Source) -> None:
    """End what a source has started, if it has: it is not asked for batches any more."""
    if end := getattr(source, "close", None):
        end()


def _has_examples(made: Any) -> bool:
    """Say whether something gives examples one by one. A list or tuple that stands for itself holds batches."""
    if isinstance(made, Dataset):
        return True
    indexed = hasattr(made, "__getitem__") and hasattr(made, "__len__") and not isinstance(made, list | tuple | Mapping)
    return indexed and not isinstance(made, str) and not hasattr(made, "epoch")


def _from_dataset(made: Any, where: Where, loader: LoaderParts, shards_itself: bool) -> Source:
    source: Source
    if isinstance(made, DataLoader | list | tuple | str | Mapping) or hasattr(made, "epoch"):
        raise _not_a_source(made, "which is no dataset: it needs no loader", loader.place(""), "leave the loader out")
    if hasattr(made, "__getitem__") and hasattr(made, "__len__") and not isinstance(made, IterableDataset):
        _check_not_empty(len(made), where)
        if shards_itself and loader.context.world > 1:
            message = "this dataset takes rank and world, and its loader shards the examples already"
            hint = "let it give all examples on every rank, and not take rank and world"
            raise UserError(Problem(message, where, hint))
        source = OnDevice(made, loader) if loader.section.on_device else Loader(made, loader)
    elif hasattr(made, "__iter__"):
        source = stream_source(made, loader, shards_itself)
    else:
        hint = "a dataset has __getitem__ and __len__, or __iter__"
        raise _not_a_source(made, "which gives no examples", where, hint)
    _check_not_empty(len(source), where)
    return source


def _check_not_empty(count: int, where: Where) -> None:
    if not count:
        raise UserError(Problem("the dataset yields no batches", where, "is it smaller than a batch, with drop_last?"))


def _not_a_source(made: Any, why: str, where: Where, hint: str = f"it should make {EXPECTED}") -> UserError:
    return UserError(Problem(f"this makes a {type(made).__name__}, {why}", where, hint))
