"""Where the time went: counters that the training thread bumps and another thread reads.

Nothing is locked. The counters only grow, so that a reader takes differences; a reading in the middle of a bump is off
by one firing, and the next difference makes up for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter_ns

from hookflow.events.histogram import bin_of
from hookflow.events.records import PHASES


class Cell:
    """The durations of one thing, in nanoseconds: how many, their sum, the last, the longest, and a histogram.

    `longest` is since whoever reads it last set it to zero.
    """

    __slots__ = ("bins", "last", "longest", "n", "total")

    def __init__(self) -> None:
        self.n = self.total = self.last = self.longest = 0
        self.bins: dict[int, int] = {}

    def add(self, ns: int) -> None:
        self.n += 1
        self.total += ns
        self.last = ns
        if ns > self.longest:
            self.longest = ns
        index = bin_of(ns)
        self.bins[index] = self.bins.get(index, 0) + 1


class Meter:
    """Books every nanosecond of the training thread to somebody: a phase, or a hook's binding."""

    def __init__(self, bindings: int) -> None:
        self.cells = [Cell() for _ in range(bindings)]
        self.iterations = Cell()
        self.phases = dict.fromkeys(PHASES, 0)
        self.samples = 0
        self.apart = 0
        self._books = self.phases
        self._at = perf_counter_ns()
        self._iteration = self._at

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Book nothing to the phases of training meanwhile: this is validation, a checkpoint, or a pause.

        Hooks that fire meanwhile are still booked to themselves. `apart` is the sum of all these times, in ns.
        """
        kept, self._books = self._books, dict.fromkeys(PHASES, 0)
        began = perf_counter_ns()
        try:
            yield
        finally:
            self._books = kept
            self.restart()
            if kept is self.phases:  # else this was within another one
                self.apart += self._at - began

    def restart(self) -> None:
        """Begin anew here: what went before is booked to nobody."""
        self._at = self._iteration = perf_counter_ns()

    def book(self, phase: str) -> None:
        """Book the time since the last booking to `phase`."""
        now = perf_counter_ns()
        self._books[phase] += now - self._at
        self._at = now

    def hooks(self, since: int, until: int) -> None:
        """Book a time to the hooks, and what lies between it and the last booking to "other"."""
        self._books["other"] += since - self._at
        self._books["hooks"] += until - since
        self._at = until

    def within(self, since: int, until: int) -> None:
        """Book a time in the middle of a phase to the hooks; the phase's own goes on behind it."""
        self._books["hooks"] += until - since
        self._at += until - since

    def put_away(self) -> tuple[dict[str, int], int]:
        """Book to nobody's phase from here on, until what this returns is given to `take_up`."""
        kept = self._books, self._at
        self._books = dict.fromkeys(PHASES, 0)
        return kept

    def take_up(self, kept: tuple[dict[str, int], int]) -> None:
        """Go on as if nothing had been since `put_away`."""
        self._books, self._at = kept

    def iteration(self, samples: int) -> None:
        """Close a training iteration of `samples` examples; its end is where the next one begins."""
        self.book("other")
        self.iterations.add(self._at - self._iteration)
        self._iteration = self._at
        self.samples += samples
