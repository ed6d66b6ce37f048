"""Find run directories by id, path or name, and read their recorded plans and numbers."""

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from hookflow.errors import Problem, UserError, Where, nearest
from hookflow.events.log import event_log
from hookflow.events.packing import unpack
from hookflow.events.reading import open_regular, read_regular
from hookflow.events.rundir import RunDir, all_runs, short

if TYPE_CHECKING:
    from hookflow.events.records import Record
    from hookflow.graph.plan import Plan


LATEST_RUN_NAME = "latest"
"""The newest run of all, where no run is called so."""
TRAINING_RECORD = re.compile(rb'"k":"(?!error|scalars)[a-z]+","t":[^,]+,"it":[1-9]')
"""A record of a run that has done an iteration; errors and scalars may be of the one under way."""


def find_run(
    wanted: str | None,
    root: Path,
    *,
    having: Callable[[RunDir], bool] | None = None,
    or_file: bool = False,
) -> RunDir:
    """Return the run that `wanted` means.

    It may be a path, an id, a unique beginning or end of one, or a name (its newest run). None and
    "latest" mean the newest of all. A name means the newest `having` what is needed, if there is
    such a run. Raises UserError when there is none, or more than one, and PermissionError where its
    event log cannot be read. With `or_file` the error says that `wanted` is no pipeline file
    either.
    """
    if wanted and (Path(wanted) / "run.json").is_file():
        run = RunDir(Path(wanted))
    else:
        unreadable: list[str] = []
        runs = all_runs(root, unreadable.append)
        run = _choose_run(runs, wanted, having) or _raise_unknown(
            wanted, root, runs, unreadable, or_file
        )
    with suppress(FileNotFoundError, IsADirectoryError):  # it has not got as far as to have one
        open_regular(run.events).close()
    return run


def _choose_run(
    runs: list[RunDir], wanted: str | None, having: Callable[[RunDir], bool] | None
) -> RunDir | None:
    """Return the run that `wanted` means, of these, the newest first.

    Raises UserError when it means several.
    """
    name = wanted
    if not wanted and runs:
        name = runs[0].path.parent.name
    matches = [run for run in runs if run.id == wanted]
    if not matches:
        matches = [run for run in runs if run.path.parent.name == name]
    if matches:
        return _first_having(matches, having)
    if not wanted:
        return None

    close = [run for run in runs if run.id.startswith(wanted) or run.id.endswith(wanted)]
    if len(close) > 1:
        message = f'"{wanted}" may be any of {len(close)} runs'
        raise UserError(Problem(message, Where("RUN"), ", ".join(run.id for run in close[:5])))
    if close:
        return close[0]
    if wanted == LATEST_RUN_NAME and runs:
        return _choose_run(runs, None, having)
    return None


def _first_having(runs: list[RunDir], having: Callable[[RunDir], bool] | None) -> RunDir:
    """Return the first run of which `having` is true; the first of all where there is none."""
    if having is not None:
        for run in runs:
            if having(run):
                return run
    return runs[0]


def _raise_unknown(
    wanted: str | None, root: Path, runs: list[RunDir], unreadable: list[str], or_file: bool
) -> NoReturn:
    """Raise UserError for an unknown run, and for a missing file of that name.

    It says what may be meant.
    """
    if runs:
        reason = f'no run "{wanted}" in {root}'
    else:
        reason = f"there are no runs in {root}"
    message = "; ".join([reason, *unreadable])
    hint = _hint_for_unknown(wanted or "", root, runs)
    if wanted and or_file:
        from hookflow.pipeline.layers import nearest_file

        message = f'there is no file "{wanted}", and {message}'
        hint = hint or nearest_file(Path(wanted))
    if not hint and runs:
        hint = "`hookflow runs` lists them"
    elif not hint:
        hint = "start one with `hookflow run`, or name their folder (--dir)"
    raise UserError(Problem(message, Where("RUN"), hint))


