"""The resolved settings of a loader: sampler, collate function, workers, generators."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import default_collate

from hookflow.errors import Problem, UserError, Where
from hookflow.hooks.arguments import parameters_of, wrong_arguments
from hookflow.pipeline.schema import Component, LoaderSection
from hookflow.pipeline.source_map import SourceMap
from hookflow.pipeline.use import refer
from hookflow.runner.numerics.random_state import RNGStream, derive_seed, seeded
from hookflow.sharding import BatchSharding


class BatchSampler(BatchSharding):
    """The order of the examples in each epoch, the same on every rank, and the batches that it is cut into.

    `batches` of them make an epoch, or all if left out: a shuffled epoch takes others each time.
    """

    def __init__(
        self,
        examples: int,
        batch_size: int,
        *,
        shuffle: bool,
        drop_last: bool,
        seed: int,
        rank: int = 0,
        world: int = 1,
        batches: int | None = None,
    ) -> None:
        super().__init__(examples, batch_size, drop_last=drop_last, rank=rank, world=world)
        self.available = super().__len__()
        self._taken = self.available if batches is None else batches
        self.shuffle = shuffle
        self.seed = seed

    def __len__(self) -> int:
        return self._taken

    def indices(self, epoch: int) -> Tensor:
        """Return the indices of all examples, int64 (examples,), in the order of the epoch."""
        if not self.shuffle:
            return torch.arange(self.examples)
        generator = torch.Generator().manual_seed(derive_seed(self.seed, RNGStream.ORDER, epoch))
        return torch.randperm(self.examples, generator=generator)


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


CALLED_WITH = {"collate": ("a list of examples",), "sampler": ("the dataset",), "augment": ("a batch", "a generator")}
"""The arguments of each named part."""


@dataclass(frozen=True)
class LoaderParts:
    """How batches are made; `place` gives the place of a key of the section in the pipeline."""

    section: LoaderSection
    place: Callable[[str], Where]
    collate: Callable[[list[Any]], Any]
    sampler: Callable[[Any], Any] | None
    augment: Callable[[Any, torch.Generator], Any] | None
    shuffle: bool
    seed: int
    device: torch.device
    channels_last: bool
    say: Callable[..., None]
    rank: int = 0
    world: int = 1

    def batch_sampler(self, data: Any) -> BatchSampler:
        """Return which examples of a map-style dataset each batch takes. Raises UserError when that cannot be."""
        options: dict[str, Any] = {
            "batch_size": self.section.batch_size,
            "drop_last": self.section.drop_last,
            "seed": self.seed,
            "rank": self.rank,
            "world": self.world,
            "batches": self.section.batches,
        }
        sampler = (
            BatchSampler(len(data), shuffle=self.shuffle, **options)
            if self.sampler is None
            else CustomBatchSampler(self.sampler(data), len(data), self.place("sampler"), **options)
        )
        if sampler.examples < self.world:
            message = f"{sampler.examples} examples cannot be sharded across {self.world} ranks: each needs one"
            raise UserError(Problem(message, self.place("batch_size")))
        if len(sampler) > sampler.available:
            message = f"an epoch of this dataset has {sampler.available} batches, and not {len(sampler)}"
            raise UserError(Problem(message, self.place("batches"), "leave it out to take all of them"))
        return sampler


def loader_parts(
    section: LoaderSection,
    key: str,
    places: SourceMap,
    base: Path,
    *,
    public: LoaderSection,
    seed: int,
    training: bool,
    device: torch.device,
    channels_last: bool,
    say: Callable[..., None],
    rank: int = 0,
    world: int = 1,
) -> LoaderParts:
    """Look up what the section at `key` names; files are relative to `base`.

    `public` is the section with references in the place of what the environment has given.
    Raises UserError with everything in it that is not there, cannot be called as it will be, or cannot be sharded
    across `world` ranks.
    """

    def place(name: str) -> Where:
        return places.of(f"{key}.{name}")

    problems: list[Problem] = []
    result: dict[str, Any] = {}
    shown = public.named()
    for name, part in section.named().items():
        try:
            result[name] = _made(name, part, shown[name], refer(part.use, base, place(f"{name}.use")), place, seed)
        except UserError as error:
            problems += error.problems
    if section.batch_size < world:
        message = f"batches of {section.batch_size} cannot be sharded across {world} ranks: each needs an example"
        problems.append(Problem(message, place("batch_size"), "batch_size counts the examples of all of them together"))
    if problems:
        raise UserError(problems)
    return LoaderParts(
        section=section,
        place=place,
        collate=result.get("collate", default_collate),
        sampler=result.get("sampler"),
        augment=result.get("augment"),
        shuffle=training if section.shuffle is None else section.shuffle,
        seed=seed,
        device=device,
        channels_last=channels_last,
        say=say,
        rank=rank,
        world=world,
    )


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
