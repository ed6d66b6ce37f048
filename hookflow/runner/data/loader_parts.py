"""The resolved settings of a loader.

These are sampler, batch sampler, collate function, workers, generators.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from math import ceil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import default_collate

from hookflow.errors import Problem, UserError, Where
from hookflow.events.records import DataInfo
from hookflow.hooks.arguments import find_argument_problems, find_call_problem, parameters_of
from hookflow.numbers import format_count
from hookflow.pipeline.by_epoch import ByEpoch
from hookflow.pipeline.components import Component, LoaderSection
from hookflow.pipeline.source_map import SourceMap
from hookflow.pipeline.use import resolve_use
from hookflow.runner.data.batches import DataContext, OwnStates, is_for_training, size_cannot_be_set
from hookflow.runner.device.random_state import RNGStream, batch_seed, derive_seed, seed_temporarily

CALLED_WITH = {
    "collate": ("a list of examples",),
    "sampler": ("the dataset",),
    "batch_sampler": ("the dataset",),
    "augment": ("a batch", "a generator"),
    "worker_init_fn": ("the number of the worker",),
}
"""The arguments of each named part."""

SAMPLER_KEYS = ("sampler", "batch_sampler")
"""The parts that are made for a dataset, with the run's seed where they take one."""


@dataclass(frozen=True)
class LoaderParts:
    """How batches of a split are made.

    `place` gives the place of a key of the section in the pipeline.
    """

    section: LoaderSection
    context: DataContext
    place: Callable[[str], Where]
    split: str
    collate: Callable[[list[Any]], Any] = default_collate
    sampler: Callable[[Any], Any] | None = None
    batch_sampler: Callable[[Any], Any] | None = None
    augment: Callable[[Any, torch.Generator], Any] | None = None
    worker_init_fn: Callable[[int], Any] | None = None
    shuffle: bool = False

    @property
    def trains(self) -> bool:
        """Whether the batches are trained on."""
        return is_for_training(self.split)

    @property
    def worker_note(self) -> str:
        """The workers, as a note in the description of the data."""
        workers = self.section.workers
        if workers:
            return f"fetched by {format_count(workers, 'worker')}"
        return ""

    def batches_of(self, data: Any) -> "BatchSampler | GivenBatches":
        """Return which examples of a map-style dataset each batch takes.

        Raises UserError when that cannot be.
        """
        context = self.context

        drawn = None
        make = self.batch_sampler or self.sampler
        if make:
            key = "sampler"
            if self.batch_sampler:
                key = "batch_sampler"
            drawn = DrawnSampler(make(data), data, context.seed, key, self.place(key))
        ranks = {"rank": context.rank, "world": context.world}
        sampler: BatchSampler | GivenBatches
        if drawn and self.batch_sampler:
            sampler = GivenBatches(drawn, self.section.batches, several=self.shuffle, **ranks)
        else:
            sizes = self.section.batch_size
            assert sizes is not None, "without a batch_sampler the section has one"
            options = {**self.section.model_dump(include={"drop_last", "batches"}), **ranks}
            options |= {"shuffle": self.shuffle, "seed": context.seed, "drawn": drawn}
            if sizes.changes:
                sampler = ChangingBatchSampler(len(data), sizes, **options)
            else:
                sampler = BatchSampler(len(data), sizes.at(0), **options)
        if sampler.examples < context.world and self.batch_sampler is None:
            message = (
                f"{sampler.examples} examples cannot be sharded across {context.world} ranks: each"
                " needs one"
            )
            raise UserError(Problem(message, self.place("batch_size")))
        if self.section.batches is not None and len(sampler) > sampler.available:
            message = (
                f"an epoch of this dataset has {sampler.available} batches, and not {len(sampler)}"
            )
            raise UserError(
                Problem(message, self.place("batches"), "leave it out to take all of them")
            )
        return sampler

    def augmented(self, batches: Iterable[Any], epoch: int, start: int) -> Iterable[Any]:
        """Return the batches, changed by `augment` on the device.

        The first of them is at index `start` of the epoch.
        """
        if self.augment is None:
            return batches
        return (self.augment_batch(b, epoch, k) for k, b in enumerate(batches, start))

    def augment_batch(self, batch: Any, epoch: int, index: int) -> Any:
        """Return a batch changed by `augment`, if there is one.

        Its generator is seeded for the batch.
        """
        if self.augment is None:
            return batch
        context = self.context
        seed = batch_seed(context.seed, RNGStream.AUGMENT, epoch, context.rank, batch=index)
        return context.to_device(self.augment(batch, self._generator.manual_seed(seed)))

    @cached_property
    def _generator(self) -> torch.Generator:
        return torch.Generator(self.context.device)


