"""The durations of calls and iterations: of the last minute, and over the whole run.

Frames are counted when a figure is read, since most are never read. So reading changes these
objects, too: all of them belong to the thread that folds the log.
"""

import math
from array import array
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice, pairwise
from statistics import median
from typing import Any, Literal, NamedTuple

from hookflow.events.packing import add_packed, bin_of, compute_percentile
from hookflow.events.records import PHASES, Frame, OnDevice
from hookflow.graph.plan import Binding, Plan
from hookflow.numbers import duration

WINDOW_SECONDS = 60
"""Seconds that shares, means and rates look back."""

RECENT_SECONDS = 10
"""Seconds with calls that are compared with those before them."""

SLOWDOWN_FACTOR = 1.5
"""The ratio from which on a hook counts as slower.

Its last RECENT_SECONDS with calls are compared with those before.
"""

MAX_UNCOUNTED = 64
"""Frames of a hook that may wait until they are counted."""

MAX_BUCKETS = 512
"""Buckets of a history; when there would be more, two neighbours become one."""

ITERATION_HISTORY = "iteration"
"""The name of the history of whole iterations, beside those of `PHASES`."""


@dataclass(slots=True)
class CallTotals:
    """Calls of one hook at one point: how many, their ns, the longest, and how many by bin.

    `checks` is the part of `total` in which its trigger said no.
    """

    count: int = 0
    total: int = 0
    longest: int = 0
    bins: dict[int, int] = field(default_factory=dict)
    checks: int = 0

    @property
    def mean(self) -> float:
        """The mean ns of a call: of the same calls as the percentiles."""
        return (self.total - self.checks) / self.count

    def add(self, entry: "TimedEntry") -> None:
        """Add the calls of an entry."""
        count, total, longest, _, packed = entry.packed
        self.count += count
        self.total += total
        self.checks += entry.checks
        self.longest = max(self.longest, longest)
        add_packed(self.bins, packed)

    def merge(self, other: "CallTotals") -> None:
        """Add the calls of other totals."""
        self.count += other.count
        self.total += other.total
        self.checks += other.checks
        self.longest = max(self.longest, other.longest)
        for bin_number, count in other.bins.items():
            self.bins[bin_number] = self.bins.get(bin_number, 0) + count

    def subtract(self, entry: "TimedEntry") -> None:
        """Take calls away again.

        If the longest was one of them, `longest` becomes 0, which means unknown.
        """
        count, total, longest, _, packed = entry.packed
        self.count -= count
        self.total -= total
        self.checks -= entry.checks
        if longest >= self.longest:
            self.longest = 0
        add_packed(self.bins, packed, -1)

    def percentile(self, share: float) -> float:
        """Return the duration that `share` of the calls stay below, in ns.

        It is never above the longest.
        """
        return min(compute_percentile(self.bins, share), self.longest)


class SlowdownEvent(NamedTuple):
    """Since iteration `it` a call takes `ns`, and took `usual` ns before."""

    it: int
    ns: float
    usual: float

    @property
    def ratio(self) -> float:
        """How many times as long as before a call takes."""
        return self.ns / self.usual


class TimedEntry(NamedTuple):
    """A frame's entry about a hook or about iterations.

    It has the second of the clock and the iteration of the frame.

    `packed` is [calls, total ns, longest ns, last ns, bins]. `checks` is the part of the total in
    which its trigger said no.
    """

    second: int
    it: int
    packed: Sequence[Any]
    checks: int = 0


class RollingWindow:
    """The calls of the last `WINDOW_SECONDS`.

    Entries are queued as they arrive, and added to the totals when these are read.
    """

    def __init__(self) -> None:
        self.entries: deque[TimedEntry] = deque()
        self._num_added = 0  # entries at the left end that `_totals` contains
        self._totals = CallTotals()  # its `longest` is 0 where it is not known

    def add(self, entry: TimedEntry) -> None:
        """Add the newest entry, and drop those that have left the window."""
        self.entries.append(entry)
        oldest = entry.second - WINDOW_SECONDS
        # Entries from before the clock was set back are later than the newest one, and are dropped,
        # too.
        while not oldest < self.entries[0].second <= entry.second:
            self._drop_oldest()

    def sum_since(self, second: int) -> CallTotals:
        """Return the calls after a second, and drop those before.

        The second is never before that of the last call.
        """
        while self.entries and self.entries[0].second <= second:
            self._drop_oldest()
        if not self._totals.longest:
            self._totals.longest = max((entry.packed[2] for entry in self.entries), default=0)
        for entry in islice(self.entries, self._num_added, None):
            self._totals.add(entry)
        self._num_added = len(self.entries)
        return self._totals

    def _drop_oldest(self) -> None:
        entry = self.entries.popleft()
        if self._num_added > 0:
            self._num_added -= 1
            self._totals.subtract(entry)


