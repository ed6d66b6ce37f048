"""The resolved settings of a loader: sampler, batch sampler, collate function, workers, generators."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import default_collate

from hookflow.errors import Problem, UserError, Where
from hookflow.events.records import DataInfo
from hookflow.hooks.arguments import parameters_of, wrong_arguments
from hookflow.pipeline.schema import Component, LoaderSection
from hookflow.pipeline.source_map import SourceMap
from hookflow.pipeline.use import refer
from hookflow.runner.data.base import DataContext
from hookflow.runner.numerics.random_state import RNGStream, batch_seed, derive_seed, seeded

CALLED_WITH = {
    "collate": ("a list of examples",),
    "sampler": ("the dataset",),
    "augment": ("a batch", "a generator"),
    "worker_init_fn": ("the number of the worker",),
}
"""The arguments of each named part."""


@dataclass(frozen=True)
class LoaderParts:
    """How batches are made; `place` gives the place of a key of the section in the pipeline."""

    section: LoaderSection
    context: DataContext
    place: Callable[[str], Where]
    collate: Callable[[list[Any]], Any] = default_collate
    sampler: Callable[[Any], Any] | None = None
    augment: Callable[[Any, torch.Generator], Any] | None = None
    worker_init_fn: Callable[[int], Any] | None = None
    shuffle: bool = False

    @property
    def worker_note(self) -> str:
        """The workers, as a note in the description of the data."""
        workers = self.section.workers
        return f"fetched by {workers} worker{'s' * (workers > 1)}" if workers else ""

    def batch_sampler(self, data: Any) -> BatchSampler:
        """Return which examples of a map-style dataset each batch takes. Raises UserError when that cannot be."""
        context = self.context
        options: dict[str, Any] = {
            "batch_size": self.section.batch_size,
            "drop_last": self.section.drop_last,
            "seed": context.seed,
            "rank": context.rank,
            "world": context.world,
            "batches": self.section.batches,
        }
        sampler = (
            BatchSampler(len(data), shuffle=self.shuffle, **options)
            if self.sampler is None
            else CustomBatchSampler(self.sampler(data), len(data), self.place("sampler"), **options)
        )
        if sampler.examples < context.world:
            message = f"{sampler.examples} examples cannot be sharded across {context.world} ranks: each needs one"
            raise UserError(Problem(message, self.place("batch_size")))
        if len(sampler) > sampler.available:
            message = f"an epoch of this dataset has {sampler.available} batches, and not {len(sampler)}"
            raise UserError(Problem(message, self.place("batches"), "leave it out to take all of them"))
        return sampler

    def augmented(self, batches: Iterable[Any], epoch: int, start: int) -> Iterable[Any]:
        """Return the batches, the first of them at index `start` of the epoch, changed by `augment` on the device."""
        return (
            batches if self.augment is None else (self.augment_batch(b, epoch, k) for k, b in enumerate(batches, start))
        )

    def augment_batch(self, batch: Any, epoch: int, index: int) -> Any:
        """Return a batch changed by `augment`, if there is one, with a generator that is seeded for it."""
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

    `public` is the section with references in the place of what the environment has given. Raises UserError with
    everything that is missing, cannot be called as it will be, or cannot be sharded across the ranks.
    """

    def place(name: str) -> Where:
        return places.of(f"{key}.{name}")

    problems: list[Problem] = []
    result: dict[str, Any] = {}
    shown = public.named()
    for name, part in section.named().items():
        try:
            make = refer(part.use, base, place(f"{name}.use"))
            result[name] = _made(name, part, shown[name], make, place, context.seed)
        except UserError as error:
            problems += error.problems
    if section.batch_size < context.world:
        ranks = f"{context.world} ranks: each needs an example"
        message = f"batches of {section.batch_size} cannot be sharded across {ranks}"
        problems.append(Problem(message, place("batch_size"), "batch_size counts the examples of all of them together"))
    if problems:
        raise UserError(problems)
    shuffle = training if section.shuffle is None else section.shuffle
    return LoaderParts(section, context, place, shuffle=shuffle, **result)


def _made(
    name: str, part: Component, public: Component, make: Any, place: Callable[[str], Where], seed: int
) -> Callable[..., Any]:
    """Return what the loader will call: a function with the file's arguments in it, or an object made with them."""
    where, called_with = place(f"{name}.use"), CALLED_WITH[name]
    if not callable(make):
        message = f'{name} must be a function or a class, and "{part.use}" is a {type(make).__name__}'
        raise UserError(Problem(message, where))
    is_object = isinstance(make, type) and name != "sampler"
    takes = [] if is_object else [p.name for p in parameters_of(make) if p.name not in part.args]
    filled = {*takes[: len(called_with)], *({"seed"} if name == "sampler" else ())}

    def argument(provided: str) -> Where:
        return place(f"{name}.args.{provided}" if provided else name)

    wrong = wrong_arguments(make, part.args, name, argument, filled, public=public.args)
    if problems := list(wrong):
        raise UserError(problems)
    offered = {"seed": seed} if name == "sampler" and "seed" in takes else {}
    made: Any = make(**part.args) if is_object else partial(make, **{**offered, **part.args})
    try:
        inspect.signature(made).bind(*called_with)
    except TypeError as error:
        message = f"{name} is called with {' and '.join(called_with)}, and {part.use} cannot be: {error}"
        raise UserError(Problem(message, where)) from None
    except ValueError:  # written in C, without a signature to read
        pass
    return made  # type: ignore[no-any-return]


