"""The resolved settings of a loader: sampler, collate function, workers, generators."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import default_collate

from hookflow.errors import Problem, UserError, Where
from hookflow.hooks.arguments import parameters_of, wrong_arguments
from hookflow.pipeline.schema import Component, LoaderSection
from hookflow.pipeline.source_map import SourceMap
from hookflow.pipeline.use import refer
from hookflow.runner.data.base import DataContext
from hookflow.runner.data.batch_sampler import BatchSampler, CustomBatchSampler
from hookflow.runner.numerics.random_state import RNGStream, batch_seed

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
