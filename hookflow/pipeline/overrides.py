"""`--set key=value`, and `overrides` in Python: what a user changes of a pipeline file without editing it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from datetime import date, time
from typing import Any, NamedTuple

import tomli

from hookflow.errors import Problem, Where, nearest
from hookflow.pipeline.nested import walk
from hookflow.pipeline.read import impossible
from hookflow.pipeline.source_map import Key, SourceMap, dotted, split_key


class Override(NamedTuple):
    """A `key=value`, and where it was said: by an option, or in Python, where each part of the value has its place."""

    text: str
    where: Where
    in_python: bool = False


OTHER_LENGTH = {"max_epochs": "max_iters", "max_iters": "max_epochs"}
"""The two keys of `[run]` of which only one can hold."""


def in_python(text: str) -> Override:
    """Return a `key=value` of the `overrides` that `hookflow.load` was given."""
    key, _ = split_key(text)
    return Override(text, Where(f"overrides{_subscript(dotted(key))}"), in_python=True)


def _subscript(name: str) -> str:
    return f"[{name}]" if name.isdecimal() else f'["{name}"]'


def apply(overrides: Iterable[Override], tree: dict[str, Any], places: SourceMap) -> Iterator[Problem]:
    """Lay each `key=value` over `tree`, in place, and note where the value comes from. Yields those that cannot be.

    `key=null` takes the key away, for TOML has no null.
    """
    laid: set[Key] = set()
    for override, where, of_python in overrides:
        try:
            key, text = split_key(override)
        except ValueError:
            yield Problem("this is not KEY=VALUE", where, "write e.g. --set run.seed=1")
            continue
        if text == "null":
            if problem := _take_away(key, tree, where):
                yield problem
            continue
        try:
            value = _value(text)
        except ValueError:
            yield Problem("an integer has too many digits", where)
            continue
        if value == text and text.startswith(("[", "{", '"', "'")):
            yield Problem(f"unterminated value {text}", where, "perhaps the shell took its quotes: put '…' around")
            continue
        if problem := _put(key, value, tree, where):
            yield problem
            continue
        laid.add(key)
        _give_way(key, tree, laid)
        places.put(key, where)
        for part, _ in walk(value) if of_python else ():
            places.put((*key, *part), Where(where.source + "".join(map(_subscript, part))))


def read_value(text: str) -> Any:
    """Return the TOML value that `text` is; text that is none, and a date, stands for itself."""
    try:
        return _value(text)
    except ValueError:
        return text


def _value(text: str) -> Any:
    """Do what `read_value` does. Raises ValueError when an integer in it has more digits than Python writes."""
    try:
        values = tomli.loads(f"values = [{text}]")["values"]
        if any(impossible(values)):
            raise ValueError(text)
    except (tomli.TOMLDecodeError, RecursionError):  # it is no TOML, or nested too deep
        return text
    return text if len(values) != 1 or isinstance(values[0], date | time) else values[0]


def _put(key: Key, value: Any, tree: Any, where: Where) -> Problem | None:
    """Set the value, making tables on the way. Whether the keys may be there is asked later, of the whole."""
    for depth, name in enumerate(key):
        last = depth == len(key) - 1
        if isinstance(tree, list):
            if not name.isdecimal() or int(name) >= len(tree):
                there = f"its {len(tree)} entries are counted from 0"
                return Problem(f'"{".".join(key[:depth])}" is a list and has no "{name}"', where, there)
            index: Any = int(name)
        elif isinstance(tree, dict):
            index = name
        else:
            return Problem(f'"{".".join(key[:depth])}" is a plain value and has no keys', where)
        if last:
            tree[index] = value
        else:
            tree = tree.setdefault(index, {}) if isinstance(tree, dict) else tree[index]
    return None


def _take_away(key: Key, tree: Any, where: Where) -> Problem | None:
    """Remove a key. That one is not there is a mistake, but for a length, which may have given way already."""
    *way, last = key
    for name in way:
        tree = tree.get(name) if isinstance(tree, dict) else None
    if isinstance(tree, dict) and last in tree:
        del tree[last]
    elif last not in OTHER_LENGTH or way != ["run"]:
        hint = nearest(last, tree) if isinstance(tree, dict) else ""
        return Problem(f'there is no "{dotted(key)}" to take away', where, hint)
    return None


def _give_way(key: Key, tree: dict[str, Any], laid: Collection[Key]) -> None:
    """Drop the file's `run.max_epochs` for a given `run.max_iters`, and the other way round."""
    other = OTHER_LENGTH.get(key[1]) if len(key) == 2 and key[0] == "run" else None
    if other and ("run", other) not in laid:
        tree["run"].pop(other, None)
