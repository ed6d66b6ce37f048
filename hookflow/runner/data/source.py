"""The contract of a source of batches.

The module has sources from datasets, loaders and other iterables of batches.
"""

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from functools import partial
from itertools import islice
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset

from hookflow.errors import Problem, UserError, Where
from hookflow.events.records import DataInfo
from hookflow.numbers import format_count
from hookflow.pipeline.by_epoch import ByEpoch, batches_by_epoch
from hookflow.pipeline.components import DataSection
from hookflow.pipeline.schema import Pipeline
from hookflow.pipeline.values import compute_num_batches
from hookflow.runner.data.batches import (
    DataContext,
    OverLoader,
    OwnStates,
    SizeAttribute,
    SizedSource,
    Sizes,
    compute_fingerprint,
    data_info,
    set_epoch_of,
    sets_of,
    split_of,
)
from hookflow.runner.data.loader import Loader, OnDevice
from hookflow.runner.data.loader_parts import LoaderParts
from hookflow.runner.data.mixed import MixedSource
from hookflow.runner.data.own_generators import warn_of_copies
from hookflow.runner.data.stream import Stateful, stream_source
from hookflow.runner.data.workers import send_errors_for_unsent_batches
from hookflow.runner.device.random_state import random_state, seed_temporarily, set_random_state

EXPECTED_SOURCE = (
    "a dataset, with a loader beside use; a torch.utils.data.DataLoader, or another iterable of"
    " batches that has a length; or an object with info, __len__ and epoch(epoch, start)"
)


class Source(Protocol):
    """One split of the data, as the runner and the hooks see it in `run.data`.

    The sources that hookflow makes have the attributes `dataset`, `sampler` and `loader`: the
    dataset; the sampler of the user, else what determines the order; and the DataLoader, None where
    batches are made in the training process.

    Two more methods are optional. They are called with the index of the latest batch in the epoch.
    `batch_size(index)` returns the number of its examples on this rank; without it, the size is
    read off the tensors (`hookflow.runner.data.batches.size_of`). `global_batch_size(index)`
    returns the examples of all ranks; without it, the ranks sum their sizes. One whose epochs have
    different lengths has the attribute `batches_by_epoch`, and a method `enter_epoch(epoch)`, after
    which its length and `info` are those of that epoch.
    """

    info: DataInfo
    """A description of the data, shown by the dashboard and the commands."""

    def __len__(self) -> int:
        """Return the number of batches of an epoch, at least one; of the current one,
        where `batches_by_epoch` is there.
        """

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Any]:
        """Yield an epoch's batches from batch `start` on, on the run's device.

        The epochs are counted from 0. Each batch should be a pure function of the run's seed, the
        epoch and the index. Then a run that is resumed in the middle of an epoch gets the batches
        that it would have had, and loads no others.

        Over several ranks these are the shards of this rank; all ranks have equally many batches.
        """


def as_source(
    made: Any,
    where: Where,
    context: DataContext,
    loader: LoaderParts | None = None,
    *,
    shards_itself: bool = False,
    evaluates: bool = False,
) -> Source:
    """Return what `use` at `where` has made as a source.

    `loader` says how to make batches, where it is a dataset. A source is taken as it is; batches
    with a length get an adapter. `shards_itself` says that it was given `rank` and `world`, as it
    must be over several ranks where no loader shards its examples. Raises UserError for anything
    else, for a dataset without a loader, and when there are no batches.
    """
    if loader is not None:
        return _from_dataset(made, where, loader, shards_itself)
    if _has_examples(made):
        then = "shuffle = true"
        if isinstance(made, IterableDataset):
            then = "batches = 1000"
        hint = f"loader = {{ batch_size = 64, {then} }}"
        raise _not_a_source(made, "which is a dataset: add `loader`", where, hint)
    _check_batches(made, where)
    if context.world > 1 and not shards_itself:
        message = (
            f"this makes a {type(made).__name__}, which is not sharded across {context.world} ranks"
        )
        hint = (
            "let it take rank and world and give its rank's share, or give a dataset with a loader"
            " beside use"
        )
        raise UserError(Problem(message, where, hint))
    if hasattr(made, "epoch"):
        return made  # type: ignore[no-any-return]
    _check_distributed_sampler(made, where, context, evaluates=evaluates)
    source = Batches(made, context)
    if hasattr(made, "state_dict") and hasattr(made, "load_state_dict"):
        sizes = source.batch_size, source.global_batch_size
        return Stateful(
            made,
            source.info,
            context,
            where,
            sizes,
            evaluates=evaluates,
            is_own_share=shards_itself,
        )
    return source


