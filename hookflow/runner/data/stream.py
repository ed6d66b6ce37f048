"""A source from an iterable dataset, loaded in this process or by workers of torchdata."""

from collections.abc import Iterator
from copy import deepcopy
from itertools import chain, islice, repeat
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from hookflow.errors import Problem, UserError, Where
from hookflow.events.records import DataInfo
from hookflow.pipeline.registry import missing_package
from hookflow.runner.data.batches import DataContext, OverLoader, Sizes, data_info
from hookflow.runner.data.loader import collated
from hookflow.runner.data.loader_parts import LoaderParts
from hookflow.runner.data.workers import Shipped, end_workers, let_be_killed, loader_options, no_loader_warnings
from hookflow.runner.random_state import (
    ForkedGenerators,
    RNGStream,
    generator_states,
    random_state,
    seed_for_batch,
    set_random_state,
)

STATES = ("data", "examples")
"""The keys of a pass's state that hold the dataset's own state, and its iterator's."""


class SeededIterable(Shipped, IterableDataset[Any]):
    """An iterable dataset that gives batches, and seeds the generators for each of them.

    The dataset's `__iter__` runs within the first batch, under its seed. A pass gives the same batches after a resume;
    if the dataset has no state, it loads what lies before its place.

    Each of `world` ranks iterates over all examples, and takes every `world`-th one from its `rank` on. A last group of
    fewer than `world` examples is left out. A dataset that `shards_itself` gives this rank's examples already.
    """

    def __init__(self, data: Any, parts: LoaderParts, batch_size: int, *, shards_itself: bool) -> None:
        """`batch_size` counts the examples of this rank."""
        context = parts.context
        self.data = data
        self.seed = context.seed
        self.batch_size = batch_size
        self.drop_last, self.collate, self.split = parts.section.drop_last, parts.collate, parts.split
        self.rank, self.world = (0, 1) if shards_itself else (context.rank, context.world)
        self.seed_suffix = (context.rank,) if shards_itself and context.rank else ()
        self.pass_ = 0

    def set_epoch(self, pass_: int) -> None:
        """Set how many times the dataset has been gone through."""
        self.pass_ = pass_
        if set_epoch := getattr(self.data, "set_epoch", None):
            set_epoch(pass_)

    def __iter__(self) -> "SeededIterator":
        return SeededIterator(self)


