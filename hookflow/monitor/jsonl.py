"""The raw event lines of a run, for programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TextIO

from hookflow.events.log import encode
from hookflow.events.rundir import RunDir
from hookflow.monitor.feed import Live, follow_records


def follow(run: RunDir, out: TextIO, *, child_exit: Callable[[], int | None] | None = None) -> int:
    """Print each record of the event log as a line of JSON until the run is over; see `plain.follow`.

    With several ranks it is the log of rank 0, so that sums count nothing twice; the others' logs have
    the same form (`RunDir.events_of`).
    """
    return follow_records(run, Live(run), lambda record: print(encode(record), file=out, flush=True), child_exit)
