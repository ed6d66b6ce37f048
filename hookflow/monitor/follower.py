"""Follows a run to its end without a screen, record by record."""

from __future__ import annotations

import time
from collections.abc import Callable

from hookflow.events.records import Record
from hookflow.events.rundir import RunDir
from hookflow.monitor.feed import Live

PERIOD = 0.25
"""Seconds between looks at the log."""

LOST = 1
"""The exit code for a run whose process went without an end record."""


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
        over = _over(run, live, child_exit)  # asked first, so that the last look comes after the last record
        look(over)
        for record in live.records():
            tell(record)
        if over:
            return int(live.state.end["exit"]) if live.state.end else LOST
        time.sleep(PERIOD)


def _over(run: RunDir, live: Live, child_exit: Callable[[], int | None] | None) -> bool:
    """Say whether nothing more will come. The end of an earlier attempt is not the end of the one that goes on.

    A child that was killed may have left others behind, which still save.
    """
    if child_exit is not None:
        code = child_exit()
        return code is not None and (code >= 0 or run.life() != "alive")
    life = run.life()
    if life == "gone":
        return True
    end = live.state.end
    return end is not None and end["t"] >= run.describe().get("process_started", 0.0)