def loader_parts(
    section: LoaderSection,
    key: str,
    places: SourceMap,
    base: Path,
    context: DataContext,
    *,
    public: LoaderSection,
    training: bool,
) -> LoaderParts:
    """Import what the section at `key` names; files are relative to `base`.

    `public` is the section with references in the place of what the environment has given. Raises
    UserError with everything that is missing, cannot be called as it will be, or cannot be sharded
    across the ranks.
    """

    def place(name: str) -> Where:
        return places.of(f"{key}.{name}")

    problems: list[Problem] = []
    result: dict[str, Any] = {}
    shown = public.named()
    for name, part in section.named().items():
        try:
            make = resolve_use(part.use, base, place(f"{name}.use"))
            result[name] = _made(name, part, shown[name], make, place, context.seed)
        except UserError as error:
            problems += error.problems
    least = None
    if section.batch_size is not None:
        least = min(section.batch_size.values)
    if least is not None and least < context.world:
        ranks = f"{context.world} ranks: each needs an example"
        message = f"batches of {least} cannot be sharded across {ranks}"
        problems.append(
            Problem(
                message,
                place("batch_size"),
                "batch_size counts the examples of all of them together",
            )
        )
    if problems:
        raise UserError(problems)
    if section.shuffle is None:
        shuffle = training
    else:
        shuffle = section.shuffle
    split = key.removeprefix("data.").removesuffix(".loader")
    return LoaderParts(section, context, place, split, shuffle=shuffle, **result)


def _made(
    name: str,
    part: Component,
    public: Component,
    make: Any,
    place: Callable[[str], Where],
    seed: int,
) -> Callable[..., Any]:
    """Return what the loader will call.

    It is a function with the file's arguments in it, or an object made with them.
    """
    where = place(f"{name}.use")
    called_with = CALLED_WITH[name]
    if not callable(make):
        message = (
            f'{name} must be a function or a class, and "{part.use}" is a {type(make).__name__}'
        )
        raise UserError(Problem(message, where))
    is_object = isinstance(make, type) and name not in SAMPLER_KEYS
    if is_object:
        takes = []
    else:
        takes = [p.name for p in parameters_of(make) if p.name not in part.args]
    filled = {*takes[: len(called_with)], *({"seed"} if name in SAMPLER_KEYS else ())}

    def argument(provided: str) -> Where:
        return place(f"{name}.args.{provided}" if provided else name)

    wrong = find_argument_problems(make, part.args, name, argument, filled, public=public.args)
    problems = list(wrong)
    if problems:
        raise UserError(problems)
    if name in SAMPLER_KEYS and "seed" in takes:
        offered = {"seed": seed}
    else:
        offered = {}
    if is_object:
        made: Any = make(**part.args)
    else:
        made = partial(make, **{**offered, **part.args})
    why = find_call_problem(made, *called_with)
    if why:
        message = (
            f"{name} is called with {' and '.join(called_with)}, and {part.use} cannot be: {why}"
        )
        raise UserError(Problem(message, where))
    return made  # type: ignore[no-any-return]


