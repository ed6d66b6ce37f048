"""A pipeline's plan, if all that can be seen of the pipeline without running it is sound."""

from __future__ import annotations

from pathlib import Path

from hookflow.errors import Problem, UserError, by_place
from hookflow.graph.plan import Plan
from hookflow.hooks.compile import compile_pipeline
from hookflow.pipeline.load import Loaded
from hookflow.pipeline.spot import missing_components


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
