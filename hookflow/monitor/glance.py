"""A run in a line: read from its log without folding the frames."""

from __future__ import annotations

import json
from dataclasses import dataclass

from hookflow.events.rundir import RunDir
from hookflow.monitor.health import Health, examine
from hookflow.monitor.state import RunState

SKIPPED = (b'{"k":"frame"', b'{"k":"scalars"')
"""How the lines begin that make up most of a log."""


@dataclass(frozen=True, slots=True)
class Glance:
    """What a list of runs tells of one."""

    run: RunDir
    state: RunState
    health: Health


def glance(run: RunDir, clock: float) -> Glance:
    """Fold everything but the frames and scalars, and the last frame: how far it is."""
    state = RunState()
    last = b""
    try:
        with run.events.open("rb") as file:
            for line in file:
                if line.startswith(SKIPPED):
                    last = line if line.endswith(b"}\n") and line.startswith(SKIPPED[0]) else last
                    continue
                _fold(state, line)
    except OSError:
        pass  # it did not get as far as to have a log
    if state.end is None:
        _fold(state, last)
    return Glance(run, state, examine(state, run.life(), clock))


def _fold(state: RunState, line: bytes) -> None:
    try:
        record = json.loads(line)
    except ValueError:
        return
    if isinstance(record, dict):
        state.apply(record)
