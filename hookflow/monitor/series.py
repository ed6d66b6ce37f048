"""Bounded series of numbers: bucket means, histograms of durations, metrics of validations."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hookflow.events.percentiles import percentile
from hookflow.events.records import PHASES
from hookflow.metric_mode import Mode, mode_by_name


def in_order(metrics: Iterable[str], monitored: Iterable[str]) -> list[str]:
    """Return metrics in the order in which they are shown: monitored ones, scores, losses."""
    order = {name: place for place, name in enumerate(monitored)}
    return sorted(metrics, key=lambda name: (order.get(name, len(order)), mode_by_name(name) == "min"))


class Series:
    """Means of equally many neighbouring values; when there are too many, two neighbours become one.

    Values that are not finite are not drawn.
    """

    LIMIT = 2048

    def __init__(self) -> None:
        self.last = math.nan
        self._stride = 1
        self._buckets: list[tuple[int, int, float]] = []  # the last iteration, how many values, their sum

    def add(self, it: int, value: float) -> None:
        self.last = value
        if not math.isfinite(value):
            return
        if self._buckets and self._buckets[-1][1] < self._stride:
            _, count, total = self._buckets[-1]
            self._buckets[-1] = (it, count + 1, total + value)
        else:
            self._buckets.append((it, 1, value))
        if len(self._buckets) > self.LIMIT:
            self._stride *= 2
            bounds = self._buckets[1::2]
            pairs = zip(self._buckets[::2], bounds, strict=False)
            merged = [(right[0], left[1] + right[1], left[2] + right[2]) for left, right in pairs]
            self._buckets = merged + self._buckets[2 * len(bounds) :]

    def forget_after(self, it: int) -> None:
        """Drop what lies beyond an iteration: a resumed run walks that stretch again."""
        while self._buckets and self._buckets[-1][0] > it:
            self._buckets.pop()

    def __iter__(self) -> Iterator[tuple[int, float]]:
        """Yield (iteration, mean), oldest first."""
        return ((it, total / count) for it, count, total in self._buckets)


@dataclass(frozen=True, slots=True)
class Best:
    """The best value of a metric so far; `ep` is the epoch it is of, counted from 1."""

    value: float
    it: int
    ep: int


class MetricHistory:
    """The values of each metric with their iterations, oldest first. Metrics of a test are named "test <name>"."""

    def __init__(self) -> None:
        self.by_name: dict[str, list[tuple[int, float]]] = {}
        self._records: dict[str, list[Best]] = {}  # by name the values that were the best when they came

    @property
    def best(self) -> Mapping[str, Best]:
        """The best value of each metric that has one."""
        return {name: records[-1] for name, records in self._records.items()}

    def add(self, name: str, new: Best, mode: Mode | None) -> bool:
        """Add a value, and say whether it is the best.

        A value that is not finite never is, nor is any of a metric without a mode.
        """
        self.by_name.setdefault(name, []).append((new.it, new.value))
        if mode is None or not math.isfinite(new.value):
            return False
        records = self._records.setdefault(name, [])
        if records and not (new.value < records[-1].value if mode == "min" else new.value > records[-1].value):
            return False
        records.append(new)
        return True

    def forget_after(self, it: int) -> None:
        """Forget what lies ahead of this iteration: a resumed run does it again."""
        for name, values in self.by_name.items():
            self.by_name[name] = [(at, value) for at, value in values if at <= it]
        kept = {name: [best for best in records if best.it <= it] for name, records in self._records.items()}
        self._records = {name: records for name, records in kept.items() if records}

    def newest_by(self, it: int) -> tuple[Mapping[str, float], int]:
        """Return the metrics of the last validation up to an iteration, and that validation's iteration: 0 if none."""
        known = [(name, at, value) for name, values in self.by_name.items() for at, value in values if at <= it]
        newest = max((at for _, at, _ in known), default=0)
        return {name: value for name, at, value in known if at == newest}, newest


WINDOW = 60
"""Seconds that heat, shares, trends and rates look back."""


class Timing:
    """Firings of one binding, in nanoseconds: of the whole attempt, and of the last minute (`spent`, `cells`)."""

    def __init__(self) -> None:
        self.count = self.total = self.longest = self.last = 0
        self.bins: Counter[int] = Counter()
        self._seconds: dict[int, tuple[int, int]] = {}  # second of the clock: firings, ns

    def add(self, t: float, entry: list[Any]) -> None:
        """Add one frame's [firings, total ns, longest ns, last ns, {bin: count}].

        Without a firing, the total is the time that its trigger took.
        """
        count, total, longest, last, bins = entry
        self.count += count
        self.total += total
        self.longest = max(self.longest, longest)
        self.last = last
        self.bins.update({int(index): fired for index, fired in bins.items()})
        fired, spent = self._seconds.get(int(t), (0, 0))
        self._seconds[int(t)] = (fired + count, spent + total)
        if len(self._seconds) > 2 * WINDOW:
            self._seconds = {second: sums for second, sums in self._seconds.items() if second > t - WINDOW}

    def percentile(self, share: float) -> float:
        """Return the duration that `share` of the firings stay below, in ns; never above the longest."""
        return min(percentile(self.bins, share), self.longest)

    def spent(self, now: float) -> int:
        """Return the nanoseconds of the last WINDOW seconds."""
        return sum(ns for second, (_, ns) in self._seconds.items() if now - WINDOW < second <= now)

    def cells(self, now: float, cells: int) -> list[tuple[int, int]]:
        """Return (firings, ns) for each of `cells` equal stretches of the last WINDOW seconds, oldest first.

        The stretches are laid out on the clock, so that what is drawn moves on instead of flickering.
        """
        size = WINDOW // cells
        newest = int(now) // size
        result = [(0, 0)] * cells
        for second, (fired, ns) in self._seconds.items():
            place = cells - 1 - (newest - second // size)
            if 0 <= place < cells:
                result[place] = (result[place][0] + fired, result[place][1] + ns)
        return result


class Minute:
    """The WINDOW seconds before the newest frame: what the time of training iterations was booked to."""

    def __init__(self) -> None:
        self.sums: Counter[str] = Counter()
        """ns by phase, and `iters`, `ns` (of whole iterations), `samples` and `cost` (ns of writing frames)."""
        self._bins: Counter[int] = Counter()
        self._seconds: deque[tuple[int, Counter[str], Counter[int]]] = deque()

    def add(self, t: float, phases: Mapping[str, int], iters: list[Any], samples: int, cost: int) -> None:
        """Add a frame by its fields."""
        count, total, _, _, bins = iters
        sums = {**phases, "iters": count, "ns": total, "samples": samples, "cost": cost}
        counts = {int(index): fired for index, fired in bins.items()}
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
    def booked(self) -> dict[str, int]:
        """The ns by phase; "other" is the rest of the iterations."""
        phases = {phase: self.sums[phase] for phase in PHASES if phase != "other"}
        return phases | {"other": max(self.sums["ns"] - sum(phases.values()), 0)}  # an iteration may be booked in part

    def percentile(self, share: float) -> float:
        """Return the duration in ns that `share` of the iterations stayed below."""
        return percentile(self._bins, share)
