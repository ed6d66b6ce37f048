"""Timing: the training thread stamps the clock, another thread computes sums and histograms.

The training thread writes rows of numbers into preallocated memory (`RowBuffer`), without a lock:

- the timeline: marks, each saying what the time since the mark before it was spent on;
- firings of the readable dispatcher: binding, begin, duration;
- firings of a point that the generated dispatcher calls: all its stamps in one row;
- spans: when hooks had the training thread, so that their time can be taken out of the phase around
  them.

`TimingAggregator` takes them a few times a second. Only that thread writes the sums, so they need
no lock either.

A GPU computes after the host has launched the work, so the stamps of the host show launches. In a
sampled iteration each stamp records an event on the stream of the device, too (`DeviceClock`). The
thread that computes the sums asks whether the events have passed, and never waits.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from struct import Struct
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from hookflow.events.packing import NUM_BINS, pack_bins
from hookflow.events.records import PHASES, OnDevice

if TYPE_CHECKING:
    from torch import Event

Array = np.ndarray[Any, np.dtype[Any]]
Stamps = tuple[Array, Array]
"""The stamps of an iteration by the host, and by the device, in seconds of a clock of each."""
NO_SPANS: Array = np.empty((0, 2))
"""No rows: of spans, or of marks."""

DATA, FORWARD, BACKWARD, OPTIMIZER, HOOKS, OTHER = (float(k) for k in range(len(PHASES)))
ITERATION_SLOT = float(len(PHASES))
"""Other time, and the end of an iteration."""
OUTSIDE_KINDS = ("", "validation", "checkpoint", "commands")
"""Kinds of time outside of iterations."""
NOBODY, VALIDATION, SAVING, COMMANDS = (ITERATION_SLOT + 1 + k for k in range(len(OUTSIDE_KINDS)))

CHUNK_ROWS = 4096
"""Rows that are allocated at a time."""
MAX_CHUNKS = 256
"""Chunks that wait at most for a reader who does not come; older ones are dropped."""


class RowChunk:
    """Memory for some rows; `at` bytes of it are written."""

    __slots__ = ("at", "data")

    def __init__(self, size: int) -> None:
        self.data = bytearray(size)
        self.at = 0


class RowBuffer:
    """Rows of `width` float64, which one thread appends and another one takes.

    `several` at most are put at once. A row is in place before `RowChunk.at` says so, and a chunk
    in the queue before it is written to: so a reader sees whole rows, in order, whenever it looks.
    """

    def __init__(self, width: int, several: int = 1) -> None:
        self.width = width
        self.pack = Struct(f"{width}d").pack_into
        self.size = 8 * width
        self.end = CHUNK_ROWS * self.size
        self._spare = (several - 1) * self.size
        self._chunks: deque[RowChunk] = deque()
        self._reading: RowChunk | None = None
        self._taken = 0
        self.turn()

    def turn(self) -> None:
        """Begin a new chunk; the old one is full."""
        fresh = RowChunk(self.end + self._spare)
        self._chunks.append(fresh)
        self.chunk = fresh
        if len(self._chunks) > MAX_CHUNKS:
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
                self._reading = chunk
                self._taken = 0
            at = chunk.at
            used.append(np.frombuffer(chunk.data, np.float64, (at - self._taken) // 8, self._taken))
            self._taken = at
            if at < self.end:
                break
            with suppress(IndexError):
                self._chunks.popleft()
        return (np.concatenate(used) if used else np.empty(0)).reshape(-1, self.width)


class Timeline:
    """The marks of the training thread.

    `samples` counts the examples of the iterations done, `excluded_s` the seconds outside of
    iterations.
    """

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self.clock = clock
        self.rows = RowBuffer(2, several=5)
        self.samples = 0
        self.excluded_s = 0.0
        self._excluded = 0
        self._pack_iteration = Struct("10d").pack_into

    def mark(self, spent_on: float) -> None:
        """Say what the time since the last mark was spent on."""
        if not self._excluded:
            self.rows.put(self.clock(), spent_on)

    def iteration(
        self, data: float, forward: float, backward: float, optimizer: float, samples: int
    ) -> None:
        """Close a plain iteration, whose phases ended at these times, with one call."""
        rows = self.rows
        chunk = rows.chunk
        now = self.clock()
        self._pack_iteration(
            chunk.data,
            chunk.at,
            data,
            DATA,
            forward,
            FORWARD,
            backward,
            BACKWARD,
            optimizer,
            OPTIMIZER,
            now,
            ITERATION_SLOT,
        )
        chunk.at += 80
        if chunk.at >= rows.end:
            rows.turn()
        self.samples += samples

    def end_iteration(self, samples: int) -> None:
        """Close an iteration; the next one begins here."""
        self.mark(ITERATION_SLOT)
        self.samples += samples

    def restart(self, spent_on: float = NOBODY) -> None:
        """Begin anew here: earlier time belongs to no iteration."""
        self.mark(spent_on)

    @contextmanager
    def excluded(self, spent_on: float = NOBODY) -> Iterator[None]:
        """Take this time out of all phases of training.

        Hooks that fire are still booked to themselves.
        """
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


class DurationHistogram:
    """The durations of one thing since the last frame, in ns.

    They are number, sum, last, longest, and a histogram.
    """

    __slots__ = ("_bins", "checks", "last", "longest", "n", "total")

    def __init__(self) -> None:
        self.last = 0
        self._reset()

    def _reset(self) -> None:
        self.n = self.total = self.longest = self.checks = 0
        self._bins: Array = np.zeros(0, np.int64)

    def add(self, ns: Array) -> None:
        """Take durations in whole nanoseconds, int64 (n,), in their order."""
        if not len(ns):
            return
        self.n += len(ns)
        self.total += int(ns.sum())
        self.last = int(ns[-1])
        self.longest = max(self.longest, int(ns.max()))
        counts = np.bincount(compute_bins(ns), minlength=NUM_BINS)
        self._bins = self._bins + counts if len(self._bins) else counts

    def add_checks(self, ns: Array) -> None:
        """Take the durations of checks of a trigger that have said no.

        They belong to the total, and are no calls.
        """
        more = int(ns.sum())
        self.total += more
        self.checks += more

    def take(self) -> list[Any] | None:
        """Return [n, total, longest, last, bins], as in a frame, and begin anew.

        It is None when nothing has been added.
        """
        if not (self.n or self.total):
            return None
        filled = self._bins.nonzero()[0]
        bins = pack_bins(filled.tolist(), self._bins[filled].tolist())
        result = [self.n, self.total, self.longest, self.last, bins]
        self._reset()
        return result


def compute_bins(ns: Array) -> Array:
    """Return the bin of each duration: `hookflow.events.packing.bin_of` for many at once."""
    exponent = np.maximum(np.frexp(ns.astype(np.float64))[1] - 3, 0)
    bins: Array = (exponent << 2) + (ns >> exponent)
    return bins


class TimingAggregator:
    """The cost of everything since the last frame.

    There is a cell for each binding, one for iterations, and ns of each phase. Only the recorder's
    thread calls `update`.
    """

    def __init__(
        self, bindings: int, timeline: Timeline, device: "DeviceTimingAggregator | None" = None
    ) -> None:
        self.device = device
        self.cells = [DurationHistogram() for _ in range(bindings)]
        self.iterations = DurationHistogram()
        self.phases = dict.fromkeys(PHASES, 0)
        self.timeline = timeline
        self.firings = RowBuffer(4)
        """From the readable dispatcher: binding, begin, seconds, and 1.

        The last is 0 where its trigger has said no.
        """
        self.spans = RowBuffer(2)
        """Begin and end of the time that hooks of the readable dispatcher took."""
        self.points: list[tuple[tuple[int, ...], RowBuffer]] = []
        """From the generated dispatcher: the bindings of a point, and the rows of their stamps."""
        self.keeps: list[Callable[[Array, Sequence[Array], Array, Sequence[Stamps]], None]] = []
        """Called with the stamps that are taken, while iterations are traced: see `Capture.add`."""
        self.take_offloaded: Callable[[], Mapping[str, list[int]]] = dict
        """Returns what offloaded bindings have done beside the training, by their ids."""
        self._waiting = NO_SPANS  # spans that no mark has closed yet
        self._mark = self._ended = perf_counter()

    def update(self) -> None:
        """Take what has been stamped since the last time."""
        apart = list[Array]()
        device = self.device
        sampled = device.closed if device else 0
        # Marks are taken first: a span that belongs to one of them was put before it.
        marks = self.timeline.rows.take()
        spans = [NO_SPANS]
        for bindings, rows in self.points:
            stamps = rows.take()
            if not len(stamps):
                continue
            seconds = np.diff(stamps, axis=1)
            for column, binding in enumerate(bindings):
                fired = seconds[:, column] > 0  # a binding that was not due has both stamps alike
                used = seconds[fired, column]
                self.cells[binding].add(_convert_to_nanoseconds(used))
                if self.keeps or device:  # looked up each time: a capture may begin meanwhile
                    apart.append(
                        np.column_stack((np.full(len(used), binding), stamps[fired, column], used))
                    )
            spans.append(stamps[:, [0, -1]])
        spans.append(self.spans.take())
        firings = self.firings.take()
        of = firings[:, 0].astype(np.int64)
        durations = _convert_to_nanoseconds(firings[:, 2])
        fired = firings[:, 3] > 0
        for binding in np.flatnonzero(np.bincount(of)).tolist():  # np.unique would import numpy.ma
            mine = of == binding
            self.cells[binding].add(durations[mine & fired])
            self.cells[binding].add_checks(durations[mine & ~fired])
        new = np.concatenate(spans)
        nested = firings[fired, :3]
        timed = (
            device.update(sampled, marks, new, np.concatenate([nested, *apart])) if device else ()
        )
        for keep in [*self.keeps]:
            keep(marks, apart, nested, timed)
        self._waiting = np.concatenate([self._waiting, new])
        if len(marks):
            self._take_marks(marks)

    def _take_marks(self, marks: Array) -> None:
        """Book the time between marks to phases, and take out of each what hooks have had of it."""
        times = marks[:, 0]
        spent_on = marks[:, 1]
        later = self._waiting[:, 0] > times[-1]
        begins, until = self._waiting[~later].T
        self._waiting = self._waiting[later]
        sums = sum_phases(
            times, spent_on, np.diff(times, prepend=self._mark), begins, until - begins
        )
        self._mark = float(times[-1])
        for phase, seconds in zip(PHASES, sums.tolist(), strict=False):
            self.phases[phase] += max(round(seconds * 1e9), 0)
        bounds = spent_on >= ITERATION_SLOT
        lasted = np.diff(times[bounds], prepend=self._ended)
        self.iterations.add(_convert_to_nanoseconds(lasted[spent_on[bounds] == ITERATION_SLOT]))
        if bounds.any():
            self._ended = float(times[bounds][-1])


def sum_phases(times: Array, spent_on: Array, lasted: Array, begins: Array, took: Array) -> Array:
    """Return the seconds of each kind of time, float64 (kinds,).

    The time before each mark `lasted` so long. Spans of hooks that begin at `begins` took so long:
    that is the time of hooks, and not of the phase around them.
    """
    kinds = spent_on.astype(np.int64)
    count = int(COMMANDS) + 1
    hooks = np.bincount(kinds[np.searchsorted(times, begins)], took, count)
    sums: Array = np.bincount(kinds, lasted, count) - hooks
    sums[int(HOOKS)] += hooks[: int(NOBODY)].sum()
    sums[int(OTHER)] += sums[int(ITERATION_SLOT)]
    return sums


def _convert_to_nanoseconds(seconds: Array) -> Array:
    return np.rint(seconds * 1e9).astype(np.int64)


SAMPLE_SPACING = 2.5e-4
"""Seconds between two sampled iterations for each event of the first.

