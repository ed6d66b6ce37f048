"""Globs over names of modules, classes and parameters, and suggestions for a glob without a match."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from hookflow.errors import Problem, UserError, nearest

if TYPE_CHECKING:
    from torch import nn


def named_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters by name; one that several modules share (tied weights) has several names."""
    return dict(model.named_parameters(remove_duplicate=False))


def matches(name: str, globs: Iterable[str]) -> bool:
    return any(fnmatchcase(name, glob) for glob in globs)


def matching(parameters: Mapping[str, nn.Parameter], globs: Sequence[str]) -> dict[str, nn.Parameter]:
    """Return the parameters that globs pick; a shared one once, by the first name that matches."""
    result: dict[int, tuple[str, nn.Parameter]] = {}
    for name, parameter in parameters.items():
        if matches(name, globs):
            result.setdefault(id(parameter), (name, parameter))
    return dict(result.values())


def class_names(modules: Iterable[nn.Module]) -> list[str]:
    """Return the names of the modules' classes and of those that they are derived from, each once."""
    return list(dict.fromkeys(kind.__name__ for module in modules for kind in type(module).__mro__))


def no_match(glob: str, names: Collection[str], what: str) -> tuple[str, str] | None:
    """Return that a glob matches none of these names of `what`, and a hint at what may be meant; None if it does."""
    if any(fnmatchcase(name, glob) for name in names):
        return None
    there = ", ".join(filter(None, [*names][:8])) + ", …" * (len(names) > 8)
    hint = nearest(glob, names) or f"there are {there or 'none but the network itself'}"
    return f'no {what} matches "{glob}"', hint


def require_matches(globs: Iterable[str], names: Collection[str], what: str) -> None:
    """Raise UserError with the first glob that matches none of these names."""
    for glob in globs:
        if wrong := no_match(glob, names, what):
            raise UserError(Problem(wrong[0], hint=wrong[1]))