class SeededIterator:
    """One pass through an iterable dataset, in one worker; its state says how far it has come.

    A dataset may shuffle in `__iter__`, or with its first example if that is a generator function. A resume begins the
    pass under the seed of its first batch. A shuffle with the first example costs that example's random numbers. Hence
    the state is taken one example early where a first batch draws random numbers, and that example is discarded.
    """

    def __init__(self, of: SeededIterable) -> None:
        worker = get_worker_info()
        self._of = of
        self._place = (of.pass_, worker.id if worker else 0)
        self._examples: Any = None  # begun under the seed of the first batch
        self._batches = self._drawn = 0
        self._sizes: list[list[int]] = []  # of the batches, each with how many there were: a fork may change it
        self._over = False
        self._draws_random = True
        self._earlier: dict[str, Any] = {}

    def __iter__(self) -> "SeededIterator":
        return self

    def __next__(self) -> tuple[int, Any]:
        if self._over:
            raise StopIteration
        self._seed_for(self._batches)
        of, first = self._of, self._drawn + self._of.rank
        examples = self._draw()
        if not examples:
            raise StopIteration
        indices = range(first, first + len(examples) * of.world, of.world)
        return len(examples), collated(examples, indices, of.collate, of.split)

    def _seed_for(self, batch: int) -> None:
        seed_for_batch(self._of.seed, RNGStream.EXAMPLES, *self._place, *self._of.seed_suffix, batch=batch)

    def _draw(self, wanted: int = 0) -> list[Any]:
        """Return the examples of the next batch, of `wanted` on all ranks; none where the dataset has no more."""
        if self._examples is None:
            self._examples = iter(self._of.data)
        before = generator_states() if not self._batches else None
        world, wanted = self._of.world, wanted or self._of.batch_size * self._of.world
        drawn = list(islice(self._examples, wanted - world))
        if len(drawn) == wanted - world:
            self._earlier = deepcopy(self._states()) if self._draws_random else {}
            drawn += islice(self._examples, world)
        if before is not None:
            self._draws_random = before != generator_states()
        self._over = len(drawn) < wanted
        self._batches += 1
        self._drawn += len(drawn)
        if not self._sizes or self._sizes[-1][0] != wanted:
            self._sizes.append([wanted, 0])
        self._sizes[-1][1] += 1
        return [] if self._over and self._of.drop_last else drawn[: len(drawn) // world * world][self._of.rank :: world]

    def _states(self) -> dict[str, Any]:
        parts = zip(STATES, (self._of.data, self._examples), strict=True)
        return {key: part.state_dict() for key, part in parts if hasattr(part, "state_dict")}

    def state_dict(self) -> dict[str, Any]:
        """Return how many batches were given, and the states of the dataset and its iterator, if they have one."""
        early = self._draws_random and self._batches > 0 and not self._over
        place: dict[str, Any] = {"batches": self._batches, "drawn": self._drawn, "over": self._over, "early": early}
        place["sizes"] = [list(pair) for pair in self._sizes]
        return {**place, **(self._earlier if early else self._states())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if "data" in state:
            self._of.data.load_state_dict(deepcopy(state["data"]))
        if state["over"]:
            self._examples = iter(())  # a dataset that is through may stand at its beginning again
        elif has_state(state) and state["batches"]:
            self._seed_for(0)
            self._examples = examples = iter(self._of.data)
            if "examples" in state:
                examples.load_state_dict(deepcopy(state["examples"]))
            if state["early"]:
                for _ in islice(examples, self._of.world):
                    pass
        else:
            for size in chain.from_iterable(repeat(*pair) for pair in state["sizes"]):
                self._seed_for(self._batches)
                self._draw(size)
        self._batches, self._drawn, self._over = state["batches"], state["drawn"], state["over"]
        self._draws_random = state["early"] or not state["batches"]
        self._earlier = {key: deepcopy(state[key]) for key in STATES if key in state}
        self._sizes = [list(pair) for pair in state["sizes"]]


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


class Stateful(OverLoader):
    """A source out of a loader with `state_dict` and `load_state_dict`, as `StatefulDataLoader` of torchdata is one.

    An epoch is so many batches. The stream goes on from epoch to epoch, and begins anew when it is through; it also
    begins anew for an epoch that does not follow, as each validation requests epoch 0. Then `set_epoch` of the dataset
    receives the number of its passes.
    """

    def __init__(
        self, loader: Any, info: DataInfo, context: DataContext, where: Where, sizes: Sizes = (None, None)
    ) -> None:
        self.info, self._where = info, where
        self.batch_size, self.global_batch_size = sizes
        self.loader = loader
        self._context = context
        self._generator: torch.Generator | None = getattr(loader, "generator", None)
        self._stream: Iterator[Any] | None = None
        self._next = [0, 0]
        self._passes = 0
        self._saved: dict[str, Any] | None = None

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Any]:
        """Yield the batches of an epoch (counted from 0), from batch `start` on, on the device.

        Raises UserError when `start` is not where the stream is: it cannot be taken there.
        """
        if start == len(self):
            return  # a run may be resumed at the very end of an epoch
        follows = self._next == [epoch, start]
        if start and not follows:
            raise UserError(Problem(f"the checkpoint does not say where the stream {self.info['name']} was"))
        if follows and self._saved is not None:
            self._stream = self._resumed(self._saved)
        elif not follows or self._stream is None:
            self._passes = 0
            self._stream = self._started()
        self._saved = None
        for index in range(start, len(self)):
            batch = self._context.to_device(self._next_batch())
            self._next = [epoch, index + 1] if index + 1 < len(self) else [epoch + 1, 0]
            yield self._augmented(batch, epoch, index)

    def _augmented(self, batch: Any, epoch: int, index: int) -> Any:
        return batch

    def _next_batch(self) -> Any:
        assert self._stream is not None
        for batch in self._stream:
            return batch
        self._stream = self._started()
        for batch in self._stream:
            return batch
        raise UserError(Problem(f"the stream {self.info['name']} is empty", self._where))

    def _resumed(self, saved: dict[str, Any]) -> Iterator[Any]:
        """Return the stream where it was. The states of the training's generators are restored afterwards."""
        if count := examples_to_reload(saved["loader"]):
            text = f"{self.info['name']}: loading {count} examples again to find the place in the stream"
            self._context.say(text, "warn")
        before = random_state(self._context.device)
        stream = self._started(saved["loader"])
        if self._generator is not None:
            self._generator.set_state(saved["generator"])
        set_random_state(before, self._context.device)
        return stream

    def _started(self, state: Any = None) -> Iterator[Any]:
        """Begin a new pass, or go on with one in the state of the loader."""
        self._passes += state is None
        if set_epoch := getattr(self.loader.dataset, "set_epoch", None):
            set_epoch(self._passes - 1)
        if state is not None:
            self.loader.load_state_dict(state)
        with no_loader_warnings():
            stream: Iterator[Any] = iter(self.loader)
        let_be_killed(stream)
        return stream

    def state_dict(self) -> dict[str, Any]:
        """Return which batch is next, and what finds it again."""
        if self._stream is None:
            return {"next": list(self._next), "passes": self._passes, "stream": self._saved}
        own = None if self._generator is None else self._generator.get_state()
        # A copy: the loader goes on changing what it gives out, and a checkpoint may be written beside the training.
        stream = {"loader": deepcopy(self.loader.state_dict()), "generator": own}
        return {"next": list(self._next), "passes": self._passes, "stream": stream}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.close()
        self._next, self._passes, self._saved = list(state["next"]), state["passes"], state["stream"]
        self._stream = self.loader._iterator = None

    def close(self) -> None:
        if hasattr(self._stream, "_shutdown_workers"):
            end_workers(self._stream, self.info["name"], self._context.say)
            self._stream = self.loader._iterator = None  # its pipes close at once, not at a garbage collection


class Stream(Stateful):
    """A stateful loader whose dataset counts the examples: nothing else knows how many are in a batch of a stream."""

    def __init__(self, data: SeededIterable, info: DataInfo, parts: LoaderParts) -> None:
        super().__init__(_loader(data, parts), info, parts.context, parts.place("batch_size"))
        self._size = 0
        self._parts = parts
        self.batch_size = lambda index: self._size  # of the batch that was given last
        if data.world == parts.context.world:  # else each rank takes a share of its own, of whatever size
            self.global_batch_size = lambda index: self._size * data.world

    @property
    def dataset(self) -> Any:
        return self.loader.dataset.data

    def _augmented(self, batch: Any, epoch: int, index: int) -> Any:
        return self._parts.augment_batch(batch, epoch, index)

    def _next_batch(self) -> Any:
        with ForkedGenerators(idle=True):
            self._size, batch = super()._next_batch()
        return batch

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"workers": self._parts.section.workers}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        now = self._parts.section.workers
        if (then := state.get("workers", now)) != now:
            message = f"a stream is resumed with the workers of its checkpoint: it had {then}, and now has {now}"
            raise UserError(Problem(message, self._parts.place("workers"), f"set workers = {then}"))
        super().load_state_dict(state)


