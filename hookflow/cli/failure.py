"""Why a run has failed, in its own words: what `hookflow run` leaves on the terminal."""

from __future__ import annotations

from hookflow.events.log import Tail
from hookflow.events.records import Record
from hookflow.events.rundir import RunDir, short


def failure_report(run_dir: RunDir) -> str:
    """Return the reason that the run has recorded for its end: what the user did wrong, as found while building it."""
    ends = [record for record in Tail[Record](run_dir.events).read_all() if record["k"] == "end"]
    return str(ends[-1]["reason"]) if ends else f"the run ended without a reason; see {short(run_dir.output)}"
