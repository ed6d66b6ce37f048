"""What a loader is made with: the `loader` of a pipeline's data, with everything that it names resolved."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import default_collate

from hookflow.errors import Problem, UserError, Where
from hookflow.hooks.arguments import parameters_of, wrong_arguments
from hookflow.pipeline.schema import Component, LoaderSection
from hookflow.pipeline.source_map import SourceMap
from hookflow.pipeline.use import refer
from hookflow.runner.data.batch_sampler import BatchSampler, CustomBatchSampler

CALLED_WITH = {"collate": ("a list of examples",), "sampler": ("the dataset",), "augment": ("a batch", "a generator")}
"""What each named part is called with."""


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
            said = f"{sampler.examples} examples cannot be sharded across {self.world} ranks: each needs one"
            raise UserError(Problem(said, self.place("batch_size")))
        if len(sampler) > sampler.available:
            said = f"an epoch of this dataset has {sampler.available} batches, and not {len(sampler)}"
            raise UserError(Problem(said, self.place("batches"), "leave it out to take all of them"))
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
    found: dict[str, Any] = {}
    shown = public.named()
    for name, part in section.named().items():
        try:
            found[name] = _made(name, part, shown[name], refer(part.use, base, place(f"{name}.use")), place, seed)
        except UserError as error:
            problems += error.problems
    if section.batch_size < world:
        said = f"batches of {section.batch_size} cannot be sharded across {world} ranks: each needs an example"
        problems.append(Problem(said, place("batch_size"), "batch_size counts the examples of all of them together"))
    if problems:
        raise UserError(problems)
    return LoaderParts(
        section=section,
        place=place,
        collate=found.get("collate", default_collate),
        sampler=found.get("sampler"),
        augment=found.get("augment"),
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
        said = f'{name} must be a function or a class, and "{part.use}" is a {type(make).__name__}'
        raise UserError(Problem(said, where))
    is_object = isinstance(make, type) and name != "sampler"
    takes = [] if is_object else [p.name for p in parameters_of(make) if p.name not in part.args]
    filled = {*takes[: len(called_with)], *({"seed"} if name == "sampler" else ())}

    def argument(given: str) -> Where:
        return place(f"{name}.args.{given}" if given else name)

    wrong = wrong_arguments(make, part.args, name, argument, filled, public=public.args)
    if problems := list(wrong):
        raise UserError(problems)
    offered = {"seed": seed} if name == "sampler" and "seed" in takes else {}
    made: Any = make(**part.args) if is_object else partial(make, **{**offered, **part.args})
    try:
        inspect.signature(made).bind(*called_with)
    except TypeError as error:
        said = f"{name} is called with {' and '.join(called_with)}, and {part.use} cannot be: {error}"
        raise UserError(Problem(said, where)) from None
    except ValueError:  # written in C, without a signature to read
        pass
    return made  # type: ignore[no-any-return]
