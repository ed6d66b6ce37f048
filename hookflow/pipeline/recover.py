"""What can be understood of a pipeline that is not valid: its hooks, so that their mistakes are told as well."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from hookflow.pipeline.schema import Pipeline
from hookflow.pipeline.source_map import Key

_STUB = {"use": "builtins:print", "points": ["before_run"]}
"""Stands for a hook that cannot be understood, so that others may name it."""

_REST = {
    "run": {"name": "stub", "max_iters": 1},
    "model": {"use": "stub:stub"},
    "optimizer": {"use": "stub:stub"},
    "data": {"train": {"use": "stub:stub"}},
}


def recover(tree: Mapping[str, Any], faulty: Iterable[Key]) -> Pipeline | None:
    """Return a pipeline of the hooks and points of `tree` without what is `faulty`, the other sections made up.

    None when nothing can be made of it.
    """
    hooks, points = ({**_table(tree, name)} for name in ("hooks", "points"))
    for section, *path in faulty:
        if section == "points" and path:
            points.pop(path[0], None)
        elif section == "hooks" and path:
            _repair(hooks, *path)
    try:
        return Pipeline.model_validate({**_REST, "hooks": hooks, "points": points})
    except ValidationError:
        return None


def _table(tree: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = tree.get(name)
    return found if isinstance(found, dict) else {}


def _repair(hooks: dict[str, Any], name: str, *path: str) -> None:
    """Leave out a key that is at fault; a hook of which too much would be missing becomes a stub."""
    table = hooks.get(name)
    if not isinstance(table, dict) or not path or path[0] in ("use", "points"):
        hooks[name] = _STUB
    else:
        hooks[name] = {key: value for key, value in table.items() if key != path[0]}
