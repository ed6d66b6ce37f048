"""When validations are due: after iterations, epochs or parts of them, or after an amount of time."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from threading import Timer

from hookflow.graph.schedule import Measure
from hookflow.pipeline.schema import Interval
from hookflow.runner.process.state import RunState


class ValSchedule:
    """Says when a validation on one set of data is due. It has no state but the counters of the run.

    An amount of time is over so long after `start` or the end of the latest validation; then `request` is called, by a
    thread of its own.
    """

    def __init__(self, name: str, every: Interval, state: RunState, request: Callable[[], None]) -> None:
        self._name = name
        self._every = every
        self._state = state
        self._request = request
        self._running = False
        self._timer: Timer | None = None
        self._measure: Measure | None = None
        if every.by_iterations and every.unit != "s":
            per = state.iters_per_epoch if every.unit == "ep" else 1
            self._measure = Measure("it", *(Fraction(every.value) * per).as_integer_ratio())

    def next_iteration(self) -> float:
        """Return the iteration after which the next validation is due by count; infinity if none is."""
        measure = self._measure
        return measure.reached(measure.multiple(self._state.iter) + 1) if measure else float("inf")

    def due(self, *, epoch_done: bool) -> bool:
        """Return whether a validation is due after this iteration, or after this epoch; never twice in a place.

        A part of an epoch that ends with the epoch is due after the epoch.
        """
        state, every = self._state, self._every
        if every.unit == "it" and not epoch_done:
            return self._entered() or state.finished
        if every.unit == "ep" and epoch_done:
            return self._entered() if self._measure else state.epoch % every.value == 0 or state.finished
        if epoch_done:
            return state.finished and state.validated.get(self._name) != state.iter
        return (self._entered() or state.finished) and not state.epoch_is_over

    def _entered(self) -> bool:
        """Return whether the latest iteration has entered another multiple."""
        measure, done = self._measure, self._state.iter
        return measure is not None and measure.multiple(done) != measure.multiple(done - 1)

    def start(self) -> None:
        """Count time from here, until `stop`."""
        self._running = self._every.unit == "s"
        self.restart()

    def restart(self) -> None:
        """Count time anew, where it is counted."""
        if self._timer is not None:
            self._timer.cancel()
        if self._running:
            self._timer = Timer(float(self._every.value), self._request)
            self._timer.daemon = True
            self._timer.start()

    def stop(self) -> None:
        """Count no time any more."""
        self._running = False
        self.restart()
