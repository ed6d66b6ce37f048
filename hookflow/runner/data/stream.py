"""A source from an iterable dataset, loaded in this process or by workers of torchdata."""

from collections.abc import Iterator
from copy import deepcopy
from itertools import chain, repeat
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils._pytree import tree_flatten
from torch.utils.data import IterableDataset

from hookflow.errors import Problem, UserError, Where
from hookflow.events.records import DataInfo
from hookflow.numbers import format_count
from hookflow.pipeline.registry import missing_package
from hookflow.runner.data.batches import (
    DataContext,
    OverLoader,
    SizeAttribute,
    Sizes,
    compute_fingerprint,
    data_info,
    set_epoch_of,
)
from hookflow.runner.data.loader import collate_examples
from hookflow.runner.data.loader_parts import LoaderParts
from hookflow.runner.data.own_generators import find_generators, load_generators, save_generators
from hookflow.runner.data.worker_share import WorkerShare, this_worker
from hookflow.runner.data.workers import (
    PickledWithImports,
    allow_kill,
    end_workers,
    loader_options,
    no_loader_warnings,
    send_errors_for_unsent_batches,
)
from hookflow.runner.device.random_state import (
    GeneratorFork,
    RNGStream,
    generator_states,
    random_state,
    seed_for_batch,
    set_random_state,
)

STATE_KEYS = ("data", "examples")
"""The keys of a pass's state that hold the dataset's own state, and its iterator's."""


class StreamBatch(NamedTuple):
    """A batch as it comes from a worker, with what only the worker knows."""

    batch: Any
    """The collated examples of this rank; None where it has none of the `total`."""
    size: int
    """The examples of this rank."""
    total: int
    """The examples of all ranks that share the stream."""
    worker: int
    divided: bool
    """Whether the examples were divided among the workers here.

    They are where the dataset does not do it.
    """
    fingerprint: int | None
    """The mark of the first batch of a pass; None for the later ones."""


class SeededIterable(PickledWithImports, IterableDataset[Any]):
    """An iterable dataset that gives batches, and seeds the generators for each of them.

    The dataset's `__iter__` runs within the first batch, under its seed. A pass gives the same
    batches after a resume; if the dataset has no state, it loads what lies before its place.

    Each of `world` ranks iterates over all examples, and takes every `world`-th one from its `rank`
    on. In training, a last group of fewer than `world` examples is left out. In an evaluation each
    example counts, so such a group is added to the batch before. A dataset that `shards_itself`
    gives this rank's examples already.
    """

    def __init__(
        self, data: Any, parts: LoaderParts, batch_size: int, *, shards_itself: bool
    ) -> None:
        """`batch_size` counts the examples of this rank."""
        context = parts.context
        self.data = data
        self.seed = context.seed
        self.batch_size = batch_size
        self.drop_last = parts.section.drop_last
        self.collate = parts.collate
        self.split = parts.split
        self.rank, self.world = (0, 1) if shards_itself else (context.rank, context.world)
        self.reads_ahead = not parts.trains and self.world > 1 and not self.drop_last
        self.seed_suffix = (context.rank,) if shards_itself and context.rank else ()
        self.pass_ = 0

    def set_epoch(self, pass_: int) -> None:
        """Set how many times the dataset has been gone through."""
        self.pass_ = pass_
        set_epoch = getattr(self.data, "set_epoch", None)
        if set_epoch:
            set_epoch(pass_)

    def __iter__(self) -> "SeededIterator":
        return SeededIterator(self)