class BatchSharding:
    """The batches of an epoch of `examples`, each sharded across the ranks.

    It is the base of sources that make batches.

    `batch_size` counts the examples of all `world` ranks together. Each example is taken once, and
    the shards of a batch differ by one example at most. A last batch that is too small for every
    rank to have an example of it is added to the one before. With `drop_last` an incomplete last
    batch is left out. Raises ValueError when a batch has fewer examples than there are ranks.
    """

    def __init__(
        self, examples: int, batch_size: int, *, drop_last: bool, rank: int = 0, world: int = 1
    ) -> None:
        if batch_size < world:
            raise ValueError(f"batches of {batch_size} cannot be sharded across {world} ranks")
        self.examples = examples
        self.rank = rank
        self.world = world
        full, rest = divmod(examples, batch_size)
        self._batches = full + (rest >= world and not drop_last)
        self._full = batch_size
        if drop_last:
            self._last = batch_size
        else:
            self._last = examples - (self._batches - 1) * batch_size
        self._full_here, self._last_here = (
            len(range(rank, size, world)) for size in (self._full, self._last)
        )

    def __len__(self) -> int:
        """Return the number of batches of an epoch: the same on every rank."""
        return self._batches

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("batch_size", "global_batch_size"):
            raise UserError(size_cannot_be_set(name))
        super().__setattr__(name, value)

    def batch_size(self, index: int) -> int:
        """Return how many examples this rank has in the batch at `index`."""
        if index + 1 < self._batches:
            return self._full_here
        return self._last_here

    def global_batch_size(self, index: int) -> int:
        """Return how many examples all ranks together have in the batch at `index`."""
        if index + 1 < self._batches:
            return self._full
        return self._last

    def shard(self, indices: Tensor, index: int) -> Tensor:
        """Return this rank's part of the batch at `index`.

        It is of the `indices` of the epoch, one for each example.
        """
        begin = index * self._full
        return indices[begin + self.rank : begin + self.global_batch_size(index) : self.world]

    def describe(self, name: str, note: str, *, synthetic: bool) -> DataInfo:
        return DataInfo(
            name=name,
            examples=self.examples,
            batches=len(self),
            batch_size=self._full,
            synthetic=synthetic,
            note=note,
        )


class BatchSampler(BatchSharding):
    """The order of the examples in each epoch, and the batches that it is cut into.

    They are the same on every rank.

    `batches` of them make an epoch, or all if left out: a shuffled epoch takes others each time.
    The order is that of the user's sampler where indices are `drawn` from one. Raises UserError
    where later epochs have more or fewer.
    """

    def __init__(
        self,
        examples: int,
        batch_size: int,
        *,
        shuffle: bool,
        seed: int,
        batches: int | None = None,
        drawn: "DrawnSampler | None" = None,
        **sharding: Any,
    ) -> None:
        """`sharding` is `drop_last`, `rank` and `world`."""
        self.shuffle = shuffle
        self.seed = seed
        self.drawn = drawn
        super().__init__(len(drawn.indices(0)) if drawn else examples, batch_size, **sharding)
        self.available = super().__len__()
        if batches is None:
            self._taken = self.available
        else:
            self._taken = batches

    def __len__(self) -> int:
        return self._taken

    def batches_in(self, epoch: int) -> int:
        """Return the number of batches of an epoch."""
        return len(self)

    def indices(self, epoch: int) -> Tensor:
        """Return the indices of all examples, int64 (examples,), in the order of the epoch."""
        if self.drawn:
            drawn = self.drawn.indices(epoch)
            if len(drawn) != self.examples:
                message = (
                    f"the sampler gave {self.examples} indices in epoch 0, and {len(drawn)} in"
                    f" epoch {epoch}"
                )
                raise UserError(Problem(message, self.drawn.where, "every epoch must have as many"))
            return torch.tensor(drawn, dtype=torch.int64)
        if not self.shuffle:
            return torch.arange(self.examples)
        generator = torch.Generator().manual_seed(derive_seed(self.seed, RNGStream.ORDER, epoch))
        return torch.randperm(self.examples, generator=generator)

    def begin(self, epoch: int, start: int) -> None:
        """Take on that an epoch begins, or goes on at batch `start`."""
        if self.drawn:
            self.drawn.again = start > 0

    def batches(
        self, epoch: int, start: int = 0, device: torch.device | None = None
    ) -> Iterator[Tensor]:
        """Return the indices of this rank's examples in each batch from batch `start` on."""
        order = self.indices(epoch).to(device)
        return (self.shard(order, index) for index in range(start, len(self)))