def _check_batches(made: Any, where: Where) -> None:
    """Raise UserError unless something yields batches, and says how many.

    A source has its `info`, too.
    """
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


def close(source: Source) -> None:
    """End what a source has started, if it has: it is not asked for batches any more."""
    end = getattr(source, "close", None)
    if end:
        end()


def _has_examples(made: Any) -> bool:
    """Say whether something gives examples one by one.

    A list or tuple that stands for itself holds batches.
    """
    if isinstance(made, Dataset):
        return True
    indexed = (
        hasattr(made, "__getitem__")
        and hasattr(made, "__len__")
        and not isinstance(made, list | tuple | Mapping)
    )
    return indexed and not isinstance(made, str) and not hasattr(made, "epoch")


def _from_dataset(made: Any, where: Where, loader: LoaderParts, shards_itself: bool) -> Source:
    source: Source
    if isinstance(made, DataLoader | list | tuple | str | Mapping) or hasattr(made, "epoch"):
        raise _not_a_source(
            made,
            "which is no dataset: it needs no loader",
            loader.place(""),
            "leave the loader out",
        )
    if (
        hasattr(made, "__getitem__")
        and hasattr(made, "__len__")
        and not isinstance(made, IterableDataset)
    ):
        _check_not_empty(len(made), where, "it has no examples")
        if shards_itself and loader.context.world > 1:
            message = (
                "this dataset takes rank and world, and its loader shards the examples already"
            )
            hint = "let it give all examples on every rank, and not take rank and world"
            raise UserError(Problem(message, where, hint))
        if loader.section.on_device:
            source = OnDevice(made, loader)
        else:
            source = Loader(made, loader)
    elif hasattr(made, "__iter__"):
        source = stream_source(made, loader, shards_itself)
    else:
        hint = "a dataset has __getitem__ and __len__, or __iter__"
        raise _not_a_source(made, "which gives no examples", where, hint)
    least = (
        "{examples} examples are fewer than a batch of {batch_size}, and drop_last leaves those out"
    )
    _check_not_empty(len(source), where, least.format(**source.info))
    return source


def _check_distributed_sampler(
    made: Any, where: Where, context: DataContext, *, evaluates: bool
) -> None:
    """Raise UserError for PyTorch's sampler of ranks where it does not fit.

    It may be of other ranks, or repeat examples of an evaluation. The sampler repeats some so that
    each rank has as many.
    """
    sampler = getattr(made, "sampler", None)
    if not isinstance(sampler, DistributedSampler) or context.world == 1:
        return
    if (sampler.rank, sampler.num_replicas) != (context.rank, context.world):
        of = f"its DistributedSampler is that of rank {sampler.rank} of {sampler.num_replicas}"
        message = (
            f"{of}, and this is rank {context.rank} of the {context.world} that share the data"
        )
        raise UserError(Problem(message, where, "make it with num_replicas = world, rank = rank"))
    examples = len(sampler.dataset)  # type: ignore[arg-type]
    repeated = sampler.total_size - examples
    if evaluates and repeated > 0:
        message = (
            f"its DistributedSampler repeats {repeated} of {examples} examples, so that each of the"
            f" {context.world} ranks has as many, and they would count twice"
        )
        hint = "make the dataset, with a loader beside use: its shards differ by one example"
        raise UserError(Problem(message, where, hint))


def _check_not_empty(
    count: int, where: Where, hint: str = "is it smaller than a batch, with drop_last?"
) -> None:
    if not count:
        raise UserError(Problem("the dataset yields no batches", where, hint))


def _not_a_source(
    made: Any, why: str, where: Where, hint: str = f"it should make {EXPECTED_SOURCE}"
) -> UserError:
    return UserError(Problem(f"this makes a {type(made).__name__}, {why}", where, hint))


