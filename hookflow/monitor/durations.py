"""The durations of firings and iterations: totals, percentiles, trends, of the attempt and of its last minute."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, NamedTuple

from hookflow.events.percentiles import bin_of, percentile, unpacked
from hookflow.events.records import PHASES
from hookflow.numbers import rough

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

    def add(self, count: int, total: int, longest: int, bins: Iterable[tuple[int, int]]) -> None:
        self.count += count
        self.total += total
        if longest > self.longest:
            self.longest = longest
        for index, fired in bins:
            self.bins[index] = self.bins.get(index, 0) + fired

    def percentile(self, share: float) -> float:
        """Return the duration that `share` of the firings stay below, in ns; never above the longest."""
        return min(percentile(self.bins, share), self.longest)


class Slower(NamedTuple):
    """Since iteration `it` a firing takes `ns`, and took `usual` ns before."""

    it: int
    ns: float
    usual: float

    def __str__(self) -> str:
        return f"×{rough(self.ns / self.usual)} since iteration {self.it}"


class Timing:
    """The firings of the whole attempt; `last` is the ns of the newest one, `slower` is set while it takes longer."""

    def __init__(self) -> None:
        self.count = self.total = self.last = 0
        self.slower: Slower | None = None
        self._seconds: deque[tuple[int, int, Firings]] = deque()  # the last WINDOW: clock, first iteration, firings
        self._older = Firings()
        self._means: deque[tuple[int, float]] = deque()  # the last RECENT seconds: first iteration, mean ns
        self._past: dict[int, int] = {}  # the seconds before them, by the bin of their mean
        self._usual = 0.0  # their median

    def add(self, t: float, it: int, entry: list[Any]) -> None:
        """Add one frame's [firings, total ns, longest ns, last ns, bins].

        Without a firing, the total is the time that its trigger took.
        """
        count, total, longest, self.last, bins = entry
        if not self._seconds or self._seconds[-1][0] != int(t):
            if self._seconds:
                self._judge()
            self._seconds.append((int(t), it, Firings()))
            while not t - WINDOW < self._seconds[0][0] <= t:
                _, _, each = self._seconds.popleft()
                self._older.add(each.count, each.total, each.longest, each.bins.items())
        self.count += count
        self.total += total
        self._seconds[-1][2].add(count, total, longest, unpacked(bins))

    def _judge(self) -> None:
        """Compare the last seconds with those before them, by medians, in which spikes weigh nothing."""
        _, it, each = self._seconds[-1]
        if not each.count:
            return
        self._means.append((it, each.total / each.count))
        if len(self._means) > RECENT:
            _, mean = self._means.popleft()
            self._past[bin_of(round(mean))] = self._past.get(bin_of(round(mean)), 0) + 1
            if not self.slower and sum(self._past.values()) % RECENT == 0:
                self._usual = percentile(self._past, 0.5)
        limit = SLOWER * self._usual
        if self._usual and (self.slower or self._means[-1][1] > limit):
            ns = median(mean for _, mean in self._means)
            since = self.slower.it if self.slower else next(it for it, mean in self._means if mean > limit)
            self.slower = Slower(since, ns, self._usual) if ns > limit else None

    def firings(self, since: float = -math.inf) -> Firings:
        """Return the firings of the whole attempt, or since a moment of the last WINDOW seconds."""
        result = replace(self._older, bins=dict(self._older.bins)) if since == -math.inf else Firings()
        for second, _, each in self._seconds:
            if second > since:
                result.add(each.count, each.total, each.longest, each.bins.items())
        return result

    def spent(self, since: float) -> int:
        """Return the nanoseconds since a moment of the last WINDOW seconds."""
        return sum(each.total for second, _, each in self._seconds if second > since)

    def fired(self, since: float) -> bool:
        return bool(self._seconds) and self._seconds[-1][0] > since

    def cells(self, now: float, cells: int) -> list[tuple[int, int]]:
        """Return (firings, ns) for each of `cells` equal stretches of the last WINDOW seconds, oldest first."""
        size = WINDOW // cells  # laid out on the clock, so that what is drawn moves on instead of flickering
        newest = int(now) // size
        result = [(0, 0)] * cells
        for second, _, each in self._seconds:
            place = cells - 1 - (newest - second // size)
            if 0 <= place < cells:
                result[place] = (result[place][0] + each.count, result[place][1] + each.total)
        return result


class Booked:
    """The time of training iterations, by phase."""

    def __init__(self) -> None:
        self.sums: Counter[str] = Counter()
        """ns by phase, `iters`, and `ns` of whole iterations."""

    @property
    def booked(self) -> dict[str, int]:
        """The ns by phase; "other" is the rest of the iterations."""
        phases = {phase: self.sums[phase] for phase in PHASES if phase != "other"}
        return phases | {"other": max(self.sums["ns"] - sum(phases.values()), 0)}  # an iteration may be booked in part


class Minute(Booked):
    """The WINDOW seconds before the newest frame; its sums have `samples` and `cost` (ns of writing frames), too."""

    def __init__(self) -> None:
        super().__init__()
        self._bins: Counter[int] = Counter()
        self._seconds: deque[tuple[int, Counter[str], Counter[int]]] = deque()

    def add(self, t: float, phases: Mapping[str, int], iters: list[Any], samples: int, cost: int) -> None:
        count, total, _, _, bins = iters
        sums = {**phases, "iters": count, "ns": total, "samples": samples, "cost": cost}
        counts = dict(unpacked(bins))
        if not self._seconds or self._seconds[-1][0] != int(t):
            self._seconds.append((int(t), Counter(), Counter()))
        _, its_sums, its_bins = self._seconds[-1]
        for summed, counted in ((self.sums, self._bins), (its_sums, its_bins)):
            summed.update(sums)
            counted.update(counts)
        while not t - WINDOW < self._seconds[0][0] <= t:  # it is later where the clock was set back
            _, its_sums, its_bins = self._seconds.popleft()
            self.sums.subtract(its_sums)
            self._bins.subtract(its_bins)

    @property
    def lately(self) -> float:
        """The ns of an iteration in the last RECENT seconds."""
        recent = [sums for _, sums, _ in self._seconds][-RECENT:]
        return sum(sums["ns"] for sums in recent) / (sum(sums["iters"] for sums in recent) or 1)

    def percentile(self, share: float) -> float:
        """Return the duration in ns that `share` of the iterations stayed below."""
        return percentile(self._bins, share)