@dataclass(slots=True)
class OffloadStats:
    """The calls of an offloaded hook, in its own thread: how many, their ns, and the longest.

    `waiting` are those that wait for the thread now, `dropped` those that found the queue full.
    `window` has the calls of the last `WINDOW_SECONDS`.
    """

    count: int = 0
    total: int = 0
    longest: int = 0
    waiting: int = 0
    dropped: int = 0
    window: RollingWindow = field(default_factory=RollingWindow)

    def add(self, t: float, packed: Sequence[int]) -> None:
        """Add a frame's entry.

        It has calls, their ns, the longest, and those waiting and dropped by then.
        """
        count, total, longest, waiting, dropped = packed
        self.count += count
        self.total += total
        self.longest = max(self.longest, longest)
        self.waiting = waiting
        self.dropped = dropped
        if count:
            self.window.add(TimedEntry(int(t), 0, (count, total, longest, 0, (0,))))

    def totals(self, since: float = -math.inf) -> CallTotals:
        """Return the calls of the whole attempt, or since a moment of the last `WINDOW_SECONDS`.

        They are without bins.
        """
        if since == -math.inf:
            return CallTotals(self.count, self.total, self.longest)
        return self.window.sum_since(math.floor(since))

    def __str__(self) -> str:
        parts = [f"{self.count} calls"]
        if self.count:
            parts.append(f"mean {duration(self.total / self.count)}")
            parts.append(f"max {duration(self.longest)}")
        if self.dropped:
            parts.append(f"{self.dropped} dropped")
        if self.waiting:
            parts.append(f"{self.waiting} waiting")
        return ", ".join(parts)