Recording and asking an event takes some microseconds.
"""


LAUNCH_BOUND_TOLERANCE = 0.25
"""By how much of the host's time that of the device may differ in what is bound by launches."""


Sample = list[tuple[float, "Event", bool]]
"""The stamps of an iteration, in seconds of the host's clock; the event that each recorded; and
whether the device had passed the event before by then.
"""


class DeviceClock:
    """Stamps the host's clock, and records an event as well while an iteration is sampled.

    `make` returns a new event with timing; those that have passed are used again.
    """

    def __init__(self, make: "Callable[[], Event]") -> None:
        self.sampled: deque[Sample] = deque()
        """The samples of iterations that are over; their events may not have passed."""
        self.spare: deque[Event] = deque()
        self.open: Sample | None = None
        self.every = False
        """Whether every iteration is sampled: while some are traced."""
        self._make = make
        self._last = self._due = 0.0

    def __call__(self) -> float:
        self._last = now = perf_counter()
        if self.open is not None:
            self._record(self.open, now)
        return now

    def _record(self, sample: Sample, now: float) -> None:
        idle = bool(sample) and sample[-1][1].query()
        if self.spare:
            event = self.spare.popleft()
        else:
            event = self._make()
        event.record()
        sample.append((now, event, idle))

    def turn(self) -> None:
        """Begin another iteration at the last stamp."""
        if self.open is not None:
            self.sampled.append(self.open)
            self._due = self._last + SAMPLE_SPACING * len(self.open)
            self.open = None
        if self.every or self._last >= self._due:
            sample: Sample = []
            self._record(sample, self._last)
            self.open = sample

    def drop(self) -> None:
        """Forget the iteration that has begun: what comes is none."""
        if self.open is not None:
            self.spare.extend(event for _, event, _ in self.open)
            self.open = None


