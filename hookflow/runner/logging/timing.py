"""Timing: the training thread stamps the clock, another thread computes sums and histograms.

The training thread writes rows of numbers into preallocated memory (`Rows`), without a lock:

- the timeline: marks, each saying what the time since the mark before it was spent on;
- firings of the readable dispatcher: binding, begin, duration;
- firings of a point that the generated dispatcher calls: all its stamps in one row;
- spans: when hooks had the training thread, so that their time can be taken out of the phase around them.

`Books` takes them a few times a second. Only that thread writes the sums, so they need no lock either.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from struct import Struct
from time import perf_counter
from typing import Any

import numpy as np

from hookflow.events.percentiles import BINS, packed
from hookflow.events.records import PHASES

Array = np.ndarray[Any, np.dtype[Any]]


DATA, FORWARD, BACKWARD, OPTIMIZER, HOOKS, OTHER = (float(k) for k in range(len(PHASES)))
ITERATION = float(len(PHASES))
"""Other time, and the end of an iteration."""
OUTSIDE = ("", "validation", "checkpoint", "commands")
"""Kinds of time outside of iterations."""
NOBODY, VALIDATION, SAVING, COMMANDS = (ITERATION + 1 + k for k in range(len(OUTSIDE)))

CHUNK = 4096
"""Rows that are allocated at a time."""
KEPT = 256
"""Chunks that wait at most for a reader who does not come; older ones are dropped."""


class Chunk:
    """Memory for some rows; `at` bytes of it are written."""

    __slots__ = ("at", "data")

    def __init__(self, size: int) -> None:
        self.data = bytearray(size)
        self.at = 0


class Rows:
    """Rows of `width` float64, which one thread appends and another one takes; `several` at most are put at once.

    A row is in place before `Chunk.at` says so, and a chunk in the queue before it is written to: so a reader sees
    whole rows, in order, whenever it looks.
    """

    def __init__(self, width: int, several: int = 1) -> None:
        self.width = width
        self.pack = Struct(f"{width}d").pack_into
        self.size = 8 * width
        self.end = CHUNK * self.size
        self._spare = (several - 1) * self.size
        self._chunks: deque[Chunk] = deque()
        self._reading: Chunk | None = None
        self._taken = 0
        self.turn()

    def turn(self) -> None:
        """Begin a new chunk; the old one is full."""
        fresh = Chunk(self.end + self._spare)
        self._chunks.append(fresh)
        self.chunk = fresh
        if len(self._chunks) > KEPT:
            with suppress(IndexError):  # the reader has come after all
                self._chunks.popleft()

    def put(self, *row: float) -> None:
        chunk = self.chunk
        self.pack(chunk.data, chunk.at, *row)
        chunk.at += self.size
        if chunk.at >= self.end:
            self.turn()

    def take(self) -> Array:
        """Return all rows since the last time, float64 (rows, width)."""
        used = []
        while self._chunks:
            chunk = self._chunks[0]
            if chunk is not self._reading:  # the one before is done with, or was dropped
                self._reading, self._taken = chunk, 0
            at = chunk.at
            used.append(np.frombuffer(chunk.data, np.float64, (at - self._taken) // 8, self._taken))
            self._taken = at
            if at < self.end:
                break
            with suppress(IndexError):
                self._chunks.popleft()
        return (np.concatenate(used) if used else np.empty(0)).reshape(-1, self.width)


class Timeline:
    """The marks of the training thread. `samples` counts the examples of the iterations done, `excluded_s` the seconds
    outside of iterations."""

    def __init__(self) -> None:
        self.rows = Rows(2, several=5)
        self.samples = 0
        self.excluded_s = 0.0
        self._excluded = 0
        self._pack_iteration = Struct("10d").pack_into

    def mark(self, spent_on: float) -> None:
        """Say what the time since the last mark was spent on."""
        if not self._excluded:
            self.rows.put(perf_counter(), spent_on)

    def iteration(self, data: float, forward: float, backward: float, optimizer: float, samples: int) -> None:
        """Close a plain iteration, whose phases ended at these times, with one call."""
        rows = self.rows
        chunk = rows.chunk
        now = perf_counter()
        self._pack_iteration(
            chunk.data, chunk.at, data, DATA, forward, FORWARD, backward, BACKWARD, optimizer, OPTIMIZER, now, ITERATION
        )
        chunk.at += 80
        if chunk.at >= rows.end:
            rows.turn()
        self.samples += samples

    def end_iteration(self, samples: int) -> None:
        """Close an iteration; the next one begins here."""
        self.mark(ITERATION)
        self.samples += samples

    def restart(self, spent_on: float = NOBODY) -> None:
        """Begin anew here: earlier time belongs to no iteration."""
        self.mark(spent_on)

    @contextmanager
    def excluded(self, spent_on: float = NOBODY) -> Iterator[None]:
        """Take this time out of all phases of training; hooks that fire are still booked to themselves."""
        began = perf_counter()
        self.mark(OTHER)
        self._excluded += 1
        try:
            yield
        finally:
            self._excluded -= 1
            self.restart(spent_on)
            if not self._excluded:
                self.excluded_s += perf_counter() - began


class Cell:
    """The durations of one thing since the last frame, in ns: number, sum, last, longest, and a histogram."""

    __slots__ = ("_bins", "last", "longest", "n", "total")

    def __init__(self) -> None:
        self.last = 0
        self._reset()

    def _reset(self) -> None:
        self.n = self.total = self.longest = 0
        self._bins: Array = np.zeros(0, np.int64)

    def add(self, ns: Array) -> None:
        """Take durations in whole nanoseconds, int64 (n,), in their order."""
        if not len(ns):
            return
        self.n += len(ns)
        self.total += int(ns.sum())
        self.last = int(ns[-1])
        self.longest = max(self.longest, int(ns.max()))
        counts = np.bincount(bins_of(ns), minlength=BINS)
        self._bins = self._bins + counts if len(self._bins) else counts

    def take(self) -> list[Any] | None:
        """Return [n, total, longest, last, bins], as in a frame, and begin anew; None when nothing has been added."""
        if not (self.n or self.total):
            return None
        filled = self._bins.nonzero()[0]
        bins = packed(filled.tolist(), self._bins[filled].tolist())
        result = [self.n, self.total, self.longest, self.last, bins]
        self._reset()
        return result


def bins_of(ns: Array) -> Array:
    """Return the bin of each duration: `hookflow.events.columns.bin_of` for many at once."""
    exponent = np.maximum(np.frexp(ns.astype(np.float64))[1] - 3, 0)
    bins: Array = (exponent << 2) + (ns >> exponent)
    return bins


class Books:
    """The cost of everything since the last frame: a cell for each binding, one for iterations, and ns of each phase.

    Only the recorder's thread calls `update`.
    """

    def __init__(self, bindings: int, timeline: Timeline) -> None:
        self.cells = [Cell() for _ in range(bindings)]
        self.iterations = Cell()
        self.phases = dict.fromkeys(PHASES, 0)
        self.timeline = timeline
        self.firings = Rows(4)
        """From the readable dispatcher: binding, begin, seconds, and 1 (0 where its trigger has said no)."""
        self.spans = Rows(2)
        """Begin and end of the time that hooks of the readable dispatcher took."""
        self.points: list[tuple[tuple[int, ...], Rows]] = []
        """From the generated dispatcher: the bindings of a point, and the rows of their stamps."""
        self.keeps: list[Callable[[Array, Sequence[Array], Array], None]] = []
        """Called with the stamps that are taken, while iterations are traced: see `Capture.add`."""
        self.beside: Callable[[], dict[str, list[int]]] = dict
        """Returns what offloaded bindings have done beside the training, by their ids."""
        self._waiting: list[Array] = []
        self._mark = self._ended = perf_counter()

    def update(self) -> None:
        """Take what has been stamped since the last time."""
        keeps, apart = [*self.keeps], list[Array]()
        marks = self.timeline.rows.take()  # first: a span that belongs to one of them has been put before it
        for bindings, rows in self.points:
            stamps = rows.take()
            if not len(stamps):
                continue
            seconds = np.diff(stamps, axis=1)
            for column, binding in enumerate(bindings):
                fired = seconds[:, column] > 0  # a binding that was not due has both stamps alike
                used = seconds[fired, column]
                self.cells[binding].add(_nanoseconds(used))
                if keeps:
                    apart.append(np.column_stack((np.full(len(used), binding), stamps[fired, column], used)))
            self._waiting.append(stamps[:, [0, -1]])
        if len(spans := self.spans.take()):
            self._waiting.append(spans)
        firings = self.firings.take()
        of, durations, fired = firings[:, 0].astype(np.int64), _nanoseconds(firings[:, 2]), firings[:, 3] > 0
        for binding in np.flatnonzero(np.bincount(of)).tolist():  # np.unique would import numpy.ma
            mine = of == binding
            self.cells[binding].add(durations[mine & fired])
            self.cells[binding].total += int(durations[mine & ~fired].sum())
        for keep in keeps:
            keep(marks, apart, firings[fired, :3])
        if len(marks):
            self._take_marks(marks)

    def _take_marks(self, marks: Array) -> None:
        """Book the time between marks to phases, and take out of each what hooks have had of it."""
        times, spent_on = marks[:, 0], marks[:, 1].astype(np.int64)
        sums = np.bincount(spent_on, np.diff(times, prepend=self._mark), int(COMMANDS) + 1)
        self._mark = float(times[-1])
        spans = np.concatenate([np.empty((0, 2)), *self._waiting])
        place = np.searchsorted(times, spans[:, 0])
        later = place == len(times)  # these are in time that no mark has closed yet
        self._waiting = [spans[later]] if later.any() else []
        hooks = np.bincount(spent_on[place[~later]], (spans[:, 1] - spans[:, 0])[~later], int(COMMANDS) + 1)
        sums -= hooks
        sums[int(HOOKS)] += hooks[: int(NOBODY)].sum()
        sums[int(OTHER)] += sums[int(ITERATION)]
        for phase, seconds in zip(PHASES, sums.tolist(), strict=False):
            self.phases[phase] += max(round(seconds * 1e9), 0)
        bounds = spent_on >= ITERATION
        lasted = np.diff(times[bounds], prepend=self._ended)
        self.iterations.add(_nanoseconds(lasted[spent_on[bounds] == ITERATION]))
        if bounds.any():
            self._ended = float(times[bounds][-1])


def _nanoseconds(seconds: Array) -> Array:
    return np.rint(seconds * 1e9).astype(np.int64)
