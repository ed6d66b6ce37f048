"""Walks through nested tables and lists, as a pipeline file has them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def walk(tree: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every value with its key, in the order of the file: each table and list too, ahead of what it holds."""
    waiting: list[tuple[tuple[str, ...], Any]] = [((), tree)]
    while waiting:
        key, value = waiting.pop()
        yield key, value
        inner = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
        waiting += [((*key, str(name)), below) for name, below in inner][::-1]


def flat(tables: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested tables by their dotted keys; a list is one value."""
    for name, value in tables.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value
