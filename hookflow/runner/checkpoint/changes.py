"""Whether the hooks of a run that is to go on are those that its checkpoint was saved with."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hookflow.errors import Problem, UserError
from hookflow.graph.plan import Plan
from hookflow.pipeline.load import load
from hookflow.pipeline.schema import Pipeline

if TYPE_CHECKING:
    from hookflow.graph.difference import Difference

HINT = "to go on with the hooks as they are now: --allow-changed-hooks"


def changed_hooks(checkpoint: Path, pipeline: Pipeline, plan: Plan) -> list[Problem]:
    """Return what has changed of the hooks since a checkpoint was saved: which there are, their keys, their order."""
    from hookflow.graph.difference import difference  # which a run that is not resumed does without

    try:
        then = load(checkpoint / "pipeline.toml", recorded=True).pipeline
        planned = Plan.from_json(json.loads((checkpoint / "plan.json").read_text("utf-8")))
    except (UserError, OSError, ValueError, KeyError, TypeError):
        lines = ["what its hooks were cannot be read: another version of hookflow has saved it"]
    else:
        lines = list(_told(difference((then, planned), (pipeline, plan))))
    hints = [*[""] * (len(lines) - 1), HINT]
    return [
        Problem(f"since the checkpoint {checkpoint.name}: {line}", hint=h)
        for line, h in zip(lines, hints, strict=False)
    ]


def _told(found: Difference) -> Iterator[str]:
    for hook in found.hooks_removed:
        yield f'the hook "{hook}" is gone, and what it knew with it'
    for hook in found.hooks_added:
        yield f'the hook "{hook}" is new: it starts anew'
    for change in found.keys:
        if change.key.startswith("hooks."):
            yield f"{change.key} was {_written(change.old)}, and is {_written(change.new)}"
    for hook, points in found.unbound.items():
        yield f'the hook "{hook}" fires no more at {", ".join(points)}'
    for hook, points in found.bound.items():
        yield f'the hook "{hook}" fires at {", ".join(points)}, too'
    for turned in found.order:
        yield f"at {turned.point} the order was {' → '.join(turned.old)}, and is {' → '.join(turned.new)}"


def _written(value: Any) -> str:
    return "not set" if value is None else json.dumps(value, ensure_ascii=False)
