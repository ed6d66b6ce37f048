"""Follows a run to its end without a screen, record by record."""

from __future__ import annotations

import time
from collections.abc import Callable

from hookflow.events.process import exit_code
from hookflow.events.records import Record
from hookflow.events.rundir import RunDir
from hookflow.monitor.feed import Live

PERIOD = 0.25
"""Seconds between looks at the log."""

LOST = 1
"""The exit code for a run whose process went without an end record, and was no child that a signal has killed."""


def follow_records(
    run: RunDir,
    live: Live,
    tell: Callable[[Record], None],
    child_exit: Callable[[], int | None] | None = None,
    look: Callable[[bool], None] = lambda over: None,
) -> int:
    """Give every record to `tell`, after it was folded, until the run is over; return the exit code to leave with.

    `look` is called before each look at the log, and told whether it is the last one.
    """
    while True:
        code = child_exit() if child_exit is not None else None
        over = code is not None if child_exit else _over(run, live)  # before the last look, so that nothing comes after
        look(over)
        for record in live.records():
            tell(record)
        if over:
            end = (live.state.refused if child_exit else None) or live.state.end
            return int(end["exit"]) if end else exit_code(code or LOST)
        time.sleep(PERIOD)


def _over(run: RunDir, live: Live) -> bool:
    """Say whether nothing more will come. The end of an earlier attempt is not the end of the one that goes on."""
    if run.life() in ("gone", "missing"):
        return True
    end = live.state.refused or live.state.end
    return end is not None and end["t"] >= run.describe().get("process_started", 0.0)
