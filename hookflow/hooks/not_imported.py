"""Hooks that are not imported (`--no-import`): only the pipeline file's own words about them are known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from hookflow.errors import UserError, Where
from hookflow.hooks.registry import BUILT_IN, HOOKS
from hookflow.pipeline.check_imports import missing

OURS = "hookflow.hooks."
"""Modules below this package are imported in any case: they hold no code of the user's."""


class NotImported:
    """Not imported."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Take any arguments: those of the hook are unknown."""


def find_without_import(use: str, base: Path, where: Where | None) -> Callable[..., Any]:
    """Return `NotImported` for a hook of the user's, and the class itself for one of hookflow's.

    Raises UserError when the file or the module of `use` does not exist, or defines no such name.
    """
    if problem := missing(use, base, where, HOOKS):
        raise UserError(problem)
    place = HOOKS.short_names(use).get(use, use)
    if place in BUILT_IN.values() or place.startswith(OURS):
        return HOOKS.find(use, base, where)  # type: ignore[no-any-return]
    return NotImported
