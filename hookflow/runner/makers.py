"""What each section of a pipeline names, hooks apart: the class or function that makes its object."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hookflow.errors import Problem, UserError, Where, by_place
from hookflow.hooks.arguments import parameters_of, wrong_arguments
from hookflow.pipeline.load import Loaded, named_parts, wrong_parts
from hookflow.pipeline.registry import missing_extra, registry_of
from hookflow.pipeline.schema import Component, Pipeline
from hookflow.pipeline.use import refer

Maker = Callable[..., Any]

OFFERED_TO_DATA = ("seed", "device", "say", "rank", "world", "pipeline_dir")
"""Arguments that a data source is given where it takes them and the file does not give them."""

OFFERED_TO_WRITERS = ("dir", "run_name", "run_id")
"""Arguments that a writer is given likewise: a folder of its own, and whose results these are."""


def find_makers(loaded: Loaded, base: Path, splits: Sequence[str]) -> dict[str, Maker]:
    """Return what each section names, by its key ("model.net"); of the data, those of `splits`.

    Raises UserError with all unknown names and wrong arguments, of all sections.
    """
    public = _components(loaded.public, splits)
    makers: dict[str, Maker] = {}
    problems = list(wrong_parts(loaded))
    for key, part in _components(loaded.pipeline, splits).items():
        try:
            makers[key] = _find(part.use, key, base, loaded.places.of(f"{key}.use"))
        except UserError as error:
            problems += error.problems
        else:
            problems += _wrong_arguments(makers[key], part, public[key], key, loaded.places.of)
    if problems:
        raise UserError(sorted(problems, key=by_place))
    return makers


def _components(pipeline: Pipeline, splits: Sequence[str]) -> dict[str, Component]:
    """Return what is made of a pipeline's sections, by its key."""
    sections: Mapping[str, Component | None] = {
        **named_parts(pipeline),
        "task": pipeline.task,
        **{f"data.{split}": getattr(pipeline.data, split) for split in splits},
        **{f"writers.{name}": writer for name, writer in pipeline.writers.items()},
    }
    return {key: section for key, section in sections.items() if section is not None}


def _find(use: str, key: str, base: Path, where: Where) -> Maker:
    registry = registry_of(key)
    if missing := missing_extra(registry, use, where):
        raise UserError(missing)
    maker: Maker = (registry.find if registry else refer)(use, base, where)
    return maker


def _wrong_arguments(
    make: Maker, part: Component, public: Component, key: str, place_of: Callable[[str], Where]
) -> Iterator[Problem]:
    def place(name: str) -> Where:
        return place_of(f"{key}.args.{name}" if name else f"{key}.use")

    filled: Sequence[str] = OFFERED_TO_DATA if key.startswith("data") else ()
    if key.startswith("writers"):
        filled = OFFERED_TO_WRITERS
    if key.startswith("optimizer"):
        filled = ["params"]
    if key == "task" and not isinstance(make, type):
        filled = [p.name for p in parameters_of(make)][:2]  # the run and the batch, whatever it calls them
    return wrong_arguments(make, part.args, key, place, filled, public=public.args)