class DeviceTimeline(Timeline):
    """A timeline whose clock is that of a device, too."""

    def __init__(self, clock: DeviceClock) -> None:
        super().__init__(clock)
        self._device = clock

    def iteration(
        self, data: float, forward: float, backward: float, optimizer: float, samples: int
    ) -> None:
        super().iteration(data, forward, backward, optimizer, samples)
        self._device.turn()

    def end_iteration(self, samples: int) -> None:
        super().end_iteration(samples)
        self._device.turn()

    def restart(self, spent_on: float = NOBODY) -> None:
        self._device.drop()
        super().restart(spent_on)
        if not self._excluded:
            self._device.turn()

    @contextmanager
    def excluded(self, spent_on: float = NOBODY) -> Iterator[None]:
        self._device.drop()
        with super().excluded(spent_on):
            yield


class DeviceTimingAggregator:
    """The device time of phases and bindings in the sampled iterations since the last frame."""

    def __init__(self, clock: DeviceClock) -> None:
        self.clock = clock
        self._marks, self._spans, self._fired = NO_SPANS, NO_SPANS, np.empty((0, 3))
        self._reset()

    def _reset(self) -> None:
        self._iters = self._ns = self._launch_bound = 0
        self._phases: Counter[str] = Counter()
        self._hooks: dict[int, list[int]] = {}

    @property
    def closed(self) -> int:
        """How many iterations have been sampled whose events may not have passed."""
        return len(self.clock.sampled)

    def update(self, closed: int, marks: Array, spans: Array, fired: Array) -> list[Stamps]:
        """Take what the host has stamped.

        That is marks, spans of hooks (begin, end), firings (binding, begin, seconds). The first
        `closed` of the sampled iterations had ended before. Returns the stamps of those that are
        booked.
        """
        sampled = self.clock.sampled
        begun = self.clock.open
        oldest = sampled[0] if sampled else begun
        since = oldest[0][0] if oldest else np.inf
        self._marks = _select_since(since, self._marks, marks, 0)
        self._spans = _select_since(since, self._spans, spans, 0)
        self._fired = _select_since(since, self._fired, fired, 1)
        stamps: list[Stamps] = []
        while closed and sampled[0][-1][1].query():
            closed -= 1
            sample = sampled.popleft()
            stamps += self._iter_device_stamps(sample)
            self.clock.spare.extend(event for _, event, _ in sample)
        return stamps

    def _iter_device_stamps(self, sample: Sample) -> Iterator[Stamps]:
        host = np.array([stamp for stamp, _, _ in sample])
        gaps = np.array(
            [first.elapsed_time(then) * 1e-3 for (_, first, _), (_, then, _) in pairwise(sample)]
        )
        device = np.cumsum([0.0, *gaps])

        def compute_durations(begin: Array, end: Array) -> Array:
            result: Array = np.interp(end, host, device) - np.interp(begin, host, device)
            return result

        first = host[0]
        last = host[-1]
        marks = self._marks[(self._marks[:, 0] > first) & (self._marks[:, 0] <= last)]
        if not len(marks) or marks[-1, 1] != ITERATION_SLOT:
            return
        spans = self._spans[(self._spans[:, 0] >= first) & (self._spans[:, 0] < last)]
        fired = self._fired[(self._fired[:, 1] >= first) & (self._fired[:, 1] < last)]
        times = marks[:, 0]
        sums = sum_phases(
            times,
            marks[:, 1],
            compute_durations(np.append(first, times[:-1]), times),
            spans[:, 0],
            compute_durations(spans[:, 0], spans[:, 1]),
        )
        self._iters += 1
        self._ns += round(float(device[-1]) * 1e9)
        # A gap is bound by launches where the device had nothing left to do but what was being
        # launched, and took as long for it as the host.
        alike = np.abs(gaps - np.diff(host)) <= LAUNCH_BOUND_TOLERANCE * np.diff(host)
        self._launch_bound += round(
            float(gaps[alike & [idle for _, _, idle in sample[1:]]].sum()) * 1e9
        )
        self._phases.update(
            {phase: max(round(s * 1e9), 0) for phase, s in zip(PHASES, sums.tolist(), strict=False)}
        )
        took = compute_durations(fired[:, 1], fired[:, 1] + fired[:, 2]) * 1e9
        for binding, ns in zip(
            fired[:, 0].astype(int).tolist(), took.round().astype(int).tolist(), strict=True
        ):
            entry = self._hooks.setdefault(binding, [0, 0])
            entry[0] += 1
            entry[1] += ns
        yield host, device

    def take(self) -> OnDevice | None:
        """Return the record of what has been booked, and begin anew; None where that is nothing."""
        if not self._iters:
            return None
        hooks = {str(binding): entry for binding, entry in self._hooks.items()}
        phases = dict(self._phases)
        result = OnDevice(
            iters=self._iters,
            ns=self._ns,
            launch_bound=self._launch_bound,
            phases=phases,
            hooks=hooks,
        )
        self._reset()
        return result


def _select_since(moment: float, kept: Array, more: Array, column: int) -> Array:
    """Return the rows from a moment on, of which the times are in this column."""
    return np.concatenate([rows[rows[:, column] >= moment] for rows in (kept, more)])


def on_host_clock(stamps: Sequence[Stamps]) -> Stamps:
    """Return the host's stamps of traced iterations, and when the device came to each.

    Both are on the same clock. The clocks have no common zero. The device is taken to be as early
    as can be: no event passes before its record.
    """
    host = np.concatenate([host for host, _ in stamps])
    starts = np.cumsum([0.0, *(device[-1] for _, device in stamps)])
    device = np.concatenate(
        [device + start for (_, device), start in zip(stamps, starts, strict=False)]
    )
    return host, device + (host - device).max()
