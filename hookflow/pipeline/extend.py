"""`extends = "base.toml"`: a pipeline that is built on another one, which may be built on a third."""

from __future__ import annotations

import os.path
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin, get_type_hints

from pydantic import Discriminator, Tag

from hookflow.errors import Problem, UserError, Where
from hookflow.pipeline.overrides import OTHER_LENGTH
from hookflow.pipeline.read import read, tables
from hookflow.pipeline.schema import Pipeline, Section
from hookflow.pipeline.source_map import Key, SourceMap
from hookflow.pipeline.values import BesidePipeline


class _Step(NamedTuple):
    """A file that extends another one, and where it says so."""

    file: Path
    where: Where


def extended(text: str, source: Path, on_the_way: tuple[_Step, ...] = ()) -> tuple[dict[str, Any], SourceMap]:
    """Return what a file says, laid over all that it extends, and where each key of the whole is said.

    Tables are merged key by key, and anything else is replaced; so is a table that `use`s something else than the
    one below it, because its arguments would not fit. Raises UserError when a file cannot be read, or extends itself.
    """
    return over_base(*tables(text, str(source)), source, on_the_way)


def over_base(
    tree: dict[str, Any], places: SourceMap, source: Path, on_the_way: tuple[_Step, ...] = ()
) -> tuple[dict[str, Any], SourceMap]:
    """Do what `extended` does, for the tables of a file and where their keys stand."""
    if "extends" not in tree:
        return tree, places
    named, where = tree.pop("extends"), places.of("extends")
    if not isinstance(named, str) or "\0" in named:
        hint = "one file; what that one extends, it says itself"
        raise UserError(Problem("extends must be the name of a file, in quotes", where, hint))
    way = (*on_the_way, _Step(source, where))
    base = _shortest(source.parent / named)
    _refuse_circle(base, way)
    whole, base_places = extended(read(base, where), base, way)
    if folder := os.path.dirname(named):  # noqa: PTH120  # a Path would drop the "./" that a file begins with
        whole = _aimed(whole, Pipeline, folder)
    _drop_length(whole, tree)
    whole_places = SourceMap(str(source))
    for name in whole:
        whole_places.take((name,), base_places)
    _lay_over(whole, tree, (), whole_places, places)
    return whole, whole_places


def _shortest(path: Path) -> Path:
    """Return the path without its "..", if that leads to the same file: links may lie in between."""
    short = Path(os.path.normpath(path))
    return short if os.path.realpath(short) == os.path.realpath(path) else path


def _refuse_circle(base: Path, way: tuple[_Step, ...]) -> None:
    files = [os.path.realpath(step.file) for step in way]
    if os.path.realpath(base) in files:
        circle = way[files.index(os.path.realpath(base)) :]
        names = " → ".join(str(step.file) for step in (*circle, circle[0]))
        lines = "\n    ".join(f"{step.where}" for step in circle[1:])
        hint = f"it goes on at {lines}" if lines else ""
        raise UserError(Problem(f"a pipeline cannot be built on itself: {names}", circle[0].where, hint))


def _aimed(value: Any, declared: Any, folder: str) -> Any:
    """Return a value of a base, declared so by the schema, with its files as a pipeline outside `folder` names them."""
    declared, *notes = get_args(declared) if get_origin(declared) is Annotated else (declared,)
    for note in notes:
        if isinstance(note, BesidePipeline) and isinstance(value, str):
            return note.seen_from_outside(value, folder)
    options = get_args(declared)
    for note in notes:
        if isinstance(note, Discriminator) and callable(note.discriminator):
            tag = Tag(str(note.discriminator(value)))
            return next((_aimed(value, option, folder) for option in options if tag in get_args(option)), value)
    match value, get_origin(declared) or declared:
        case dict(), type() as section if issubclass(section, Section):
            fields = get_type_hints(section, include_extras=True)
            return {name: _aimed(inner, fields.get(name), folder) for name, inner in value.items()}
        case dict(), kind if kind is dict:
            return {name: _aimed(inner, options[1], folder) for name, inner in value.items()}
        case list(), kind if kind is list:
            return [_aimed(inner, options[0], folder) for inner in value]
        case _, kind if kind in (Union, UnionType):
            for option in options:
                value = _aimed(value, option, folder)
    return value


def _drop_length(base: dict[str, Any], tree: dict[str, Any]) -> None:
    """Drop the base's `run.max_epochs` for a `run.max_iters`, and the other way round: only one can hold."""
    below, said = base.get("run"), tree.get("run")
    if isinstance(below, dict) and isinstance(said, dict):
        for length, other in OTHER_LENGTH.items():
            if length in said:
                below.pop(other, None)


def _lay_over(base: dict[str, Any], tree: dict[str, Any], key: Key, whole: SourceMap, places: SourceMap) -> None:
    for name, value in tree.items():
        below = base.get(name)
        if isinstance(value, dict) and isinstance(below, dict) and not _uses_another(value, below):
            _lay_over(below, value, (*key, name), whole, places)
        else:
            base[name] = value
            whole.take((*key, name), places)


def _uses_another(table: dict[str, Any], below: dict[str, Any]) -> bool:
    return "use" in table and "use" in below and _plain(table["use"]) != _plain(below["use"])


def _plain(use: Any) -> Any:
    """Return the shortest way to write a file's path; anything else as it is."""
    return os.path.normpath(use) if isinstance(use, str) and ".py:" in use else use
