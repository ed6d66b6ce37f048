"""The runs of a folder as the dashboard lists them: read, filtered, sorted, changed."""

import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hookflow.errors import UserError, first_few
from hookflow.events.deletion import delete_run
from hookflow.events.rundir import RunDir
from hookflow.monitor.index import Index, Row, find_remaining_forks
from hookflow.monitor.selection import find_differing_keys, parse_filter, select

CONDITION_CHARACTERS = "<>=!()\"'"
"""Characters of a condition; a text without them is looked for in the rows."""

SORT_KEYS = ("-begun", "-best", "status", "-duration", "-iters_per_s")
"""The keys to sort by, in turn; "-best" is the best value of the metric."""


@dataclass(frozen=True, slots=True)
class RunListing:
    """The rows to show, the metric that most runs monitor, the keys in which the runs differ.

    `problem` says what is wrong with the filter.
    """

    rows: Sequence[Row] = ()
    metric: str = ""
    differing_keys: Sequence[str] = ()
    problem: str = ""


class RunFolder:
    """A folder of runs, and the index of it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._index = Index(root)

    def run_at(self, path: str) -> RunDir:
        """Return the run of a path below the folder."""
        return RunDir(self.root / path)

    def read(self, progress: Callable[[int, int], object]) -> Sequence[Row]:
        """Return the rows of all runs, from a thread: there may be very many."""
        return tuple(self._index.refresh(progress))


def list_runs(rows: Sequence[Row], wanted: str, sort_key: str) -> RunListing:
    """Return what a filter leaves of the rows, in order.

    Without a filter the runs that were refused are left out.
    """
    metrics = Counter(row.values["metric"] for row in rows if row.values["metric"])
    metric = next(iter(metrics), "")
    text = wanted.strip()
    problem = ""
    kept = list(rows)
    is_condition = bool(set(text) & set(CONDITION_CHARACTERS)) or " in " in text
    if not text:
        kept = [row for row in rows if row.values["status"] != "refused"]
    elif is_condition:
        try:
            kept = [*filter(parse_filter(text, rows, "filter"), rows)]
        except UserError as error:
            problem = error.problems[0].message
    else:
        kept = [row for row in rows if text.lower() in _make_searched_text(row)]
    if sort_key == "-best":
        sort_key = "id"
        if metric:
            sort_key = f"-best.{metric}"
    kept = select(kept, None, sort_key)
    return RunListing(kept, metric, find_differing_keys(kept), problem)


def _make_searched_text(row: Row) -> str:
    words = [
        str(row.values[key])
        for key in ("id", "name", "status", "reason", "note")
        if row.values.get(key)
    ]
    words += [str(tag) for tag in row.values["tags"]]
    return " ".join(words).lower()


def find_remark(row: Row) -> str:
    """Return the note and the tags of a run, or why it ended."""
    words = []
    if row.values["note"]:
        words = [row.values["note"]]
    words += [f"#{tag}" for tag in row.values["tags"]]
    return " ".join(words) or row.values["reason"] or ""


def delete(run: RunDir) -> str:
    """Delete a run, and return in words what came of that."""
    try:
        staying = find_remaining_forks([run])
        if staying:
            return f"the run has forks: {first_few(staying[run.id])}"
        delete_run(run)
    except OSError as error:
        return f"cannot delete {run.id}: {error.strerror}"
    except UserError as error:
        return error.problems[0].message
    return f"deleted {run.id}"


def resume(run: RunDir) -> str:
    """Resume a run in a process of its own, which is begun as in a shell.

    Returns in words what came of that.
    """
    command = [sys.executable, "-m", "hookflow", "run", "--resume", str(run.path), "--detach"]
    begun = subprocess.run(
        command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    errors = begun.stderr.strip().splitlines()
    if errors and not begun.stdout:
        return f"{run.id}: {errors[0]}"
    return f"resumed {run.id}"
