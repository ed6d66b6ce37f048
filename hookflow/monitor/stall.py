"""Tells that a run hangs: once when that begins, then ever more seldom, and when it is over."""

from __future__ import annotations

from hookflow.events.rundir import RunDir
from hookflow.monitor.feed import Live
from hookflow.monitor.formatting import lasting
from hookflow.monitor.health import examine, look_inside

PERIOD = 1.0
"""Seconds between looks."""

LONGEST = 600.0
"""Seconds between two lines about the same hang, at most."""


class StallWatch:
    """Watches one run, which somebody else folds."""

    def __init__(self, run: RunDir, live: Live) -> None:
        self._run = run
        self._live = live
        self._looked = 0.0
        self._since = 0.0  # when the training was last seen to get on, while it hangs; else 0
        self._next = 0.0  # seconds of standing still at which it is told next

    def look(self, clock: float) -> tuple[str, str] | None:
        """Return what there is to tell at this moment (seconds since 1970), the condition and a sentence; else None."""
        if abs(clock - self._looked) < PERIOD:  # it may have been set back
            return None
        self._looked, state = clock, self._live.state
        life = self._run.life()
        inside = look_inside(self._run, state) if life == "alive" else {}
        health = examine(state, life, clock, self._live.plan, inside)
        if health.condition != "stalled":
            since, self._since = self._since, 0.0
            return ("running", f"again, after {lasting(state.moved - since)}") if since and not health.over else None
        still = clock - state.moved
        if self._since and still < self._next:
            return None
        self._since, self._next = state.moved, still + min(still, LONGEST)
        return "stalled", health.sentence