class ChangingBatchSampler(BatchSampler):
    """A batch sampler whose batches have another size from some epochs on.

    The order of an epoch does not depend on its batch size. `len` and `describe` are of the first
    epoch.
    """

    def __init__(
        self,
        examples: int,
        sizes: ByEpoch,
        *,
        drop_last: bool,
        rank: int = 0,
        world: int = 1,
        **options: Any,
    ) -> None:
        self._sizes = sizes
        sharding: dict[str, Any] = {"drop_last": drop_last, "rank": rank, "world": world}
        super().__init__(examples, sizes.at(0), **options, **sharding)
        self._shardings = {
            size: BatchSharding(self.examples, size, **sharding) for size in sizes.values
        }
        self._current = self._sharding_of(0)
        self.available = min(map(len, self._shardings.values()))
        if options.get("batches") is None:
            self.batches_by_epoch = sizes.mapped(lambda size: len(self._shardings[size]))
        else:
            self.batches_by_epoch = ByEpoch.constant(len(self))

    def batch_size_in(self, epoch: int) -> int:
        """Return the examples of a batch of an epoch, of all ranks together."""
        return self._sizes.at(epoch)

    def batches_in(self, epoch: int) -> int:
        return self.batches_by_epoch.at(epoch)

    def begin(self, epoch: int, start: int) -> None:
        super().begin(epoch, start)
        self._current = self._sharding_of(epoch)

    def batch_size(self, index: int) -> int:
        """Return how many examples this rank has in the batch at `index` of the current epoch."""
        return self._current.batch_size(index)

    def global_batch_size(self, index: int) -> int:
        """Return how many examples all ranks have in the batch at `index` of the current epoch."""
        return self._current.global_batch_size(index)

    def batches(
        self, epoch: int, start: int = 0, device: torch.device | None = None
    ) -> Iterator[Tensor]:
        order = self.indices(epoch).to(device)
        sharding = self._sharding_of(epoch)
        return (sharding.shard(order, index) for index in range(start, self.batches_in(epoch)))

    def describe(self, name: str, note: str, *, synthetic: bool) -> DataInfo:
        changes = [
            f"{size} after {format_count(first, 'epoch')}" for first, size in self._sizes.stages[1:]
        ]
        described = f"batches of {', '.join(changes)}"
        return super().describe(
            name, "; ".join(filter(None, (described, note))), synthetic=synthetic
        )

    def _sharding_of(self, epoch: int) -> BatchSharding:
        return self._shardings[self._sizes.at(epoch)]


class DrawnSampler:
    """The items that the user's sampler yields in an epoch.

    It is run through at the start of each one. The global generators are seeded for the epoch
    meanwhile, so that its order can be reproduced though the sampler has no state.
    `set_epoch(epoch)` of the sampler, and of one within it, is called if it is there.
    """

    def __init__(
        self, sampler: Iterable[Any], data: Any, seed: int, key: str, where: Where
    ) -> None:
        self.sampler = sampler
        self.key = key
        self.where = where
        self._data, self._examples, self._seed = data, len(data), seed
        self.samplers = {key: sampler, "inner": getattr(sampler, "sampler", None)}
        self.own_states = OwnStates()
        self.again = False

    def epoch(self, epoch: int) -> list[Any]:
        self._examples = len(self._data)  # a hook may have added some
        with self.own_states.drawing(again=self.again):
            for owner in self.samplers.values():
                set_epoch = getattr(owner, "set_epoch", None)
                if set_epoch:
                    set_epoch(epoch)
            with seed_temporarily(derive_seed(self._seed, RNGStream.ORDER, epoch)):
                return [*self.sampler]

    def indices(self, epoch: int) -> list[int]:
        return [self.index(provided) for provided in self.epoch(epoch)]

    def index(self, provided: Any) -> int:
        """Return an index of an example. Raises UserError where it is something else."""
        try:
            index: int = provided.__index__()
        except (AttributeError, TypeError):
            hint = {
                "sampler": "a sampler gives one index at a time; batches are made of them here",
                "batch_sampler": (
                    "a batch_sampler gives one list of indices at a time, which is a batch"
                ),
            }
            message = f"the {self.key} gave a {type(provided).__name__} where an index is needed"
            raise UserError(Problem(message, self.where, hint[self.key])) from None
        if not 0 <= index < self._examples:
            message = (
                f"the {self.key} gave the index {index}, and the dataset has {self._examples}"
                " examples"
            )
            raise UserError(
                Problem(message, self.where, f"they count from 0 to {self._examples - 1}")
            )
        return index


Shares = list[list[int]]
"""The indices of the examples of a batch, by rank."""