class SlowdownDetector:
    """Compares the last `RECENT_SECONDS` with calls with those before them.

    It compares medians, in which spikes weigh nothing.
    """

    def __init__(self) -> None:
        self.slowdown: SlowdownEvent | None = None
        # Each of the last seconds has an entry: its first iteration, and the mean ns of its calls.
        self._recent: deque[tuple[int, float]] = deque()
        self._past: Counter[int] = Counter()  # the seconds before them, by the bin of their mean
        self._num_past = 0
        # The median of the past is computed again once it has so many seconds.
        self._next_median = RECENT_SECONDS
        self._usual = 0.0  # that median

    def add_second(self, it: int, mean: float) -> None:
        """Take the mean of the calls of the next second, which begins at iteration `it`."""
        self._recent.append((it, mean))
        if len(self._recent) > RECENT_SECONDS:
            _, oldest_mean = self._recent.popleft()
            self._add_to_past(oldest_mean)
        limit = SLOWDOWN_FACTOR * self._usual
        if limit == 0.0:
            return
        if self.slowdown is None and mean <= limit:
            return
        if self.slowdown is None:
            since = self._first_iteration_above(limit)
        else:
            since = self.slowdown.it
        ns = median(each for _, each in self._recent)
        self.slowdown = SlowdownEvent(since, ns, self._usual) if ns > limit else None

    def _add_to_past(self, mean: float) -> None:
        self._past[bin_of(round(mean))] += 1
        self._num_past += 1
        if self.slowdown is None and self._num_past >= self._next_median:
            self._usual = compute_percentile(self._past, 0.5)
            self._next_median = self._num_past + max(RECENT_SECONDS, self._num_past // 10)

    def _first_iteration_above(self, limit: float) -> int:
        return next(it for it, mean in self._recent if mean > limit)


class CallTiming:
    """The calls of one hook at one point, in the whole attempt and in the last minute."""

    def __init__(self) -> None:
        self.last = 0
        """The ns of the newest call."""
        self._window = RollingWindow()
        self._uncounted: list[TimedEntry] = []
        self._attempt = CallTotals()
        self._detector = SlowdownDetector()
        # The second that is counted now: its first iteration, its calls and their ns.
        self._second = 0
        self._second_it = 0
        self._second_count = 0
        self._second_total = 0

    def add(self, t: float, it: int, packed: list[Any], checks: int = 0) -> None:
        """Add a frame's entry, see `TimedEntry`."""
        entry = TimedEntry(int(t), it, packed, checks)
        self.last = packed[3]
        self._window.add(entry)
        self._uncounted.append(entry)
        if len(self._uncounted) >= MAX_UNCOUNTED:
            self._count()

    def _count(self) -> CallTotals:
        """Count what is new, and return the calls of the whole attempt."""
        for entry in self._uncounted:
            if entry.second != self._second:
                self._end_second()
                self._second = entry.second
                self._second_it = entry.it
            count, total, *_ = entry.packed
            self._second_count += count
            self._second_total += total - entry.checks
            self._attempt.add(entry)
        self._uncounted.clear()
        return self._attempt

    def _end_second(self) -> None:
        if self._second_count:
            self._detector.add_second(self._second_it, self._second_total / self._second_count)
        self._second_count = 0
        self._second_total = 0

    @property
    def count(self) -> int:
        """The calls of the whole attempt."""
        return self._count().count

    @property
    def total(self) -> int:
        """The ns of all calls of the attempt, with those that their trigger took."""
        return self._count().total

    @property
    def slowdown(self) -> SlowdownEvent | None:
        """Since when a call takes longer; None while it does not."""
        self._count()
        return self._detector.slowdown

    def totals(self, since: float = -math.inf) -> CallTotals:
        """Return the calls of the whole attempt, or since a moment of the last `WINDOW_SECONDS`."""
        if since == -math.inf:
            return self._count()
        return self._window.sum_since(math.floor(since))

    def time_spent(self, since: float) -> int:
        """Return the nanoseconds since a moment of the last `WINDOW_SECONDS`."""
        return self.totals(since).total


class PhaseTotals:
    """The time of training iterations, by phase."""

    def __init__(self) -> None:
        self.sums: Counter[str] = Counter()
        """ns by phase, `iters`, and `ns` of whole iterations."""

    def add_sums(self, sums: Mapping[str, int], sign: Literal[1, -1] = 1) -> None:
        """Add to the sums, or take away with a `sign` of -1."""
        for name, more in sums.items():
            self.sums[name] += sign * more

    @property
    def by_phase(self) -> dict[str, int]:
        """The ns by phase; "other" is the rest of the iterations."""
        phases = {phase: self.sums[phase] for phase in PHASES if phase != "other"}
        known = sum(phases.values())
        phases["other"] = max(self.sums["ns"] - known, 0)  # an iteration may be recorded in part
        return phases


class DeviceWindow:
    """The time on an accelerator of the iterations that were sampled lately.

    That is in the WINDOW_SECONDS before the newest frame.
    """

    def __init__(self) -> None:
        self._frames: deque[tuple[float, OnDevice]] = deque()

    def add(self, t: float, record: OnDevice) -> None:
        """Add what a frame has sampled."""
        self._frames.append((t, record))
        while not t - WINDOW_SECONDS < self._frames[0][0] <= t:
            self._frames.popleft()

    def iteration(self) -> float | None:
        """Return the mean ns of an iteration; None where none was sampled."""
        return _mean_ns((record["iters"], record["ns"]) for _, record in self._frames)

    def launch_bound(self) -> bool:
        """Return whether the device mostly waits for the host to launch its work."""
        whole = sum(record["ns"] for _, record in self._frames)
        waiting = sum(record["launch_bound"] for _, record in self._frames)
        return 2 * waiting > whole

    def phase(self, name: str) -> float | None:
        """Return the mean ns of a phase in an iteration."""
        return _mean_ns(
            (record["iters"], record["phases"].get(name, 0)) for _, record in self._frames
        )

    def share(self, bindings: Iterable[int]) -> float | None:
        """Return the share of the iterations that the calls of hooks took, by binding id."""
        whole = sum(record["ns"] for _, record in self._frames)
        if not whole:
            return None
        spent = 0
        for binding in bindings:
            for _, record in self._frames:
                _, ns = record["hooks"].get(str(binding), (0, 0))
                spent += ns
        return spent / whole

    def call(self, binding: int) -> float | None:
        """Return the mean ns of a call of a hook, by the id of its binding."""
        entries = []
        for _, record in self._frames:
            entry = record["hooks"].get(str(binding))
            if entry is not None:
                entries.append((entry[0], entry[1]))
        return _mean_ns(entries)


def _mean_ns(entries: Iterable[tuple[int, int]]) -> float | None:
    """Return the mean of entries of a count and a sum of ns; None where the counts are 0."""
    num_calls = 0
    total = 0
    for count, ns in entries:
        num_calls += count
        total += ns
    if num_calls:
        return total / num_calls
    return None


class IterationWindow(PhaseTotals):
    """The WINDOW_SECONDS before the newest frame.

    Its sums have `samples` and `cost` (ns of writing frames), too.
    """

    def __init__(self) -> None:
        super().__init__()
        self._frames: deque[tuple[int, dict[str, int]]] = deque()  # second, sums
        self._iterations = RollingWindow()

    def add(
        self, t: float, phases: Mapping[str, int], iters: list[Any], samples: int, cost: int
    ) -> None:
        """Add a frame, and drop those that have left the window."""
        count, total, *_ = iters
        sums = {**phases, "iters": count, "ns": total, "samples": samples, "cost": cost}
        self.add_sums(sums)
        self._iterations.add(TimedEntry(int(t), 0, iters))
        self._frames.append((int(t), sums))
        # Entries from before the clock was set back are later than the newest one, and are dropped,
        # too.
        while not t - WINDOW_SECONDS < self._frames[0][0] <= t:
            _, oldest = self._frames.popleft()
            self.add_sums(oldest, -1)

    @property
    def recent_iteration(self) -> float:
        """The ns of an iteration in the last RECENT_SECONDS that have one."""
        seconds = sorted({second for second, _ in self._frames})[-RECENT_SECONDS:]
        recent = [sums for second, sums in self._frames if second >= seconds[0]]
        count = sum(sums["iters"] for sums in recent)
        return sum(sums["ns"] for sums in recent) / (count or 1)

    def compute_median(self, name: str) -> float:
        """Return the median over the frames of a phase's ns, or "ns", in an iteration.

        It is 0.0 where there is none.
        """
        means = []
        ns = 0
        for _, sums in self._frames:
            ns += sums.get(name, 0)
            if sums["iters"]:  # else the iteration goes on in the next frame
                means.append(ns / sums["iters"])
                ns = 0
        return median(means or [0.0])

    def percentile(self, share: float) -> float:
        """Return the duration in ns that `share` of the iterations stayed below."""
        return self._iterations.sum_since(-1).percentile(share)


class CallHistory:
    """The mean times of calls over the run, in buckets of equally many iterations.

    Each column has the sum up to the end of each bucket, so that the sum of any stretch is a
    difference.
    """

    def __init__(self, it: int = 0) -> None:
        self._it = it  # where the newest entry ends, and the next one begins
        self._stride = 1  # iterations of a bucket
        self._counts = array("d", [0.0])
        self._totals = array("d", [0.0])  # ns

    def add(self, it: int, count: int, total: int) -> None:
        """Add the calls since the last entry, up to iteration `it`, and their ns.

        Without a call it adds nothing. The calls are spread evenly over the buckets of that
        stretch, unless they are fewer than these.
        """
        if count <= 0:
            return
        last = it // self._stride
        while last >= MAX_BUCKETS:
            self._merge_buckets()
            last = it // self._stride
        first = max(min((self._it + 1) // self._stride, last), 0)
        self._it = it
        if first == last == len(self._counts) - 2:  # as a rule
            self._counts[-1] += count
            self._totals[-1] += total
            return
        num_buckets = last - first + 1
        if count < num_buckets:
            first = last
            num_buckets = 1
        for column, added in ((self._counts, count), (self._totals, total)):
            column.extend([column[-1]] * (last + 2 - len(column)))
            for at in range(first, len(column) - 1):
                column[at + 1] += added * min(at - first + 1, num_buckets) / num_buckets

    def _merge_buckets(self) -> None:
        self._stride *= 2
        for column in (self._counts, self._totals):
            if len(column) % 2 == 0:
                column.append(column[-1])
            del column[1::2]

    def forget_after(self, it: int) -> None:
        """Drop what lies beyond an iteration: a resumed run walks that stretch again."""
        self._it = min(self._it, it)
        for column in (self._counts, self._totals):
            del column[it // self._stride + 2 :]

    def compute_means(self, last: float, num_parts: int) -> list[float | None]:
        """Return the mean ns in equal parts of the iterations up to `last`.

        A mean is None where there was no call.
        """
        result: list[float | None] = []
        for start, end in _compute_bucket_ranges(
            last, num_parts, self._stride, len(self._counts) - 1
        ):
            count = self._counts[end] - self._counts[start]
            total = self._totals[end] - self._totals[start]
            result.append(total / count if count else None)
        return result


@lru_cache(maxsize=8)
def _compute_bucket_ranges(
    last: float, num_parts: int, stride: int, num_buckets: int
) -> list[tuple[int, int]]:
    """Return the first bucket of each part, and the one behind the last.

    They are alike for all rows of a screen.
    """
    edges = [int(last * part / num_parts // stride) for part in range(num_parts + 1)]
    ranges = []
    for start, end in pairwise(edges):
        ranges.append((min(start, num_buckets), min(max(end, start + 1), num_buckets)))
    return ranges


def compute_median_of_means(means: Iterable[float | None]) -> float:
    """Return the median of the means, in which spikes weigh nothing.

    It is 0.0 where there was no call.
    """
    known = [mean for mean in means if mean is not None]
    return median(known or [0.0])


class CallHistories:
    """The histories of rank 0, over all attempts of the run.

    A binding is known again by its hook, point and method.
    """

    def __init__(self) -> None:
        self._by_key: dict[str, CallHistory] = {}
        self._by_id: dict[str, CallHistory] = {}  # those of this attempt, by the ids in its frames
        self._begin = 0
        # An iteration may take several frames, and this sums its ns by phase until it is done.
        self._unfinished: Counter[str] = Counter()

    def begin_attempt(self, it: int) -> None:
        """Begin another attempt after iteration `it`."""
        self._by_id = {}
        self._begin = it
        self._unfinished = Counter()
        for history in self._by_key.values():
            history.forget_after(it)

    def add_frame(self, record: Frame, plan: Plan) -> None:
        """Add the calls and the phases of a frame."""
        it = record["it"]
        num_iterations, iterations_ns, *_ = record["iters"]
        if record["stage"] != "start":
            self._unfinished.update(record["phases"])
        if num_iterations:
            self._history_at(ITERATION_HISTORY).add(it, num_iterations, iterations_ns)
            for phase in PHASES:
                self._history_at(phase).add(it, num_iterations, self._unfinished[phase])
            self._unfinished.clear()
        for binding_id, entry in record["hooks"].items():
            history = self._by_id.get(binding_id)
            if history is None:
                history = self._history_of_id(binding_id, plan)
            checks = record.get("checks", {}).get(binding_id, 0)
            history.add(it, entry[0], entry[1] - checks)

    def _history_of_id(self, binding_id: str, plan: Plan) -> CallHistory:
        """Return the history of a binding that this attempt has called for the first time."""
        key = binding_id
        if int(binding_id) < len(plan.bindings):
            key = _make_binding_key(plan.bindings[int(binding_id)])
        history = self._history_at(key)
        self._by_id[binding_id] = history
        return history

    def _history_at(self, key: str) -> CallHistory:
        history = self._by_key.get(key)
        if history is None:
            history = CallHistory(self._begin)
            self._by_key[key] = history
        return history

    def of(self, subject: Binding | str) -> CallHistory:
        """Return the history of a binding, of a phase or of whole iterations.

        It is an empty one where there is none.
        """
        if isinstance(subject, str):
            key = subject
        else:
            key = _make_binding_key(subject)
        return self._by_key.get(key) or CallHistory()


def _make_binding_key(binding: Binding) -> str:
    return f"{binding.hook} {binding.point} {binding.method} {binding.half}"
