"""The one-line overview of a run, read from its log without folding the frames."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from hookflow.events.log import whole_lines
from hookflow.events.reading import read_record
from hookflow.events.regular_file import open_regular
from hookflow.events.rundir import RunDir
from hookflow.graph.plan import Plan
from hookflow.monitor.feed import SHARED, logs_of_others, read_plan, refused
from hookflow.monitor.health import Health, judge
from hookflow.monitor.ranks import NO_PLAN
from hookflow.monitor.state import RunState

SKIPPED = (b'{"k":"frame"', b'{"k":"scalars"')
"""How the lines begin that make up most of a log."""


@dataclass(frozen=True, slots=True)
class Overview:
    """The facts about a run in a list of runs."""

    run: RunDir
    state: RunState
    health: Health
    plan: Plan
    refused: tuple[str, ...] = ()
    """The logs of other ranks that cannot be read, in words."""


def read_overview(run: RunDir, clock: float) -> Overview:
    """Fold everything but the frames and scalars, and the last frame: how far it is."""
    state = RunState()
    last = b""
    bad: tuple[str, ...] = ()
    try:
        with open_regular(run.events) as file:
            for _, line in whole_lines(file):
                if line.startswith(SKIPPED):
                    last = line if line.endswith(b"}\n") and line.startswith(SKIPPED[0]) else last
                    continue
                _fold(state, line)
    except FileNotFoundError:
        pass  # it did not get as far as to have a log
    except OSError as error:
        message = f"its event log cannot be read: {error.strerror}"
        return Overview(run, state, Health("unreadable", message), _plan(run))
    if state.end is None:
        _fold(state, last)
    if state.ranks.world > 1 and (state.end is None or state.end["status"] in ("failed", "interrupted")):
        bad = _fold_others(run, state)
    return Overview(run, state, judge(run, state, clock), _plan(run), bad)


def _plan(run: RunDir) -> Plan:
    """Return the run's plan; an empty one where there is none that can be read, as of a run of another version."""
    try:
        return read_plan(run) or NO_PLAN
    except (ValueError, LookupError, TypeError):
        return NO_PLAN


def _fold_others(run: RunDir, state: RunState) -> tuple[str, ...]:
    """Find what another rank may have failed of, which rank 0 knows nothing of; return whose log cannot be read."""
    bad = []
    for rank, path in logs_of_others(run).items():
        if why := refused(path):
            bad.append(why)
            continue
        with open_regular(path) as file:
            for _, line in whole_lines(file):
                if not line.startswith((*SKIPPED, *SHARED)):
                    _fold(state, line, rank)
    return tuple(bad)


def _fold(state: RunState, line: bytes, rank: int = 0) -> None:
    with suppress(ValueError):  # it may be no record, or the end of a log that was torn by a kill
        state.apply(read_record(line), rank)