def _hint_for_unknown(wanted: str, root: Path, runs: list[RunDir]) -> str:
    """Return what a name that no run has may mean; "" if nothing is near."""
    name = Path(wanted).name
    if name.startswith("sweep-") and any(root.glob(f"*/{name}/sweep.json")):
        return f"it is a sweep: hookflow runs --filter '\"{name}\" in tags' lists its runs"
    if Path(wanted).is_file():
        return "it is a file, and this takes a run: `hookflow runs` lists them"
    names = []
    for run in runs:
        names += [run.id, run.path.parent.name, run.id.rsplit("-", 1)[-1]]
    return nearest(wanted, names)


def has_checkpoint(run: RunDir) -> bool:
    """Say whether a run has a checkpoint, be it one that was saved after an error."""
    return any(run.checkpoints.glob("[!.]*"))


def has_begun(run: RunDir) -> bool:
    """Say whether a run has trained or has a checkpoint; one that goes on is on its way there."""
    if run.life() == "alive" or has_checkpoint(run):
        return True
    try:
        with open_regular(run.events) as log:
            return any(TRAINING_RECORD.search(line) for line in log)
    except OSError:
        return False


def failure_report(run_dir: RunDir) -> str:
    """Return the reason that a run has recorded for its end.

    It is the user's mistake, as found while building it.
    """
    records = event_log(run_dir.events).read_all()
    reasons = []
    for record in records:
        if (record["k"] == "end" or record["k"] == "refused") and "reason" in record:
            reasons.append(str(record["reason"]))
    if reasons:
        return reasons[-1]
    return f"the run ended without a reason; see {short(run_dir.output)}"


def read_recorded_plan(run: RunDir) -> "Plan":
    """Return the plan of a run. Raises UserError when it cannot be read."""
    from hookflow.graph.plan import Plan

    try:
        return Plan.from_json(read_regular(run.plan))
    except (OSError, ValueError):
        message = f"the plan of the run {run.id} cannot be read"
        where = Where(str(short(run.plan)))
        raise UserError(
            Problem(message, where, "perhaps another version of hookflow wrote it")
        ) from None


class ScalarRow(NamedTuple):
    """A number by its name.

    It has the iterations and epochs that were done then, and the time (seconds since 1970).
    """

    iter: int
    epoch: int
    time: float
    name: str
    value: float


def scalars(run_dir: RunDir) -> list[ScalarRow]:
    """Return what hooks have logged and validations have found, by iteration and name.

    Where there are several ranks, the numbers are those of rank 0. Metrics are named
    "val/accuracy", "test/accuracy". Of iterations that were trained twice, the later attempt
    counts.
    """
    rows = scalar_rows(event_log(run_dir.events).read_all())
    # Rows are sorted, since equal runs write their records at different moments.
    return sorted(rows, key=itemgetter(0, 1, 3))


def scalar_rows(records: "Iterable[Record]") -> list[ScalarRow]:
    """Return the same of records that have been read, in their order."""
    rows: dict[tuple[int, str], ScalarRow] = {}
    for record in records:
        match record["k"]:
            # Iterations after the checkpoint that an attempt resumes from are trained again.
            case "run":
                checkpoint = re.match(r"it(\d+)", record["resumed_from"] or "")
                begin = 0
                if checkpoint:
                    begin = int(checkpoint[1])
                rows = {key: row for key, row in rows.items() if row.iter <= begin}
            case "scalars":
                for time, iteration, epoch, values in unpack(record):
                    for name, value in values.items():
                        rows[iteration, name] = ScalarRow(iteration, epoch, time, name, value)
            case "metrics":
                for name, value in record["v"].items():
                    full_name = f"{record['split']}/{name}"
                    row = ScalarRow(
                        record["it"], record["ep"], record["t"], full_name, float(value)
                    )
                    rows[row.iter, row.name] = row
    return list(rows.values())
