"""The durations of firings and iterations: of the last minute, and over the whole run.

Frames are counted when a figure is read, since most are never read. So reading changes these objects, too: all of them
belong to the thread that folds the log.
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

from hookflow.events.packing import add_packed, bin_of, percentile
from hookflow.events.records import PHASES, Frame, OnDevice
from hookflow.graph.plan import Binding, Plan
from hookflow.numbers import duration, rough

WINDOW = 60
"""Seconds that heat, shares, trends and rates look back."""

RECENT, SLOWER = 10, 1.5
"""A binding is slower once its last RECENT seconds with firings take SLOWER times as long as those before."""


@dataclass(slots=True)
class Firings:
    """Firings of one binding: how many, their ns, the longest, and how many by bin."""

    count: int = 0
    total: int = 0
    longest: int = 0
    bins: dict[int, int] = field(default_factory=dict)

    def add(self, count: int, total: int, longest: int, packed: Sequence[int]) -> None:
        """Add firings, whose bins are packed as in frames."""
        self.count += count
        self.total += total
        if longest > self.longest:
            self.longest = longest
        add_packed(self.bins, packed)

    def take(self, count: int, total: int, longest: int, packed: Sequence[int]) -> None:
        """Take firings away again; if the longest was one of them, it becomes 0."""
        self.count -= count
        self.total -= total
        if longest >= self.longest:
            self.longest = 0
        add_packed(self.bins, packed, -1)

    def percentile(self, share: float) -> float:
        """Return the duration that `share` of the firings stay below, in ns; never above the longest."""
        return min(percentile(self.bins, share), self.longest)


@dataclass(slots=True)
class Beside:
    """The firings of an offloaded binding, in the thread of its hook: how many, their ns, and the longest.

    `waiting` are those that wait for the thread now, `dropped` those that found the queue full.
    """

    count: int = 0
    total: int = 0
    longest: int = 0
    waiting: int = 0
    dropped: int = 0

    def add(self, count: int, total: int, longest: int, waiting: int, dropped: int) -> None:
        self.count += count
        self.total += total
        self.longest = max(self.longest, longest)
        self.waiting, self.dropped = waiting, dropped

    def __str__(self) -> str:
        took = [f"mean {duration(self.total / self.count)}", f"max {duration(self.longest)}"] if self.count else []
        late = [f"{self.waiting} waiting" * bool(self.waiting), f"{self.dropped} dropped" * bool(self.dropped)]
        return ", ".join(filter(None, [f"{self.count} firings", *took, *late]))


class Slower(NamedTuple):
    """Since iteration `it` a firing takes `ns`, and took `usual` ns before."""

    it: int
    ns: float
    usual: float

    def __str__(self) -> str:
        return f"×{rough(self.ns / self.usual)} since iteration {self.it}"


Entry = tuple[int, int, Sequence[Any]]
"""A frame's entry of a binding, or of iterations, behind the second of the clock and the iteration of the frame."""


class Lately:
    """The entries of the last WINDOW seconds. They stay packed until `since` counts those that have come."""

    def __init__(self) -> None:
        self.entries: deque[Entry] = deque()
        self._counted, self._sums = 0, Firings()  # the first entries, so many of them; the longest may be unknown: 0

    def add(self, new: Entry) -> None:
        self.entries.append(new)
        while not new[0] - WINDOW < self.entries[0][0] <= new[0]:  # it is later where the clock was set back
            self._forget()

    def since(self, second: int) -> Firings:
        """Return the firings after a second, which is never before that of the last call, and forget those before."""
        while self.entries and self.entries[0][0] <= second:
            self._forget()
        self._sums.longest = self._sums.longest or max((entry[2] for *_, entry in self.entries), default=0)
        for _, _, (count, total, longest, _, bins) in islice(self.entries, self._counted, None):
            self._sums.add(count, total, longest, bins)
        self._counted = len(self.entries)
        return self._sums

    def _forget(self) -> None:
        *_, (count, total, longest, _, bins) = self.entries.popleft()
        if self._counted:
            self._counted -= 1
            self._sums.take(count, total, longest, bins)