SAME_STREAM = (
    "workers that give the same stream repeat examples: the dataset takes the share of its worker"
    " by torch.utils.data.get_worker_info()"
)


class Batches(OverLoader):
    """A source out of any iterable of batches with a length.

    A `torch.utils.data.DataLoader` is one. Each epoch iterates anew, after `set_epoch(epoch)` of
    its sampler if that has one. Its random numbers come from the global generators or the loader's
    own, whose state a checkpoint keeps. To resume in the middle of an epoch, the batches before
    that place are loaded again and thrown away.

    PyTorch's loader draws a seed for its workers as they start. With `persistent_workers` that is
    once in a run, and the seed of a shuffle comes first in the epochs after that. A resumed run
    starts them before it draws an order.
    """

    batch_size, global_batch_size = SizeAttribute(), SizeAttribute()

    def __init__(self, batches: Any, context: DataContext) -> None:
        self.batch_size, self.global_batch_size = _sizes_of(batches, context.world)
        self.loader = batches
        self._said = False
        is_loader = isinstance(batches, DataLoader)
        is_stream = is_loader and isinstance(batches.dataset, IterableDataset)
        if is_stream and batches.num_workers > 1:
            self._streams = batches.num_workers
        else:
            self._streams = 0
        """How many workers go through a stream, each through its share, or through all of it."""
        self._first_batches: set[int] = set()
        self._keeps_workers = is_loader and batches.persistent_workers
        self._context = context
        self._generator: torch.Generator | None = getattr(batches, "generator", None)
        self._began: dict[str, Any] | None = None
        self._began_with_workers = self._must_start_workers = False
        data = getattr(batches, "dataset", batches)
        if getattr(batches, "worker_init_fn", None) is None:
            warn_of_copies(data, getattr(batches, "num_workers", 0), context.say)
        parts = {
            name: getattr(batches, name, None)
            for name in ("sampler", "batch_sampler", "collate_fn", "generator")
        }
        self.own_states = OwnStates(dataset=data, **parts)
        size = getattr(batches, "batch_size", None) or 0
        if data is not batches and hasattr(data, "__len__"):
            examples = len(data)
        else:
            examples = len(batches) * size
        self.info = data_info(data, examples, len(batches), size)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Any]:
        self.compare_length(len(self.loader), "batches", self._context.say)
        set_epoch_of(self.loader, ("sampler", "batch_sampler"), epoch)
        send_errors_for_unsent_batches()  # workers are forked off this process
        given = start
        for batch in self._from(start):
            if given < self._streams:
                self._compare_workers(batch, given)
            given += 1
            yield self._context.to_device(batch)
        if given != len(self.loader):
            message = (
                f"{self.info['name']} promised {format_count(len(self.loader), 'batch')} in an"
                " epoch"
            )
            self._warn_once(f"{message}, and gave {given:,}; {SAME_STREAM}")

    def _compare_workers(self, batch: Any, index: int) -> None:
        """Warn where the first batches of an epoch, each of another worker, are the same."""
        mark = compute_fingerprint(batch)
        if index == 0:
            self._first_batches.clear()
        if mark in self._first_batches:
            self._warn_once(
                f"{self.info['name']}: two workers begin with the same batch; {SAME_STREAM}"
            )
        if mark is not None:
            self._first_batches.add(mark)

    def _warn_once(self, text: str) -> None:
        if not self._said:
            self._said = True
            self._context.say(text, "warn")

    @property
    def _has_persistent_workers(self) -> bool:
        return self._keeps_workers and self.loader._iterator is not None

    def _start_workers(self) -> None:
        """Start persistent workers.

        The generators, and what the user has made, are left as they are.
        """
        text = (
            f"{self.info['name']}: its persistent workers begin anew, so random numbers that they"
            " draw are others"
        )
        self._context.say(text, "warn")
        now = self._random()
        own = self.own_states.state_dict()
        iter(self.loader)
        self._set_random(now)
        self.own_states.load_state_dict(own)

    def _from(self, start: int) -> Iterator[Any]:
        if self._began_with_workers if start else self._must_start_workers:
            self._start_workers()
        self._must_start_workers = False
        if not start:
            self._began = self._random()
            self._began_with_workers = self._has_persistent_workers
            with self.own_states.drawing(again=False):
                return iter(self.loader)
        text = f"{self.info['name']}: loading {start} batches again to find the place in the epoch"
        self._context.say(text, "warn")
        now = self._random()
        if self._began:
            self._set_random(self._began)
        with self.own_states.drawing(again=True):
            batches = iter(self.loader)
            for _ in islice(batches, start):
                pass
        self._set_random(now)
        return batches  # type: ignore[no-any-return]

    def _random(self) -> dict[str, Any]:
        if self._generator is None:
            own = None
        else:
            own = self._generator.get_state()
        return {"global": random_state(self._context.device), "own": own}

    def _set_random(self, state: dict[str, Any]) -> None:
        set_random_state(state["global"], self._context.device)
        if self._generator is not None and state["own"] is not None:
            self._generator.set_state(state["own"])

    def state_dict(self) -> dict[str, Any]:
        """Return the random state at the epoch's beginning, and the states of the user's parts."""
        return {
            "began": self._began,
            "own": self._random()["own"],
            "parts": self.own_states.state_dict(),
            "began_with_workers": self._began_with_workers,
            "has_workers": self._has_persistent_workers or self._must_start_workers,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._began = state["began"]
        self._began_with_workers = state.get("began_with_workers", False)
        self._must_start_workers = (
            state.get("has_workers", False) and not self._has_persistent_workers
        )
        self.own_states.load_state_dict(state["parts"])
        if self._generator is not None and state["own"] is not None:
            self._generator.set_state(state["own"])


def _sizes_of(loader: Any, world: int) -> Sizes:
    """Return the batch sizes of a map-style DataLoader that makes its batches itself.

    A DistributedSampler gives every rank as many.
    """
    if (
        not isinstance(loader, DataLoader)
        or loader.batch_size is None
        or isinstance(loader.dataset, IterableDataset)
    ):
        return None, None
    sampler: Any = loader.sampler
    try:
        examples = len(sampler)
    except TypeError:  # nor is there a number of batches, which `as_source` reports
        return None, None
    size = loader.batch_size
    drop_last = loader.drop_last
    full, rest = divmod(examples, size)

    def here(index: int) -> int:
        if drop_last or index < full:
            return size
        return rest

    even = world == 1 or (type(sampler) is DistributedSampler and sampler.num_replicas == world)
    return here, (lambda index: here(index) * world) if even else None


DATA_NAMES = {"train": "training", "val": "validation", "test": "test"}


def called(split: str) -> str:
    """Return what messages call a source: "the validation data", "the validation data ood"."""
    name, _, own = split.partition(".")
    data = f"the {DATA_NAMES[name]} data"
    if own:
        return f"{data} {own}"
    return data


def limit(
    data: Mapping[str, Source], pipeline: Pipeline, say: Callable[..., None]
) -> dict[str, Source]:
    """Return the sources of a run by split, limited by its `limit_…` and `overfit`.

    Each limit is a warning: what is measured on a part of the data is no result.
    """
    run = pipeline.run
    result = dict(data)
    for split, source in data.items():
        name = split_of(split)
        written = getattr(run, f"limit_{name}")
        key = f"run.limit_{name}"
        if written is None:
            continue
        whole = batches_by_epoch(source)
        limited = whole.mapped(partial(compute_num_batches, written))
        if limited != whole:
            result[split] = LimitedSource(source, limited, key)
            say(
                f"{key}: {limited.at(0)} of {len(source)} batches of {called(split)} are used",
                "warn",
            )
    if run.overfit is not None and "train" in data:
        num_batches = len(data["train"])
        batches = compute_num_batches(run.overfit, num_batches)
        result["train"] = same = RepeatedSource(data["train"], batches, "run.overfit", run.seed)
        validation = sets_of("val", data)
        result |= dict.fromkeys(validation, same)
        validates = ""
        if validation:
            validates = " and validates"
        made = _order_when_repeated(pipeline.data)
        say(
            f"run.overfit: trains{validates} on the same {len(same)} of {num_batches} batches in"
            f" each epoch, {made}",
            "warn",
        )
    return result


def _order_when_repeated(data: DataSection) -> str:
    """Return in words how the batches are made that `run.overfit` repeats."""
    loaders = [source.loader for source in data.sources(["train"]).values()]
    if None in loaders:
        return "as the source gives them"
    is_ordered = any(
        loader.sampler or loader.batch_sampler for loader in loaders if loader is not None
    )
    order = "unshuffled"
    if is_ordered:
        order = "in the order of the sampler"
    return f"{order} and unaugmented"


class LimitedSource(SizedSource):
    """The first batches of each epoch of a source. It has all other abilities of the source.

    An attribute that a hook or a task assigns is the source's, too, which may refuse it.

    An epoch of a stream, or of several sets, is a number of batches anyway: limited, it has fewer,
    and the next epoch continues after them.
    """

    _own = frozenset({"_source", "_key", "whole", "info", "_compared", "batches_by_epoch"})
    """The attributes that are not the source's."""

    def __init__(self, source: Source, limit: int | ByEpoch, key: str) -> None:
        """`limit` is the batches of each epoch, and `key` the setting, e.g. "run.limit_train"."""
        if isinstance(limit, int):
            limit = ByEpoch.constant(limit)
        self._source = source
        self._key = key
        self.batches_by_epoch = limit
        self._describe(0)
        if isinstance(source, Stateful | MixedSource):
            source.info = self.info

    def _describe(self, epoch: int) -> None:
        """Let `len` and `info` be those of an epoch."""
        info = self._source.info
        self.whole = len(self._source)
        """The batches of the epoch without the limit."""
        batches = self.batches_by_epoch.at(epoch)
        examples = info["examples"]
        if info["batch_size"]:
            examples = min(examples, batches * info["batch_size"])
        note = f"{self._key}: {batches} of {self.whole} batches"
        if info["note"]:
            note = f"{note}; {info['note']}"
        self.info = {**info, "batches": batches, "examples": examples, "note": note}

    def enter_epoch(self, epoch: int) -> None:
        """Take on that an epoch is the current one."""
        enter = getattr(self._source, "enter_epoch", None)
        if enter is not None:
            enter(epoch)
            self._describe(epoch)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._own:
            super().__setattr__(name, value)
        else:
            setattr(self._source, name, value)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Any]:
        left = self.batches_by_epoch.at(epoch) - start
        if left > 0:
            yield from islice(self._source.epoch(epoch, start), left)


