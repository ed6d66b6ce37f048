"""What a command is asked about: a pipeline file as it stands, or a run as it was recorded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hookflow.errors import Problem, UserError, Where, nearest

if TYPE_CHECKING:
    from hookflow.events.rundir import RunDir
    from hookflow.graph.plan import Plan
    from hookflow.graph.points import Points
    from hookflow.pipeline.load import Loaded


@dataclass(frozen=True, slots=True)
class Target:
    """A pipeline with its plan; `name` is what the user called it, `base` what its own files are relative to."""

    name: str
    loaded: Loaded
    plan: Plan
    base: Path


def open_target(named: str | None) -> Target:
    """Return the pipeline file or the run that `named` means; None is the only pipeline file here.

    Raises UserError when there is no such thing, or it is not sound.
    """
    from hookflow.cli.sound import read_pipeline
    from hookflow.hooks.compile import compile_pipeline

    if named is None or named.endswith(".toml") or Path(named).is_file():
        path = Path(named or only_pipeline())
        loaded = read_pipeline(path)
        return Target(str(path), loaded, compile_pipeline(loaded), path.parent)
    return _recorded(named)


def only_pipeline() -> Path:
    """Return the one pipeline file in the current folder and `pipelines/`. Raises UserError when it is not one."""
    found = [path for folder in (Path(), Path("pipelines")) for path in sorted(folder.glob("*.toml")) if _has_run(path)]
    if len(found) == 1:
        return found[0]
    said = f"there are {len(found)} pipelines here" if found else "there is no pipeline file here, nor in pipelines/"
    hint = f"name one: --pipeline {found[0]}" if found else "name one with --pipeline FILE"
    others = f" (or {', '.join(map(str, found[1:4]))}{', …' if len(found) > 4 else ''})" if found else ""
    raise UserError(Problem(said, hint=hint + others))


def _has_run(path: Path) -> bool:
    """Say whether a TOML file is a pipeline: other programs keep theirs in such files too."""
    return any(line.startswith("[run]") for line in path.read_text("utf-8", "replace").splitlines())


def no_point(points: Points, name: str) -> Problem:
    """Return what is wrong with asking for a point of that name, which is none."""
    pair = name.removeprefix("around_")
    if name != pair and pair in points.pairs:
        return Problem(f"{name} is two points", hint=f"name one of them: before_{pair} or {points.pairs[pair]}")
    return Problem(f'there is no point "{name}"', hint=nearest(name, [point.name for point in points]))


def recorded_plan(run: RunDir) -> Plan:
    """Return the plan of a run. Raises UserError when it cannot be read."""
    import json

    from hookflow.events.rundir import short
    from hookflow.graph.plan import Plan

    try:
        return Plan.from_json(json.loads(run.plan.read_text("utf-8")))
    except (OSError, ValueError, KeyError, TypeError):
        said = f"the plan of the run {run.id} cannot be read"
        where = Where(str(short(run.plan)))
        raise UserError(Problem(said, where, "perhaps another version of hookflow wrote it")) from None


def _recorded(named: str) -> Target:
    from hookflow.cli.find import find_run
    from hookflow.events.rundir import short
    from hookflow.pipeline.load import load

    run = find_run(named, Path("runs"))
    return Target(
        run.id, load(short(run.pipeline), recorded=True), recorded_plan(run), Path(run.describe().get("base", "."))
    )