def stream_source(data: Any, parts: LoaderParts, shards_itself: bool) -> Stream:
    """Return an iterable dataset as a source; where it has workers, by torchdata's loader.

    Each rank takes its share of the stream, unless the dataset takes its rank as an argument. Raises UserError when
    torchdata is missing, for a key that a stream cannot have, and when the length of an epoch is unknown.
    """
    section, world = parts.section, parts.context.world
    size = section.batch_size or world  # without one there is a batch_sampler, which is refused
    problems = [
        Problem(f"{key} needs a dataset with __getitem__ and __len__; this one is iterable", parts.place(key))
        for key in ("shuffle", "sampler", "batch_sampler", "on_device")
        if getattr(section, key)
    ]
    if section.batches is None and not hasattr(data, "__len__"):
        message = f"{type(data).__name__} has no length, so it is not known how many batches make an epoch"
        problems.append(Problem(message, parts.place("batch_size"), "say it: loader = { …, batches = 1000 }"))
    if size % world:
        message = f"batches of {size} cannot be sharded evenly across {world} ranks"
        near = size // world * world or world
        problems.append(Problem(message, parts.place("batch_size"), f"take a multiple of {world}, e.g. {near}"))
    if problems:
        raise UserError(problems)
    examples = len(data) if hasattr(data, "__len__") else 0
    full, rest = divmod(examples if shards_itself else examples // world, size // world)
    length = section.batches or full + bool(rest and not section.drop_last)
    info = data_info(data, examples, length, size, parts.worker_note)
    return Stream(SeededIterable(data, parts, size // world, shards_itself=shards_itself), info, parts)


class _InProcess:
    """Loads a stream in this process. Its state is that of the pass, which counts what it has given."""

    def __init__(self, dataset: SeededIterable) -> None:
        self.dataset = dataset
        self._pass = iter(dataset)
        self._saved: dict[str, Any] | None = None

    def __iter__(self) -> SeededIterator:
        self._pass, saved, self._saved = iter(self.dataset), self._saved, None
        if saved is not None:
            self._pass.load_state_dict(saved)
        return self._pass

    def state_dict(self) -> dict[str, Any]:
        return self._pass.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._saved = state


def _loader(data: SeededIterable, parts: LoaderParts) -> Any:
    if not parts.section.workers:
        return _InProcess(data)
    if missing := missing_package("an iterable dataset with workers", "torchdata", "data", parts.place("workers")):
        raise UserError(missing)
    from torchdata.stateful_dataloader import StatefulDataLoader

    with no_loader_warnings():
        return StatefulDataLoader(data, **loader_options(data, type(data.data).__name__, parts))