class RepeatedSource(LimitedSource):
    """The first `batches` batches of a source, the same ones in each epoch: fetched once, and kept.

    They are fetched with the global generators seeded, so that a resumed run has the same ones.
    Nothing that is assigned would change them: that raises UserError.
    """

    _own = LimitedSource._own | {"_batches", "_sizes", "_batch_sets", "batch_set"}

    def __init__(self, source: Source, batches: int, key: str, seed: int) -> None:
        super().__init__(source, batches, key)
        self._batches: list[Any] = []
        self._sizes: dict[str, list[int]] = {}
        self._batch_sets: list[str | None] = []
        with seed_temporarily(seed):
            for index, batch in enumerate(super().epoch(0)):
                self._batches.append(batch)
                self._batch_sets.append(getattr(source, "batch_set", None))
                # These methods know only the last batch, so its sizes are kept now.
                for name in ("batch_size", "global_batch_size"):
                    if callable(size := getattr(source, name, None)):
                        self._sizes.setdefault(name, []).append(size(index))
        close(source)

    def __getattr__(self, name: str) -> Any:
        """Return the kept sizes of the batches, or what the source has beyond its state.

        These do not change.
        """
        if name in ("state_dict", "load_state_dict", "close", "global_batch_sizes"):
            raise AttributeError(name)
        if name in self._sizes:
            return self._sizes[name].__getitem__
        return super().__getattr__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._own:
            message = f"{name} of the training data cannot be set: run.overfit keeps its batches"
            raise UserError(Problem(message, hint="leave run.overfit out"))
        super().__setattr__(name, value)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Any]:
        """Yield copies of the batches from batch `start` on.

        A task or a hook may change one in place.
        """
        for batch, batch_set in islice(
            zip(self._batches, self._batch_sets, strict=True), start, None
        ):
            self.batch_set = batch_set
            yield deepcopy(batch)
