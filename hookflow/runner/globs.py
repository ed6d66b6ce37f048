"""Globs over the names of modules, and what to say of one that matches none."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from hookflow.errors import nearest


def no_module(glob: str, names: Sequence[str]) -> tuple[str, str] | None:
    """Return that a glob matches none of these names of modules, and a hint at what may be meant; None if it does."""
    if any(fnmatchcase(name, glob) for name in names):
        return None
    there = ", ".join(filter(None, names[:8])) + ", …" * (len(names) > 8)
    hint = nearest(glob, names) or f"there are {there or 'none but the network itself'}"
    return f'no module of the network matches "{glob}"', hint
