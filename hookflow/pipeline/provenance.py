"""Every value of a resolved pipeline, and who said so: a file and line, or an option of the command line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from hookflow.errors import Where
from hookflow.pipeline.load import Loaded, as_tables
from hookflow.pipeline.places import Key, dotted


class Said(NamedTuple):
    """A key ("hooks.log.points.0.every"), its resolved value, and where it was said; None: it is the default.

    What a reference stands for is said where the reference is.
    """

    key: str
    value: Any
    where: Where | None


def provenance(loaded: Loaded) -> Iterator[Said]:
    """Yield every value that the pipeline is run with, in the order of a file; lists of plain values stay whole."""
    for key, value in _leaves(as_tables(loaded.pipeline), ()):
        yield Said(dotted(key), value, loaded.places.said(key))


def _leaves(value: Any, key: Key) -> Iterator[tuple[Key, Any]]:
    tables = isinstance(value, list) and any(isinstance(item, dict) for item in value)
    if not value or not (tables or isinstance(value, dict)):
        yield key, value
        return
    for name, inner in value.items() if isinstance(value, dict) else enumerate(value):
        yield from _leaves(inner, (*key, str(name)))
