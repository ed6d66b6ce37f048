"""What of a pipeline is recorded and shown: the reference in the place of what the environment gave, which is a secret.

Where the schema takes any string or value, `${env:TOKEN}` stands as it was written. What it holds to a form that a
reference has not (a number of epochs, a list of hooks, the name of a folder) is recorded as its value.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError

from hookflow.pipeline.explain import key_of
from hookflow.pipeline.interpolate import escape, variables_of
from hookflow.pipeline.nested import walk
from hookflow.pipeline.schema import Pipeline
from hookflow.pipeline.source_map import Key


def public(resolved: dict[str, Any], written: dict[str, Any]) -> Pipeline:
    """Return the valid pipeline of `resolved` with what stands in `written` for the environment's values.

    `written` is what `without_environment` makes of the same tables, and is changed.
    """
    left = dict(environment_keys(written))
    while True:
        try:
            return Pipeline.model_validate(written)
        except ValidationError as error:
            wrong = [key_of(details) for details in error.errors(include_url=False)]
            refused = [key for key in left if any(_within(key, one) or _within(one, key) for one in wrong)] or [*left]
            if not refused:
                raise
            for key in refused:
                del left[key]
                _put(written, key, escape(_get(resolved, key)))


def environment_keys(tree: Any) -> Iterator[tuple[Key, str]]:
    """Yield the key of each string that refers to the environment, and the string."""
    return ((key, value) for key, value in walk(tree) if isinstance(value, str) and variables_of(value))


def _within(key: Key, other: Key) -> bool:
    return key[: len(other)] == other


def _get(tree: Any, key: Key) -> Any:
    for part in key:
        tree = tree[int(part) if isinstance(tree, list) else part]
    return tree


def _put(tree: Any, key: Key, value: Any) -> None:
    table = _get(tree, key[:-1])
    table[int(key[-1]) if isinstance(table, list) else key[-1]] = value
