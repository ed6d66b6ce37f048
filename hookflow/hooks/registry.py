"""Hooks found by `use`: registered names, foreign hooks, and the user's classes and functions."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from hookflow.errors import Problem, UserError, Where
from hookflow.hooks.adapter import adapt_class, get_bases, is_class
from hookflow.hooks.adapter_registry import (
    find_adapter_of_class,
    find_adapter_of_use,
    has_adapter_prefix,
)
from hookflow.hooks.base import Hook
from hookflow.pipeline.registry import HOOKS


class NotImported:
    """Not imported."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Take any arguments: those of the hook are unknown."""


def find_hook(use: str, base: Path, where: Where | None) -> Callable[..., Any]:
    """Return the class or function that `use` names.

    Raises UserError when there is none, or it cannot be called.
    """
    adapter = find_adapter_of_use(use, where)
    if adapter is not None:
        result: Any = adapter.find(use.partition(":")[2], where)
    else:
        result = HOOKS.find(use, base, where)
    if is_class(result) and Hook not in get_bases(result):
        adapter = adapter or find_adapter_of_class(result)
        if adapter is not None:
            result = adapt_class(adapter, result, where)
    if not callable(result):
        message = f'"{use}" is no class or function, so it cannot be a hook'
        raise UserError(Problem(message, where))
    return result  # type: ignore[no-any-return]


def is_built_in(hook: object) -> bool:
    """Say whether a hook's class or function is hookflow's own."""
    module = getattr(hook, "__module__", None) or ""
    return module.startswith("hookflow.")


def find_without_import(use: str, base: Path, where: Where | None) -> Callable[..., Any]:
    """Return `NotImported` for a hook of the user's (`--no-import`).

    For one of hookflow's it is the class itself. Raises UserError when the file or the module of
    `use` does not exist, or defines no such name.
    """
    # The import is here because it loads pydantic, which `hookflow --help` does not need.
    from hookflow.pipeline.load import missing

    if has_adapter_prefix(use):
        return NotImported
    problem = missing(use, base, where, HOOKS)
    if problem:
        raise UserError(problem)
    place = HOOKS.place(use)
    if place in HOOKS.built_in.values() or place.startswith("hookflow.hooks."):
        return HOOKS.find(use, base, where)  # type: ignore[no-any-return]
    return NotImported
