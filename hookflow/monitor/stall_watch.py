"""Reports the stalls of a run whose state is folded elsewhere."""

from hookflow.events.rundir import RunDir
from hookflow.monitor.feed import LogFollower
from hookflow.monitor.health import assess_health
from hookflow.monitor.process_watch import LocalRanks, read_training_places
from hookflow.numbers import format_lasting


class StallWatch:
    """Watches the stalls of one run; a stall that goes on is reported again after twice as long."""

    def __init__(self, run: RunDir, live: LogFollower) -> None:
        self._run = run
        self._live = live
        # During a stall: when the training last made progress. Otherwise 0.
        self._stalled_since = 0.0
        self._next_report = 0.0  # the seconds of a stall at which it is reported again

    def look(self, clock: float) -> tuple[str, str] | None:
        """Return the condition and a sentence at this moment, when they are to be printed.

        The moment is in seconds since 1970.
        """
        state = self._live.state
        life = self._run.life()
        inside = {}
        if life == "alive":
            inside = read_training_places(self._run, LocalRanks.of(state).pids)
        health = assess_health(state, life, clock, self._live.plan, inside)
        if health.condition != "stalled":
            since = self._stalled_since
            self._stalled_since = 0.0
            if since and not health.over:
                return "running", f"again, after {format_lasting(state.moved - since)}"
            return None
        still = clock - state.moved
        if self._stalled_since and still < self._next_report:
            return None
        self._stalled_since = state.moved
        self._next_report = 2 * still
        return "stalled", health.sentence
