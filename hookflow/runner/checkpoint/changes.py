"""What has changed of a run that is resumed, since the checkpoint was saved that it is resumed from."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from hookflow.errors import Problem, UserError, Where
from hookflow.events.reading import read_object
from hookflow.graph.plan import Plan
from hookflow.pipeline.load import Loaded, load
from hookflow.pipeline.schema import Pipeline
from hookflow.pipeline.source_map import SourceMap
from hookflow.runner.checkpoint.changeable import Changed, May, changes_between

UNREADABLE = "what its hooks were cannot be read: another version of hookflow has saved it"
HINT = "to resume with the hooks as they are now: --allow-changed-hooks"


def changes_since(checkpoint: Path, pipeline: Pipeline, plan: Plan) -> list[Changed]:
    """Return what has changed since a checkpoint was saved, of a pipeline as it is recorded."""
    try:
        loaded, planned = recorded(checkpoint)
    except UserError:
        return [Changed("hooks", May.ALLOWED, UNREADABLE)]
    return changes_between((loaded.pipeline, planned), (pipeline, plan))


def recorded(folder: Path) -> tuple[Loaded, Plan]:
    """Return the pipeline and the plan that a run directory or a checkpoint holds.

    Raises UserError when another version of hookflow has written them.
    """
    loaded = load(folder / "pipeline.toml", recorded=True, environment=False)
    try:
        return loaded, Plan.from_json(read_object((folder / "plan.json").read_bytes(), nan=True))
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        said = "the plan cannot be read: perhaps another version of hookflow wrote it"
        raise UserError(Problem(said, Where(str(folder / "plan.json")))) from None


def changed_hooks(changes: Iterable[Changed], since: str, places: SourceMap | None = None) -> list[Problem]:
    """Return a problem for each change that takes `--allow-changed-hooks`; `since` names what it is compared with."""
    found = [change for change in changes if change.may is May.ALLOWED]
    hints = [*[""] * (len(found) - 1), HINT]
    return [
        Problem(f"since {since}: {change.text}", places.of(change.key) if places else None, hint)
        for change, hint in zip(found, hints, strict=False)
    ]