class BatchSharding:
    """The batches of an epoch of `examples`, each sharded across the ranks; the base of sources that make batches.

    `batch_size` counts the examples of all `world` ranks together. Each example is taken once, and the shards of a
    batch differ by one example at most. A last batch that is too small for every rank to have an example of it is
    added to the one before. With `drop_last` an incomplete last batch is left out. Raises ValueError when a batch has
    fewer examples than there are ranks.
    """

    def __init__(self, examples: int, batch_size: int, *, drop_last: bool, rank: int = 0, world: int = 1) -> None:
        if batch_size < world:
            raise ValueError(f"batches of {batch_size} cannot be sharded across {world} ranks")
        self.examples = examples
        self.rank = rank
        self.world = world
        full, rest = divmod(examples, batch_size)
        self._batches = full + (rest >= world and not drop_last)
        self._full = batch_size
        self._last = batch_size if drop_last else examples - (self._batches - 1) * batch_size
        self._full_here, self._last_here = (len(range(rank, size, world)) for size in (self._full, self._last))

    def __len__(self) -> int:
        """Return the number of batches of an epoch: the same on every rank."""
        return self._batches

    def batch_size(self, index: int) -> int:
        """Return how many examples this rank has in the batch at `index`."""
        return self._full_here if index + 1 < self._batches else self._last_here

    def global_batch_size(self, index: int) -> int:
        """Return how many examples all ranks together have in the batch at `index`."""
        return self._full if index + 1 < self._batches else self._last

    def shard(self, indices: Tensor, index: int) -> Tensor:
        """Return this rank's part of the batch at `index`: of the `indices` of the epoch, one for each example."""
        begin = index * self._full
        return indices[begin + self.rank : begin + self.global_batch_size(index) : self.world]

    def describe(self, name: str, note: str, *, synthetic: bool) -> DataInfo:
        """Return the `info` of a source of these batches."""
        return DataInfo(
            name=name,
            examples=self.examples,
            batches=len(self),
            batch_size=self._full,
            synthetic=synthetic,
            note=note,
        )


class BatchSampler(BatchSharding):
    """The order of the examples in each epoch, the same on every rank, and the batches that it is cut into.

    `batches` of them make an epoch, or all if left out: a shuffled epoch takes others each time.
    """

    def __init__(
        self, examples: int, batch_size: int, *, shuffle: bool, seed: int, batches: int | None = None, **sharding: Any
    ) -> None:
        """`sharding` is `drop_last`, `rank` and `world`."""
        super().__init__(examples, batch_size, **sharding)
        self.available = super().__len__()
        self._taken = self.available if batches is None else batches
        self.shuffle, self.seed = shuffle, seed

    def __len__(self) -> int:
        return self._taken

    @property
    def order(self) -> Any:
        """The user's sampler; this object where there is none."""
        return self

    def indices(self, epoch: int) -> Tensor:
        """Return the indices of all examples, int64 (examples,), in the order of the epoch."""
        if not self.shuffle:
            return torch.arange(self.examples)
        generator = torch.Generator().manual_seed(derive_seed(self.seed, RNGStream.ORDER, epoch))
        return torch.randperm(self.examples, generator=generator)

    def batches(self, epoch: int) -> list[Tensor]:
        """Return the indices of this rank's examples in each batch of the epoch."""
        order = self.indices(epoch)
        return [self.shard(order, index) for index in range(len(self))]


class CustomBatchSampler(BatchSampler):
    """Batches in the order of the user's sampler, which is run through at the start of each epoch.

    The global generators are seeded for the epoch meanwhile, so that its order can be reproduced though the sampler
    has no state. `set_epoch(epoch)` is called if there is one. Raises UserError at `where` when the sampler gives
    something else than indices of examples, or more or fewer in later epochs.
    """

    def __init__(self, sampler: Iterable[Any], data: int, where: Where, *, seed: int, **options: Any) -> None:
        self._sampler = sampler
        self._data = data
        self._where = where
        self.seed = seed
        super().__init__(len(self._sampled(0)), shuffle=False, seed=seed, **options)

    @property
    def order(self) -> Any:
        return self._sampler

    def indices(self, epoch: int) -> Tensor:
        """Return the indices that the sampler gives in the epoch."""
        result = self._sampled(epoch)
        if len(result) != self.examples:
            message = f"the sampler gave {self.examples} indices in epoch 0, and {len(result)} in epoch {epoch}"
            raise UserError(Problem(message, self._where, "every epoch must have as many"))
        return result

    def _sampled(self, epoch: int) -> Tensor:
        if set_epoch := getattr(self._sampler, "set_epoch", None):
            set_epoch(epoch)
        with seeded(derive_seed(self.seed, RNGStream.ORDER, epoch)):
            return torch.tensor([self._index(provided) for provided in self._sampler], dtype=torch.int64)

    def _index(self, provided: Any) -> int:
        try:
            index: int = provided.__index__()
        except (AttributeError, TypeError):
            message = f"the sampler gave a {type(provided).__name__} where an index is needed"
            hint = "a sampler gives one index at a time; batches are made of them here"
            raise UserError(Problem(message, self._where, hint)) from None
        if not 0 <= index < self._data:
            message = f"the sampler gave the index {index}, and the dataset has {self._data} examples"
            raise UserError(Problem(message, self._where, f"they count from 0 to {self._data - 1}"))
        return index
