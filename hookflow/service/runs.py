"""Find run directories by id, path or name, and read their recorded plans and numbers."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hookflow.errors import Problem, UserError, Where, nearest
from hookflow.events.log import event_log
from hookflow.events.reading import open_regular, read_regular
from hookflow.events.rundir import RunDir, all_runs, short

if TYPE_CHECKING:
    from hookflow.graph.plan import Plan


LATEST = "latest"
"""The newest run of all, where no run is called so."""
TRAINED = re.compile(rb'"it":[1-9]')
"""Record kinds in the log of a run that has done an iteration."""


def find_run(
    wanted: str | None,
    root: Path,
    *,
    having: Callable[[RunDir], bool] | None = None,
    elsewhere: str = "--dir",
    or_file: bool = False,
) -> RunDir:
    """Return the run that `wanted` means: a path, an id, a unique beginning or end of one, or a name (its newest run).

    None and "latest" mean the newest of all. A name means the newest `having` what is needed, if there is such a run.
    Raises UserError when there is none, or more than one, and PermissionError where its event log cannot be read; the
    error says that `elsewhere` names another folder, if anything does, and with `or_file` that `wanted` is not a
    pipeline file either.
    """
    run = _find(wanted, root, having, elsewhere, or_file)
    with suppress(FileNotFoundError, IsADirectoryError):  # it has not got as far as to have one
        open_regular(run.events).close()
    return run


def _find(
    wanted: str | None, root: Path, having: Callable[[RunDir], bool] | None, elsewhere: str, or_file: bool
) -> RunDir:
    if wanted and (Path(wanted) / "run.json").is_file():
        return RunDir(Path(wanted))
    no_file = wanted if or_file else None
    unreadable: list[str] = []
    runs = all_runs(root, unreadable.append)
    if not runs:
        start = "start one with `hookflow run`" + f", or name the place with {elsewhere}" * bool(elsewhere)
        raise _nothing("; ".join([f"there are no runs in {root}", *unreadable]), "", start, no_file)
    for run in runs:
        if wanted == run.id:
            return run
    name = runs[0].path.parent.name if wanted is None else wanted
    if named := [run for run in runs if run.path.parent.name == name]:
        return next(filter(having, named), named[0]) if having else named[0]
    close = [run for run in runs if run.id.startswith(name) or run.id.endswith(name)]
    if len(close) == 1:
        return close[0]
    if name == LATEST and not close:
        return _find(None, root, having, elsewhere, or_file)
    if close:
        raise _problem(f'"{name}" may be any of {len(close)} runs', f"{', '.join(run.id for run in close[:5])}")
    names = [name for run in runs for name in (run.id, run.path.parent.name, run.id.rsplit("-", 1)[-1])]
    message = "; ".join([f'no run "{name}" in {root}', *unreadable])
    raise _nothing(message, nearest(name, names), "`hookflow runs` lists them", no_file)


def _nothing(message: str, near: str, otherwise: str, no_file: str | None) -> UserError:
    """Return the error for an unknown run, and for a missing file of that name; and what may be meant."""
    if not no_file:
        return _problem(message, near or otherwise)
    from hookflow.pipeline.layers import nearest_file

    return _problem(f'there is no file "{no_file}", and {message}', near or nearest_file(Path(no_file)) or otherwise)


def has_checkpoint(run: RunDir) -> bool:
    """Say whether a run has a checkpoint, be it one that was saved after an error."""
    return any(run.checkpoints.glob("[!.]*"))


def has_begun(run: RunDir) -> bool:
    """Say whether a run has trained or has a checkpoint; one that goes on is on its way there."""
    if run.life() == "alive" or has_checkpoint(run):
        return True
    try:
        with open_regular(run.events) as log:
            return any(map(TRAINED.search, log))
    except OSError:
        return False


def _problem(message: str, hint: str) -> UserError:
    return UserError(Problem(message, Where("RUN"), hint))


def failure_report(run_dir: RunDir) -> str:
    """Return the reason that a run has recorded for its end: what the user did wrong, as found while building it."""
    records = event_log(run_dir.events).read_all()
    bounds = [each for each in records if (each["k"] == "end" or each["k"] == "refused") and "reason" in each]
    return str(bounds[-1]["reason"]) if bounds else f"the run ended without a reason; see {short(run_dir.output)}"


def recorded_plan(run: RunDir) -> Plan:
    """Return the plan of a run. Raises UserError when it cannot be read."""
    from hookflow.graph.plan import Plan

    try:
        return Plan.from_json(read_regular(run.plan))
    except (OSError, ValueError):
        message = f"the plan of the run {run.id} cannot be read"
        where = Where(str(short(run.plan)))
        raise UserError(Problem(message, where, "perhaps another version of hookflow wrote it")) from None


class ScalarRow(NamedTuple):
    """A number by its name, the iterations and epochs that were done then, and the time (seconds since 1970)."""

    iter: int
    epoch: int
    time: float
    name: str
    value: float


def scalars(run_dir: RunDir) -> list[ScalarRow]:
    """Return what hooks have logged and validations have found, in the order of the run; of several ranks, rank 0's.

    Metrics are named "val/accuracy", "test/accuracy". Of iterations that were trained twice, the later attempt counts.
    """
    rows: dict[tuple[int, str], ScalarRow] = {}
    for record in event_log(run_dir.events).read_all():
        match record["k"]:
            case "run":  # what came after the checkpoint that an attempt resumes from is trained again
                named = re.match(r"it(\d+)", record["resumed_from"] or "")
                begin = int(named[1]) if named else 0
                rows = {key: row for key, row in rows.items() if row.iter <= begin}
            case "scalars" | "metrics":
                prefix = f"{record['split']}/" if record["k"] == "metrics" else ""
                for name, value in record["v"].items():
                    row = ScalarRow(record["it"], record["ep"], record["t"], f"{prefix}{name}", float(value))
                    rows.pop((row.iter, row.name), None)  # a validation that is done again stands where it was done
                    rows[row.iter, row.name] = row
    return list(rows.values())
