"""Check whether `use` names something that exists, by parsing its file and without importing it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from hookflow.errors import Problem, UserError, Where, nearest
from hookflow.pipeline.load import Loaded, components
from hookflow.pipeline.registry import Registry, missing_extra, registry_of
from hookflow.pipeline.schema import Component, DataSource, Pipeline
from hookflow.pipeline.use import bindings_in, is_object, locate, maker_of, module_file, parse_file


def missing_components(loaded: Loaded, base: Path) -> list[Problem]:
    """Return a problem for each component that is not there."""
    parts, place = _components(loaded.pipeline), loaded.places.of
    result = (missing(part.use, base, place(f"{key}.use"), registry_of(key)) for key, part in parts.items())
    return [*filter(None, result)]


def missing_objects(loaded: Loaded) -> list[Problem]:
    """Return a problem for each component and hook that was an object of a program which is not this one."""
    uses = {key: part.use for key, part in _components(loaded.pipeline).items()}
    uses |= {f"hooks.{name}": hook.use for name, hook in loaded.pipeline.hooks.items()}
    result = (_missing_object(use, loaded.places.of(f"{key}.use")) for key, use in uses.items())
    return [*filter(None, result)]


def _components(pipeline: Pipeline) -> dict[str, Component]:
    """Return all that is made but the hooks, parts of loaders included, by its key."""
    parts = components(pipeline)
    loaders = {key: part.loader for key, part in parts.items() if isinstance(part, DataSource) and part.loader}
    named = ((f"{key}.loader.{name}", part) for key, loader in loaders.items() for name, part in loader.named().items())
    return parts | dict(named)


def missing(use: str, base: Path, where: Where | None, registry: Registry | None) -> Problem | None:
    """Return what keeps `use` from naming anything; None if nothing can be seen to. Nothing of it is imported."""
    if is_object(use):
        return _missing_object(use, where)
    if problem := (registry and registry.ambiguity(use, where)) or missing_extra(registry, use, where):
        return problem
    try:
        module, name = locate(use, base, where, registry.short_names(use) if registry else {})
        file = base / module if module.endswith(".py") else module_file(module)
    except UserError as error:
        return error.problems[0]
    except ModuleNotFoundError as error:
        return Problem(f'there is no module "{error.name}"', where)
    names = _names(file) if file else None
    first = name.partition(".")[0]
    if names is None or first in names:
        return None
    return Problem(f'"{use}": there is no "{first}" in {module}', where, nearest(first, names))


def _missing_object(use: str, where: Where | None) -> Problem | None:
    try:
        _ = is_object(use) and maker_of(use, where)
    except UserError as error:
        return error.problems[0]
    return None


@cache
def _names(file: Path) -> set[str] | None:
    """Return what a module defines at its top level; None where only running it would tell."""
    try:
        names = {name for name, _ in bindings_in(parse_file(file))}
    except (OSError, SyntaxError, RecursionError):
        return None  # what is wrong with it, importing it tells better
    return None if names & {"*", "__getattr__"} else names