class GivenBatches:
    """The batches of the user's batch sampler, of any sizes.

    It has the methods of a `BatchSampler`. A batch of the run is a whole one for each rank. Where
    too few are left for that, the examples of each are sharded across some of the ranks. Raises
    UserError when that cannot be, when the sampler gives something else than lists of indices, or
    another number of them in a later epoch; where `batches` make an epoch, there may be more. Epoch
    1 is gone through before training, if the epochs of the data are `several`.
    """

    def __init__(
        self, drawn: DrawnSampler, batches: int | None, *, rank: int, world: int, several: bool
    ) -> None:
        self.rank = rank
        self.world = world
        self.drawn = drawn
        self._taken = batches
        batches_of_epoch = self._given(0)
        self.available = ceil(len(batches_of_epoch) / world)
        self._cached = 0, self._shared_out(batches_of_epoch, 0)
        self.examples = sum(self.global_batch_sizes(0))
        if several and len(self) <= self.available:
            self._shares(1)

    def __len__(self) -> int:
        if self._taken is None:
            return self.available
        return self._taken

    def batches_in(self, epoch: int) -> int:
        """Return the number of batches of an epoch."""
        return len(self)

    def begin(self, epoch: int, start: int) -> None:
        """Take on the sizes of an epoch's batches.

        A sampler with a state may draw others than before.
        """
        self.drawn.again = start > 0
        if self.drawn.own_states:
            self._cached = -1, []
        self._sizes = [[len(share) for share in shares] for shares in self._shares(epoch)]

    def batch_size(self, index: int) -> int:
        """Return how many examples this rank has in the batch at `index`."""
        return self._sizes[index][self.rank]

    def global_batch_size(self, index: int) -> int:
        """Return how many examples all ranks together have in the batch at `index`."""
        return sum(self._sizes[index])

    def batches(
        self, epoch: int, start: int = 0, device: torch.device | None = None
    ) -> Iterator[Tensor]:
        """Return the indices of this rank's examples in each batch from batch `start` on."""
        mine = [shares[self.rank] for shares in self._shares(epoch)]
        flat = torch.tensor([*chain(*mine)], dtype=torch.int64, device=device)
        return iter(flat.split([*map(len, mine)])[start:])

    def global_batch_sizes(self, epoch: int) -> list[int]:
        """Return how many examples all ranks together have in each batch of the epoch."""
        return [sum(map(len, shares)) for shares in self._shares(epoch)]

    def describe(self, name: str, note: str, *, synthetic: bool) -> DataInfo:
        sizes = self.global_batch_sizes(0)
        note = "; ".join(
            filter(
                None, (f"batches of {min(sizes)} to {max(sizes)} examples" if sizes else "", note)
            )
        )
        return DataInfo(
            name=name,
            examples=self.examples,
            batches=len(self),
            batch_size=0,
            synthetic=synthetic,
            note=note,
        )

    def _shares(self, epoch: int) -> list[Shares]:
        """Return the batches of an epoch, each shared out among the ranks."""
        if self._cached[0] != epoch:
            self._cached = epoch, self._shared_out(self._given(epoch), epoch)
        return self._cached[1]

    def _given(self, epoch: int) -> list[list[int]]:
        drawn = self.drawn
        result = []
        for batch in drawn.epoch(epoch):
            if not isinstance(batch, Iterable) or isinstance(batch, str):
                message = (
                    f"the batch_sampler gave a {type(batch).__name__} where a list of indices is"
                    " needed"
                )
                raise UserError(
                    Problem(
                        message,
                        drawn.where,
                        "it gives one batch at a time; `sampler` gives indices",
                    )
                )
            result.append([drawn.index(provided) for provided in batch])
            if not result[-1]:
                raise UserError(
                    Problem(f"the batch_sampler gave an empty batch in epoch {epoch}", drawn.where)
                )
        return result

    def _shared_out(self, batches: list[list[int]], epoch: int) -> list[Shares]:
        world = self.world
        count = ceil(len(batches) / self.world)
        if count < len(self) <= self.available or (count > len(self) and self._taken is None):
            each = ""
            if world > 1:
                each = " for each rank"
            message = (
                f"the batch_sampler gave {self.available} batches{each} in epoch 0, and {count} in"
                f" epoch {epoch}"
            )
            hint = "every epoch must have as many; or let `batches` be as many as the shortest has"
            raise UserError(Problem(message, self.drawn.where, hint))
        result = [batches[k : k + world] for k in range(0, len(batches), world)][: len(self)]
        if result and (left := len(last := result[-1])) < world:
            sharing = [len(range(number, world, left)) for number in range(left)]
            result[-1] = [
                last[rank % left][rank // left :: sharing[rank % left]] for rank in range(world)
            ]
            if not all(result[-1]):
                some = "the last batch"
                if left > 1:
                    some = f"the last {left} batches"
                message = (
                    f"{some} of epoch {epoch} cannot be sharded across {world} ranks: each needs an"
                    " example"
                )
                raise UserError(
                    Problem(message, self.drawn.where, f"leave it out: batches = {count - 1}")
                )
        return result
