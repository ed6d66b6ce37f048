"""A pipeline's plan, if all that can be seen of the pipeline without running it is sound."""

from __future__ import annotations

from pathlib import Path

from hookflow.errors import Problem, UserError
from hookflow.graph.plan import Plan
from hookflow.hooks.compile import compile_pipeline
from hookflow.pipeline.load import Loaded
from hookflow.pipeline.spot import missing_components


def sound_plan(loaded: Loaded, base: Path | None = None) -> Plan:
    """Compile the hooks and look for everything else that the pipeline names.

    Files are relative to `base`, the pipeline's own folder if left out. Raises UserError with all that is wrong.
    """
    problems: list[Problem] = missing_components(loaded, base or loaded.source.parent)
    try:
        plan = compile_pipeline(loaded, base)
    except UserError as error:
        every = [*problems, *error.problems]
        raise UserError(sorted(every, key=lambda problem: problem.where.line if problem.where else 0)) from None
    if problems:
        raise UserError(problems)
    return plan
