"""`extends = "base.toml"`: a pipeline that is built on another one, which may be built on a third."""

from __future__ import annotations

import os.path
from pathlib import Path
from typing import Any, NamedTuple

from hookflow.errors import Problem, UserError, Where
from hookflow.pipeline.overrides import OTHER_LENGTH
from hookflow.pipeline.read import read, tables
from hookflow.pipeline.schema import NAMED_BY_LOADER
from hookflow.pipeline.source_map import Key, SourceMap


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
    _aim_files(whole, os.path.dirname(named))  # noqa: PTH120  # a Path would drop the "./" that a file begins with
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


def _aim_files(tree: dict[str, Any], folder: str) -> None:
    """Write "./file.py:Name" of a base so that it means the same file from a pipeline that sees it in `folder`."""
    parts = [tree.get(name) for name in ("model", "task", "optimizer")]
    several = ("model", "optimizer", "data", "hooks")
    parts += [part for name in several if isinstance(tree.get(name), dict) for part in tree[name].values()]
    models = [tree.get("model"), *(tree["model"].values() if isinstance(tree.get("model"), dict) else ())]
    for model in models if folder else ():
        _aim_weights(model, folder)
    for part in parts if folder else ():
        _aim(part, "use", folder)
        if isinstance(part, dict) and isinstance(loader := part.get("loader"), dict):
            for key in NAMED_BY_LOADER:
                _aim(loader, key, folder)
                _aim(loader.get(key), "use", folder)


def _aim(table: Any, key: str, folder: str) -> None:
    if isinstance(table, dict) and isinstance(use := table.get(key), str) and ".py:" in use:
        table[key] = os.path.join(folder, use.removeprefix("./"))  # noqa: PTH118  # it stays as its reader wrote it


def _aim_weights(model: Any, folder: str) -> None:
    """Write a base's file of weights likewise; one that begins at the root, or at somebody's home, stays."""
    table, key = (model, "weights") if isinstance(model, dict) else ({}, "")
    if isinstance(table.get(key), dict):
        table, key = table[key], "file"
    if isinstance(file := table.get(key), str) and not file.startswith(("~", "$")):
        table[key] = os.path.join(folder, file)  # noqa: PTH118  # it stays as its reader wrote it


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
