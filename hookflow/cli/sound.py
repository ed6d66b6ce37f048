"""A pipeline's plan, if all that can be seen of the pipeline without running it is sound."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hookflow.errors import Problem, UserError, by_place
from hookflow.graph.plan import Plan
from hookflow.hooks.compile import compile_pipeline
from hookflow.pipeline.load import Loaded, UnsoundError, load
from hookflow.pipeline.spot import missing_components


def read_pipeline(
    path: Path,
    overrides: Sequence[str] = (),
    *,
    without: Sequence[str] = (),
    only: Sequence[str] = (),
    recorded: bool = False,
) -> Loaded:
    """Load a file, as `hookflow.pipeline.load.load` does.

    Raises UserError with all that is wrong with it, and with what is understood of its hooks.
    """
    try:
        return load(path, overrides, without=without, only=only, recorded=recorded)
    except UnsoundError as error:
        raise UserError(sorted([*error.problems, *_of_hooks(error.rest)], key=by_place)) from None


def _of_hooks(rest: Loaded | None) -> list[Problem]:
    """Return what is wrong with the hooks of a file that is not valid otherwise."""
    try:
        if rest is not None:
            compile_pipeline(rest)
    except UserError as error:
        return error.problems
    return []


def sound_plan(loaded: Loaded, base: Path | None = None, shuffle: int | None = None) -> Plan:
    """Compile the hooks and look for everything else that the pipeline names.

    Files are relative to `base`, the pipeline's own folder if left out; `shuffle` is the seed of another order.
    Raises UserError with all that is wrong.
    """
    problems: list[Problem] = missing_components(loaded, base or loaded.source.parent)
    try:
        plan = compile_pipeline(loaded, base, shuffle)
    except UserError as error:
        every = [*problems, *error.problems]
        raise UserError(sorted(every, key=by_place)) from None
    if problems:
        raise UserError(problems)
    return plan
