"""Finding a hook without importing it: by its source alone, as `check --no-import` does with a stranger's file."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from hookflow.errors import Problem, UserError, Where
from hookflow.hooks.registry import BUILT_IN, HOOKS
from hookflow.hooks.stand_in import OURS, Source, unknown
from hookflow.pipeline.registry import missing
from hookflow.pipeline.use import module_file, parse_file


def find_unimported(use: str, base: Path, where: Where | None) -> Callable[..., Any]:
    """Return a stand-in for the hook that `use` names; hookflow's own hooks are imported, and nothing else is.

    Raises UserError when there is no such thing, or its source cannot be read.
    """
    if problem := missing(use, base, where, HOOKS):
        raise UserError(problem)
    place = HOOKS.short_names(use).get(use, use)
    module, _, name = place.rpartition(":")
    if place in BUILT_IN.values() or module.startswith(OURS):
        return HOOKS.find(use, base, where)  # type: ignore[no-any-return]
    file = base / module if module.endswith(".py") else module_file(module)
    if file is None:
        return unknown(f"{module} has no source in Python: all of it is unknown")
    try:
        return _source(file, file.stat().st_mtime_ns).stand_in(name)
    except SyntaxError as error:
        line = f":{error.lineno}" if error.lineno else ""
        said = f'"{module}" cannot be read: {error.msg}'
        raise UserError(Problem(said, where, f"at {file}{line}")) from None
    except RecursionError:
        raise UserError(Problem(f'"{use}" cannot be read: nested too deep', where, f"in {file}")) from None
    except (OSError, TypeError, ValueError) as error:
        raise UserError(Problem(f'"{use}" cannot be read: {error}', where, f"in {file}")) from None


@lru_cache(maxsize=4)
def _source(file: Path, changed: int) -> Source:
    """Return a source file as it was changed last; many hooks may come from one."""
    return Source(parse_file(file), file)
