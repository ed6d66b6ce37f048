"""Finding a run by what people call it."""

from __future__ import annotations

from pathlib import Path

from hookflow.errors import Problem, UserError, Where, nearest
from hookflow.events.rundir import RunDir, all_runs


def find_run(wanted: str | None, root: Path) -> RunDir:
    """Return the run that `wanted` means: a path, an id, a unique beginning or end of one, or a name (its newest run).

    None means the newest of all. Raises UserError when there is none, or more than one.
    """
    if wanted and (Path(wanted) / "run.json").is_file():
        return RunDir(Path(wanted))
    runs = all_runs(root)
    if not runs:
        raise _problem(f"there are no runs in {root}", "start one with `hookflow run`, or name the place with --dir")
    if wanted is None:
        return runs[0]
    for run in runs:
        if wanted in (run.id, run.path.parent.name):
            return run
    close = [run for run in runs if run.id.startswith(wanted) or run.id.endswith(wanted)]
    if len(close) == 1:
        return close[0]
    if close:
        raise _problem(f'"{wanted}" may be any of {len(close)} runs', f"{', '.join(run.id for run in close[:5])}")
    names = [name for run in runs for name in (run.id, run.path.parent.name, run.id.rsplit("-", 1)[-1])]
    raise _problem(f'no run "{wanted}" in {root}', nearest(wanted, names) or "`hookflow runs` lists them")


def _problem(message: str, hint: str) -> UserError:
    return UserError(Problem(message, Where("RUN"), hint))
