"""Globs over the names of modules and parameters, and what to say of one that matches none."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from hookflow.errors import nearest


def no_module(glob: str, names: Sequence[str]) -> tuple[str, str] | None:
    """Return that a glob matches none of these names of modules, and a hint at what may be meant; None if it does."""
    return no_match(glob, names, "module")


def no_match(glob: str, names: Sequence[str], what: str) -> tuple[str, str] | None:
    """Do so for the names of `what` there is in a network."""
    if any(fnmatchcase(name, glob) for name in names):
        return None
    there = ", ".join(filter(None, names[:8])) + ", …" * (len(names) > 8)
    hint = nearest(glob, names) or f"there are {there or 'none but the network itself'}"
    return f'no {what} of the network matches "{glob}"', hint