class Timing:
    """The firings of the whole attempt. Entries are counted when they are needed, or when many of them wait."""

    MANY = 64

    def __init__(self) -> None:
        self.last = 0
        """The ns of the newest firing."""
        self._recent = Lately()
        self._new: list[Entry] = []  # those of them, and of before, that are not counted yet
        self._whole = Firings()
        self._slower: Slower | None = None
        self._clock = self._it = self._fired = self._spent = 0  # the second that is counted, and its first iteration
        self._means: deque[tuple[int, float]] = deque()  # the last RECENT seconds: first iteration, mean ns
        self._past: Counter[int] = Counter()  # the seconds before them, by the bin of their mean
        self._seconds, self._due = 0, RECENT  # how many they are, and at how many their median is taken again
        self._usual = 0.0  # their median

    def add(self, t: float, it: int, entry: list[Any]) -> None:
        """Add one frame's [firings, total ns, longest ns, last ns, bins].

        Without a firing, the total is the time that its trigger took.
        """
        new = int(t), it, entry
        self.last = entry[3]
        self._recent.add(new)
        self._new.append(new)
        if len(self._new) >= self.MANY:
            self._counted()

    def _counted(self) -> Firings:
        """Count what is new, and return the firings of the whole attempt."""
        whole = self._whole
        for clock, it, (count, total, longest, _, bins) in self._new:
            if clock != self._clock:
                if self._fired:
                    self._judge(self._it, self._spent / self._fired)
                self._clock, self._it, self._fired, self._spent = clock, it, 0, 0
            self._fired += count
            self._spent += total
            whole.add(count, total, longest, bins)
        self._new.clear()
        return whole

    def _judge(self, it: int, mean: float) -> None:
        """Compare the last seconds with those before them, by medians, in which spikes weigh nothing."""
        self._means.append((it, mean))
        if len(self._means) > RECENT:
            self._past[bin_of(round(self._means.popleft()[1]))] += 1
            self._seconds += 1
            if not self._slower and self._seconds >= self._due:
                self._usual = percentile(self._past, 0.5)
                self._due = self._seconds + max(RECENT, self._seconds // 10)
        limit = SLOWER * self._usual
        if self._usual and (self._slower or mean > limit):
            ns = median(mean for _, mean in self._means)
            since = self._slower.it if self._slower else next(it for it, mean in self._means if mean > limit)
            self._slower = Slower(since, ns, self._usual) if ns > limit else None

    @property
    def count(self) -> int:
        return self._counted().count

    @property
    def total(self) -> int:
        """The ns of all firings."""
        return self._counted().total

    @property
    def slower(self) -> Slower | None:
        """Since when it takes longer; None while it does not."""
        self._counted()
        return self._slower

    def firings(self, since: float = -math.inf) -> Firings:
        """Return the firings of the whole attempt, or since a moment of the last WINDOW seconds."""
        return self._counted() if since == -math.inf else self._recent.since(math.floor(since))

    def spent(self, since: float) -> int:
        """Return the nanoseconds since a moment of the last WINDOW seconds."""
        return self.firings(since).total

    def fired(self, since: float) -> bool:
        entries = self._recent.entries
        return bool(entries) and entries[-1][0] > since


class Booked:
    """The time of training iterations, by phase."""

    def __init__(self) -> None:
        self.sums: Counter[str] = Counter()
        """ns by phase, `iters`, and `ns` of whole iterations."""

    def book(self, sums: Mapping[str, int], sign: Literal[1, -1] = 1) -> None:
        for name, more in sums.items():
            self.sums[name] += sign * more

    @property
    def booked(self) -> dict[str, int]:
        """The ns by phase; "other" is the rest of the iterations."""
        phases = {phase: self.sums[phase] for phase in PHASES if phase != "other"}
        return phases | {"other": max(self.sums["ns"] - sum(phases.values()), 0)}  # an iteration may be booked in part


class DeviceTimes:
    """The time on an accelerator, of the iterations that were sampled in the WINDOW seconds before the newest frame."""

    def __init__(self) -> None:
        self._frames: deque[tuple[float, OnDevice]] = deque()

    def add(self, t: float, record: OnDevice) -> None:
        self._frames.append((t, record))
        while not t - WINDOW < self._frames[0][0] <= t:
            self._frames.popleft()

    def iteration(self) -> float | None:
        """Return the mean ns of an iteration; None where none was sampled."""
        return _mean((record["iters"], record["ns"]) for _, record in self._frames)

    def launch_bound(self) -> bool:
        """Whether the device mostly waits for the host to launch its work."""
        whole = sum(record["ns"] for _, record in self._frames)
        return 2 * sum(record["launch_bound"] for _, record in self._frames) > whole

    def phase(self, name: str) -> float | None:
        """Return the mean ns of a phase in an iteration."""
        return _mean((record["iters"], record["phases"].get(name, 0)) for _, record in self._frames)

    def share(self, bindings: Iterable[int]) -> float | None:
        """Return the share of the iterations that the firings of bindings took."""
        spent = sum(record["hooks"].get(str(each), (0, 0))[1] for each in bindings for _, record in self._frames)
        whole = sum(record["ns"] for _, record in self._frames)
        return spent / whole if whole else None

    def firing(self, binding: int) -> float | None:
        """Return the mean ns of a firing of a binding."""
        entries = (record["hooks"].get(str(binding)) for _, record in self._frames)
        return _mean((entry[0], entry[1]) for entry in entries if entry)


def _mean(entries: Iterable[tuple[int, int]]) -> float | None:
    counts, sums = zip(*entries, strict=True) if (entries := [*entries]) else ((), ())
    return sum(sums) / sum(counts) if sum(counts) else None


class Minute(Booked):
    """The WINDOW seconds before the newest frame; its sums have `samples` and `cost` (ns of writing frames), too."""

    def __init__(self) -> None:
        super().__init__()
        self._frames: deque[tuple[int, dict[str, int]]] = deque()  # second, sums
        self._iters = Lately()

    def add(self, t: float, phases: Mapping[str, int], iters: list[Any], samples: int, cost: int) -> None:
        count, total, *_ = iters
        sums = {**phases, "iters": count, "ns": total, "samples": samples, "cost": cost}
        self.book(sums)
        self._iters.add((int(t), 0, iters))
        self._frames.append((int(t), sums))
        while not t - WINDOW < self._frames[0][0] <= t:  # it is later where the clock was set back
            self.book(self._frames.popleft()[1], -1)

    @property
    def lately(self) -> float:
        """The ns of an iteration in the last RECENT seconds that have one."""
        seconds = sorted({clock for clock, _ in self._frames})[-RECENT:]
        recent = [sums for clock, sums in self._frames if clock >= seconds[0]]
        return sum(sums["ns"] for sums in recent) / (sum(sums["iters"] for sums in recent) or 1)

    def usual(self, name: str) -> float:
        """Return the median over the frames of the ns of a phase, or "ns", in an iteration; 0.0 where there is none."""
        means, ns = [], 0
        for _, sums in self._frames:
            ns += sums.get(name, 0)
            if sums["iters"]:  # else the iteration goes on in the next frame
                means.append(ns / sums["iters"])
                ns = 0
        return median(means or [0.0])

    def percentile(self, share: float) -> float:
        """Return the duration in ns that `share` of the iterations stayed below."""
        return self._iters.since(-1).percentile(share)


ITERATION = "iteration"
"""The name of the history of whole iterations, beside those of `PHASES`."""


class History:
    """Buckets of equally many iterations; when there would be more than LIMIT of them, two neighbours become one."""

    LIMIT = 512

    def __init__(self, it: int = 0) -> None:
        self._it = it  # where the newest entry ends, and the next one begins
        self._stride = 1  # iterations of a bucket
        self._fired, self._spent = array("d", [0.0]), array("d", [0.0])  # summed up to the end of each bucket

    def add(self, it: int, count: int, total: int) -> None:
        """Add what has fired since the last entry, up to iteration `it`, and its ns; without a firing nothing."""
        if count <= 0:
            return
        while (last := it // self._stride) >= self.LIMIT:
            self._merge()
        first = max(min((self._it + 1) // self._stride, last), 0)
        self._it = it
        if first == last == len(self._fired) - 2:  # as a rule
            self._fired[-1] += count
            self._spent[-1] += total
            return
        share = last - first + 1
        if count < share:  # it has not fired in each of them
            first, share = last, 1
        for column, added in ((self._fired, count), (self._spent, total)):
            column.extend([column[-1]] * (last + 2 - len(column)))
            for at in range(first, len(column) - 1):
                column[at + 1] += added * min(at - first + 1, share) / share

    def _merge(self) -> None:
        self._stride *= 2
        for column in (self._fired, self._spent):
            column.extend(column[-1:] * (len(column) % 2 == 0))
            del column[1::2]

    def forget_after(self, it: int) -> None:
        """Drop what lies beyond an iteration: a resumed run walks that stretch again."""
        self._it = min(self._it, it)
        for column in (self._fired, self._spent):
            del column[it // self._stride + 2 :]

    def means(self, last: float, count: int) -> list[float | None]:
        """Return the mean ns in `count` equal parts of the iterations up to `last`; None where nothing has fired."""
        fired, spent = self._fired, self._spent
        parts = _parts(last, count, self._stride, len(fired) - 1)
        return [(spent[to] - spent[at]) / n if (n := fired[to] - fired[at]) else None for at, to in parts]


@lru_cache(maxsize=8)
def _parts(last: float, count: int, stride: int, buckets: int) -> list[tuple[int, int]]:
    """Return the first bucket of each part, and that behind its last one: those of all rows of a screen are alike."""
    edges = [int(last * k / count // stride) for k in range(count + 1)]
    return [(min(at, buckets), min(max(to, at + 1), buckets)) for at, to in pairwise(edges)]


def usual(means: Iterable[float | None]) -> float:
    """Return the median of the means, in which spikes weigh nothing; 0.0 where nothing has fired."""
    return median([mean for mean in means if mean is not None] or [0.0])


class Histories:
    """The histories of rank 0, over all attempts of the run: a binding is known again by its hook, point and method."""

    def __init__(self) -> None:
        self._of: dict[str, History] = {}
        self._by_id: dict[str, History] = {}  # those of this attempt, by the ids in its frames
        self._begin = 0
        self._under_way: Counter[str] = Counter()  # the ns by phase of an iteration that takes several frames

    def again(self, it: int) -> None:
        """Begin another attempt after iteration `it`."""
        self._by_id, self._begin, self._under_way = {}, it, Counter()
        for history in self._of.values():
            history.forget_after(it)

    def frame(self, record: Frame, plan: Plan) -> None:
        it, count, phases, of = record["it"], record["iters"][0], record["phases"], self._by_id
        if record["stage"] != "start":
            self._under_way.update(phases)
        if count:
            self._named(ITERATION).add(it, count, record["iters"][1])
            for phase in PHASES:
                self._named(phase).add(it, count, self._under_way[phase])
            self._under_way.clear()
        for binding, entry in record["hooks"].items():
            if (history := of.get(binding)) is None:
                known = int(binding) < len(plan.bindings)
                history = of[binding] = self._named(_key(plan.bindings[int(binding)]) if known else binding)
            history.add(it, entry[0], entry[1])

    def _named(self, key: str) -> History:
        if (history := self._of.get(key)) is None:
            history = self._of[key] = History(self._begin)
        return history

    def of(self, of: Binding | str) -> History:
        """Return the history of a binding, of a phase or of whole iterations; an empty one where there is none."""
        return self._of.get(of if isinstance(of, str) else _key(of)) or History()


def _key(binding: Binding) -> str:
    return f"{binding.hook} {binding.point} {binding.method} {binding.half}"