class SeededIterator:
    """One pass through an iterable dataset, in one worker; its state says how far it has come.

    A dataset may shuffle in `__iter__`, or with its first example if that is a generator function.
    A resume begins the pass under the seed of its first batch. A shuffle with the first example
    costs that example's random numbers. Hence the state is taken one example early where a first
    batch draws random numbers, and that example is discarded.

    Generators that the dataset holds are put back as the pass began, where it is loaded again from
    its beginning.
    """

    def __init__(self, of: SeededIterable) -> None:
        self._worker, _ = this_worker()
        self._of = of
        self._place = (of.pass_, self._worker)
        # The dataset's iterator is begun under the seed of the first batch.
        self._examples: Any = None
        self._share: WorkerShare | None = None
        self._batches = self._drawn = 0
        # Each entry is a batch size and how many batches had it: a fork may change the size.
        self._sizes: list[list[int]] = []
        self._over = False
        self._ahead: list[Any] = []
        self._draws_random = True
        self._earlier: dict[str, Any] = {}
        self._generators: dict[str, Any] = {}

    def __iter__(self) -> "SeededIterator":
        return self

    def __next__(self) -> StreamBatch:
        if self._over:
            raise StopIteration
        of = self._of
        is_first = self._batches == 0
        first = self._drawn + of.rank
        self._seed_for(self._batches)
        if of.reads_ahead:
            drawn = self._draw_ahead()
        else:
            drawn = self._draw()
        mine = drawn[of.rank :: of.world]
        if not drawn:
            raise StopIteration
        batch = None
        if len(drawn) >= of.world:
            indices = range(first, first + len(mine) * of.world, of.world)
            batch = collate_examples(mine, indices, of.collate, of.split)
        assert self._share is not None
        mark = None
        if is_first:
            mark = compute_fingerprint(batch)
        return StreamBatch(
            batch, len(mine), len(drawn), self._worker, bool(self._share.divides), mark
        )

    def _seed_for(self, batch: int) -> None:
        seed_for_batch(
            self._of.seed, RNGStream.EXAMPLES, *self._place, *self._of.seed_suffix, batch=batch
        )

    def _begin(self) -> WorkerShare:
        self._examples = iter(self._of.data)
        self._share = WorkerShare(self._examples)
        return self._share

    def _draw(self, wanted: int = 0) -> list[Any]:
        """Return the examples of all ranks in the next batch, of `wanted`.

        There are none where the dataset has no more.
        """
        share = self._share
        if share is None:
            self._generators = save_generators(find_generators(self._of.data))
            share = self._begin()
        before = None
        if not self._batches:
            before = generator_states()
        world = self._of.world
        wanted = wanted or self._of.batch_size * self._of.world
        drawn = share.take(wanted - world)
        if len(drawn) == wanted - world:
            self._earlier = deepcopy(self._states()) if self._draws_random else {}
            drawn += share.take(world)
        if before is not None:
            self._draws_random = before != generator_states()
        self._over = len(drawn) < wanted
        self._batches += 1
        self._drawn += len(drawn)
        if not self._sizes or self._sizes[-1][0] != wanted:
            self._sizes.append([wanted, 0])
        self._sizes[-1][1] += 1
        if self._over and self._of.drop_last:
            return []
        return drawn[: len(drawn) // world * world]

    def _draw_ahead(self) -> list[Any]:
        """Return the examples of all ranks in an evaluation's next batch, which leaves none out.

        So many are read ahead that every rank has one of the batch behind it; else that one is
        added to this one.
        """
        share = self._share or self._begin()
        world = self._of.world
        wanted = self._of.batch_size * world
        missing = wanted + world - len(self._ahead)
        self._ahead += share.take(missing)
        self._over = len(self._ahead) < wanted + world
        if self._over:
            count = len(self._ahead)
        else:
            count = wanted
        drawn = self._ahead[:count]
        self._ahead = self._ahead[count:]
        self._batches += 1
        self._drawn += count
        return drawn

    def _states(self) -> dict[str, Any]:
        parts = zip(STATE_KEYS, (self._of.data, self._examples), strict=True)
        states = {key: part.state_dict() for key, part in parts if hasattr(part, "state_dict")}
        return states | ({"share": self._share.state_dict()} if self._share else {})

    def state_dict(self) -> dict[str, Any]:
        """Return how many batches were given, and the states of the dataset and its iterator.

        These may have none.
        """
        early = self._draws_random and self._batches > 0 and not self._over
        place: dict[str, Any] = {
            "batches": self._batches,
            "drawn": self._drawn,
            "over": self._over,
            "early": early,
        }
        place["sizes"] = [list(pair) for pair in self._sizes]
        place["generators"] = self._generators
        return {**place, **(self._earlier if early else self._states())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if "data" in state:
            self._of.data.load_state_dict(deepcopy(state["data"]))
        if state["over"]:
            self._examples = iter(())  # a dataset that is through may stand at its beginning again
            self._share = WorkerShare(self._examples)
        elif has_state(state) and state["batches"]:
            self._seed_for(0)
            share = self._begin()
            if "examples" in state:
                self._examples.load_state_dict(deepcopy(state["examples"]))
            if "share" in state:  # else it was saved before the dataset had given an example
                share.load_state_dict(state["share"])
            if state["early"]:
                share.take(self._of.world)
        else:
            load_generators(find_generators(self._of.data), state.get("generators", {}))
            for size in chain.from_iterable(repeat(*pair) for pair in state["sizes"]):
                self._seed_for(self._batches)
                self._draw(size)
        self._batches = state["batches"]
        self._drawn = state["drawn"]
        self._over = state["over"]
        self._draws_random = state["early"] or not state["batches"]
        self._earlier = {
            key: deepcopy(state[key]) for key in (*STATE_KEYS, "share") if key in state
        }
        self._sizes = [list(pair) for pair in state["sizes"]]
        self._generators = state.get("generators", {})


def has_state(state: dict[str, Any]) -> bool:
    """Say whether a dataset or its iterator has a state of its own in that of a pass."""
    return any(key in state for key in STATE_KEYS)


def examples_to_reload(state: Any) -> int:
    """Return how many examples are loaded again to reach the place of a loader's state.

    There are none where data have a state.
    """
    if not isinstance(state, dict):
        return 0
    if "drawn" in state:
        return 0 if state["over"] or has_state(state) else state["drawn"]
    return sum(examples_to_reload(inner) for inner in state.values())


END_OF_PASS = object()
"""The mark behind the last batch of a pass."""


SAME_STATE = (
    "a loader's state_dict() says how many batches it has given, and iterating goes on behind them"
    " after load_state_dict(), as torchdata's StatefulDataLoader does; without both methods the"
    " batches are loaded again"
)


class Stateful(OverLoader):
    """A source out of a loader with `state_dict` and `load_state_dict`.

    torchdata's `StatefulDataLoader` is one.

    The protocol: `state_dict` says where the loader is in its pass, and its next iterator goes on
    there once the state is loaded. Raises UserError where the state is the same after the first two
    batches of a training.

    An epoch is so many batches. The stream goes on from epoch to epoch, and begins anew when it is
    through; it also begins anew for an epoch that does not follow. Then `set_epoch` of the dataset
    receives the number of its passes.

    A source that `evaluates` gives one whole pass, however many batches that has, and never begins
    anew within it. Over ranks that have their own streams, each must give as many batches as it has
    promised: all wait for one another.
    """

    batch_size, global_batch_size = SizeAttribute(), SizeAttribute()

    def __init__(
        self,
        loader: Any,
        info: DataInfo,
        context: DataContext,
        where: Where,
        sizes: Sizes = (None, None),
        *,
        evaluates: bool = False,
        is_own_share: bool = False,
    ) -> None:
        self.info = info
        self._where = where
        self.batch_size, self.global_batch_size = sizes
        self.loader = loader
        self._context = context
        self._evaluates = evaluates
        self._is_own_share = is_own_share and context.world > 1
        self._most_batches: int | None = None  # of an evaluation
        self._generator: torch.Generator | None = getattr(loader, "generator", None)
        self._stream: Iterator[Any] | None = None
        self._next = [0, 0]
        self._passes = 0
        self._saved: dict[str, Any] | None = None
        self._first_state: Any = None
        """The state after the first batch, until it is compared with that after the second."""

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Any]:
        """Yield the batches of an epoch (counted from 0), from batch `start` on, on the device.

        Raises UserError when `start` is not where the stream is: it cannot be taken there.
        """
        if self._evaluates:
            yield from self._evaluation()
            return
        if start == len(self):
            return  # a run may be resumed at the very end of an epoch
        follows = self._next == [epoch, start]
        if start and not follows:
            raise UserError(
                Problem(f"the checkpoint does not say where the stream {self.info['name']} was")
            )
        if follows and self._saved is not None:
            self._stream = self._resumed(self._saved)
        elif not follows or self._stream is None:
            self._passes = 0
            self._stream = self._started()
        self._saved = None
        for index in range(start, len(self)):
            batch = self._context.to_device(self._next_batch())
            self._next = [epoch, index + 1] if index + 1 < len(self) else [epoch + 1, 0]
            if epoch == 0 and index < 2:
                self._check_state(index)
            yield self._augmented(batch, epoch, index)

    def _check_state(self, index: int) -> None:
        """Compare the states of the loader after the first two batches.

        Raises UserError where they are the same.
        """
        state = self.loader.state_dict()
        if index == 0:
            self._first_state = deepcopy(state)
            return
        is_same = self._first_state is not None and _are_equal(self._first_state, state)
        self._first_state = None
        if is_same:
            message = f"the state of {self.info['name']} is the same after two batches"
            raise UserError(Problem(message, self._where, SAME_STATE))

    def _evaluation(self) -> Iterator[Any]:
        """Yield the batches of one pass over the stream, from its beginning."""
        self._passes = 0
        self._saved = None
        self._stream = self._started()
        given = 0
        while given != self._most_batches:
            batch = self._fetch()
            if batch is END_OF_PASS:
                self._check_pass()
                break
            given += 1
            if self._is_own_share and given > len(self):
                raise self._another_length(f"more than {len(self)}")
            yield self._augmented(self._context.to_device(batch), 0, given - 1)
        if not given:
            raise self._is_empty()
        if self._is_own_share and given < len(self):
            raise self._another_length(str(given))

    def _another_length(self, given: str) -> UserError:
        message = f"{self.info['name']} promised {len(self)} batches on this rank, and gave {given}"
        hint = "the ranks wait for one another: its length must be that of the share that it gives"
        return UserError(Problem(message, self._where, hint))

    def _is_empty(self) -> UserError:
        return UserError(Problem(f"the stream {self.info['name']} is empty", self._where))

    def _augmented(self, batch: Any, epoch: int, index: int) -> Any:
        return batch

    def _fetch(self) -> Any:
        """Return the next batch of the pass, or END_OF_PASS."""
        assert self._stream is not None
        return next(self._stream, END_OF_PASS)

    def _check_pass(self) -> None:
        """Look at what the pass has given, which is over."""

    def _next_batch(self) -> Any:
        batch = self._fetch()
        if batch is END_OF_PASS:
            self._check_pass()
            self._stream = self._started()
            batch = self._fetch()
        if batch is END_OF_PASS:
            raise self._is_empty()
        return batch

    def _resumed(self, saved: dict[str, Any]) -> Iterator[Any]:
        """Return the stream where it was.

        The states of the training's generators are restored afterwards.
        """
        count = examples_to_reload(saved["loader"])
        if count:
            text = (
                f"{self.info['name']}: loading {count} examples again to find the place in the"
                " stream"
            )
            self._context.say(text, "warn")
        before = random_state(self._context.device)
        stream = self._started(saved["loader"])
        if self._generator is not None:
            self._generator.set_state(saved["generator"])
        set_random_state(before, self._context.device)
        return stream

    def _started(self, state: Any = None) -> Iterator[Any]:
        """Begin a new pass, or go on with one in the state of the loader."""
        # The workers of a loader of the user's are forked off this process, and inherit this
        # setting.
        send_errors_for_unsent_batches()
        self._passes += state is None
        set_epoch_of(self.loader, ("dataset", "sampler", "batch_sampler"), self._passes - 1)
        if state is not None:
            self.loader.load_state_dict(state)
        with no_loader_warnings():
            stream: Iterator[Any] = iter(self.loader)
        allow_kill(stream)
        return stream

    def state_dict(self) -> dict[str, Any]:
        """Return which batch is next, and what finds it again."""
        if self._stream is None:
            return {"next": list(self._next), "passes": self._passes, "stream": self._saved}
        if self._generator is None:
            own = None
        else:
            own = self._generator.get_state()
        # The state is copied: the loader goes on changing what it returns, and a checkpoint may be
        # written beside the training.
        stream = {"loader": deepcopy(self.loader.state_dict()), "generator": own}
        return {"next": list(self._next), "passes": self._passes, "stream": stream}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.close()
        self._next = list(state["next"])
        self._passes = state["passes"]
        self._saved = state["stream"]
        self._stream = None
        self._forget_iterator()

    def close(self) -> None:
        if hasattr(self._stream, "_shutdown_workers"):
            end_workers(self._stream, self.info["name"], self._context.say)
            self._stream = None
            self._forget_iterator()  # its pipes close at once, not at a garbage collection

    def _forget_iterator(self) -> None:
        """Let a loader of PyTorch or torchdata forget its iterator, which it would go on with."""
        if hasattr(self.loader, "_iterator"):
            self.loader._iterator = None


def _are_equal(state: Any, other: Any) -> bool:
    """Return whether two states of a loader hold the same values."""
    values, structure = tree_flatten(state)
    other_values, other_structure = tree_flatten(other)
    return structure == other_structure and all(map(_is_equal_value, values, other_values))


def _is_equal_value(value: Any, other: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(value, other)
    if isinstance(value, np.ndarray):
        return np.array_equal(value, other)
    return bool(value == other)


class StreamSource(Stateful):
    """A stateful loader whose dataset counts the examples.

    Nothing else knows how many are in a batch of a stream.
    """

    def __init__(self, data: SeededIterable, info: DataInfo, parts: LoaderParts) -> None:
        # A dataset that shards itself gives each rank a share of its own, of whatever size.
        shared = data.world == parts.context.world
        super().__init__(
            _loader(data, parts),
            info,
            parts.context,
            parts.place("batch_size"),
            evaluates=not parts.trains,
            is_own_share=not shared,
        )
        self._most_batches = parts.section.batches
        self._world = data.world
        self._size = self._total = 0
        self._parts = parts
        self._fork = GeneratorFork()
        self._given = 0
        self._first_batches: dict[int, int] = {}
        """By worker in the present pass: the fingerprint of its first batch."""
        self._said: set[str] = set()
        self.batch_size = lambda index: self._size  # of the batch that was given last
        if shared:
            self.global_batch_size = lambda index: self._total

    @property
    def dataset(self) -> Any:
        return self.loader.dataset.data

    def _augmented(self, batch: Any, epoch: int, index: int) -> Any:
        return self._parts.augment_batch(batch, epoch, index)

    def _started(self, state: Any = None) -> Iterator[Any]:
        if state is None:
            self._given = 0
            self._first_batches = {}
        return super()._started(state)

    def _fetch(self) -> Any:
        with self._fork.drawing():
            fetched = super()._fetch()
        if fetched is END_OF_PASS:
            return END_OF_PASS
        self._size = fetched.size
        self._total = fetched.total
        self._given += fetched.total
        if fetched.batch is None:
            raise self._too_small_for_the_ranks(fetched)
        if fetched.divided:
            self._warn_of_division()
        if fetched.fingerprint is not None:
            self._compare_workers(fetched.worker, fetched.fingerprint)
        return fetched.batch

    def _too_small_for_the_ranks(self, fetched: StreamBatch) -> UserError:
        name = self.info["name"]
        workers = self._parts.section.workers
        if workers > 1:
            part = f"the part of worker {fetched.worker} of {name}"
        else:
            part = name
        message = (
            f"{part} has {format_count(fetched.total, 'example')}, and each of the {self._world}"
            " ranks needs one"
        )
        return UserError(
            Problem(
                message, self._parts.place("workers" if workers > 1 else ""), "use fewer workers"
            )
        )

    def _warn_of_division(self) -> None:
        name = self.info["name"]
        workers = self._parts.section.workers
        self._warn_once(
            "division",
            f"{name} does not take the share of its worker: each of the {workers} workers goes"
            f" through all of it, and gives one of {workers} examples. It is faster where the"
            " dataset takes its share by torch.utils.data.get_worker_info()",
        )

    def _compare_workers(self, worker: int, first_batch: int) -> None:
        """Warn where two workers begin a pass with the same examples."""
        others = [
            number
            for number, mark in self._first_batches.items()
            if mark == first_batch and number != worker
        ]
        self._first_batches[worker] = first_batch
        if others:
            self._warn_once(
                "equal workers",
                f"{self.info['name']}: worker {worker} begins with the same batch as worker"
                f" {others[0]}. If they give the same stream, examples are trained several times in"
                " place of others: let the dataset take its share by"
                " torch.utils.data.get_worker_info()",
            )

    def _check_pass(self) -> None:
        """Compare the examples of a pass with the dataset's length.

        Raises UserError where workers have given more in an evaluation: then they give the same
        examples.
        """
        if not hasattr(self.dataset, "__len__"):
            return
        section = self._parts.section
        batch_size = 1
        if section.batch_size is not None:
            batch_size = section.batch_size.at(0)
        promised = len(self.dataset)
        given = self._given
        left_out = 1  # a worker's last group of fewer examples
        if section.drop_last:
            left_out = batch_size // (self._context.world // self._world)
        elif not self._evaluates:
            left_out = self._world
        least = promised - max(section.workers, 1) * (left_out - 1)
        if least <= given <= promised:
            return
        message = (
            f"{self.info['name']} says that it has {format_count(promised, 'example')}, and gave"
            f" {given:,} in one pass"
        )
        hint = "let it take the share of its worker by torch.utils.data.get_worker_info()"
        if given <= promised or section.workers < 2:
            self._warn_once("length", f"{message}; its __len__ must be how many it gives")
        elif self._evaluates:
            raise UserError(
                Problem(
                    f"{message} of {section.workers} workers", self._parts.place("workers"), hint
                )
            )
        else:
            self._warn_once(
                "length", f"{message} of {section.workers} workers, some of them twice: {hint}"
            )

    def _warn_once(self, what: str, text: str) -> None:
        if what not in self._said:
            self._said.add(what)
            self._context.say(text, "warn")

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"workers": self._parts.section.workers, "given": self._given}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        now = self._parts.section.workers
        then = state.get("workers", now)
        if then != now:
            message = (
                f"a stream is resumed with the workers of its checkpoint: it had {then}, and now"
                f" has {now}"
            )
            raise UserError(Problem(message, self._parts.place("workers"), f"set workers = {then}"))
        super().load_state_dict(state)
        self._given = state.get("given", 0)


def stream_source(data: Any, parts: LoaderParts, shards_itself: bool) -> StreamSource:
    """Return an iterable dataset as a source; where it has workers, by torchdata's loader.

    Each rank takes its share of the stream, unless the dataset takes its rank as an argument.
    Raises UserError when torchdata is missing, for a key that a stream cannot have, and when the
    length of an epoch is unknown.
    """
    section = parts.section
    world = parts.context.world
    size = world  # without a batch size there is a batch_sampler, which is refused
    if section.batch_size is not None:
        size = section.batch_size.at(0)
    problems = [
        Problem(
            f"{key} needs a dataset with __getitem__ and __len__; this one is iterable",
            parts.place(key),
        )
        for key in ("shuffle", "sampler", "batch_sampler", "on_device")
        if getattr(section, key)
    ]
    if section.batches is None and not hasattr(data, "__len__"):
        message = (
            f"{type(data).__name__} has no length, so it is not known how many batches make an"
            " epoch"
        )
        problems.append(
            Problem(message, parts.place("batch_size"), "say it: loader = { …, batches = 1000 }")
        )
    if section.batch_size is not None and section.batch_size.changes:
        message = (
            "a batch_size that changes needs a dataset with __getitem__ and __len__; this one is"
            " iterable"
        )
        problems.append(Problem(message, parts.place("batch_size"), "give it one number"))
    if size % world:
        message = f"batches of {size} cannot be sharded evenly across {world} ranks"
        near = size // world * world or world
        problems.append(
            Problem(message, parts.place("batch_size"), f"take a multiple of {world}, e.g. {near}")
        )
    if problems:
        raise UserError(problems)
    examples = 0
    if hasattr(data, "__len__"):
        examples = len(data)
    share = 1
    if shards_itself:
        share = world
    length = section.batches or batches_of_pass(
        examples,
        size // share,
        world=world // share,
        workers=section.workers,
        drop_last=section.drop_last,
        evaluates=not parts.trains,
    )
    info = data_info(data, examples, length, size, parts.worker_note)
    return StreamSource(
        SeededIterable(data, parts, size // world, shards_itself=shards_itself), info, parts
    )


def batches_of_pass(
    examples: int, batch_size: int, *, world: int, workers: int, drop_last: bool, evaluates: bool
) -> int:
    """Return how many batches a stream gives in one pass.

    Each worker has every `workers`-th example.

    `batch_size` counts the examples of all `world` ranks that share the stream.
    """
    batches = 0
    for worker in range(max(workers, 1)):
        full, rest = divmod(len(range(worker, examples, max(workers, 1))), batch_size)
        batches += full
        is_added = evaluates and full > 0 and rest < world  # to the batch before
        is_left_out = drop_last or (rest < world and not evaluates)
        if rest and not is_added and not is_left_out:
            batches += 1
    return batches


class _InProcess:
    """Loads a stream in this process.

    Its state is that of the pass, which counts what it has given.
    """

    def __init__(self, dataset: SeededIterable) -> None:
        self.dataset = dataset
        self._pass = iter(dataset)
        self._saved: dict[str, Any] | None = None

    def __iter__(self) -> SeededIterator:
        self._pass = iter(self.dataset)
        saved = self._saved
        self._saved = None
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
    missing = missing_package(
        "an iterable dataset with workers", "torchdata", "data", parts.place("workers")
    )
    if missing:
        raise UserError(missing)
    from torchdata.stateful_dataloader import StatefulDataLoader

    with no_loader_warnings():
        return StatefulDataLoader(data, **loader_options(data, type(data.data).__name__, parts))
