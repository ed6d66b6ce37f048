"""How long things took: one binding over the whole attempt and second by second, and the last minute of iterations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from hookflow.events.histogram import percentile

WINDOW = 60
"""Seconds that heat, shares, trends and rates look back."""


class Timing:
    """Firings of one binding, in nanoseconds: of the whole attempt, and of the last minute (`spent`, `cells`)."""

    def __init__(self) -> None:
        self.count = 0
        self.total = 0
        self.longest = 0
        self.last = 0
        self._bins: Counter[int] = Counter()
        self._seconds: dict[int, tuple[int, int]] = {}  # second of the clock: firings, ns

    def add(self, t: float, entry: list[Any]) -> None:
        """Add one frame's [firings, total ns, longest ns, last ns, {bin: count}].

        Without a firing the total is what its trigger took to say no.
        """
        count, total, longest, last, bins = entry
        self.count += count
        self.total += total
        self.longest = max(self.longest, longest)
        self.last = last
        self._bins.update({int(index): fired for index, fired in bins.items()})
        fired, spent = self._seconds.get(int(t), (0, 0))
        self._seconds[int(t)] = (fired + count, spent + total)
        if len(self._seconds) > 2 * WINDOW:
            self._seconds = {second: sums for second, sums in self._seconds.items() if second > t - WINDOW}

    @property
    def bins(self) -> Mapping[int, int]:
        return self._bins

    def percentile(self, share: float) -> float:
        """Return the duration that `share` of the firings stay below, in ns; never above the longest that was seen."""
        return min(percentile(self._bins, share), self.longest)

    def spent(self, now: float) -> int:
        """Return the nanoseconds of the last WINDOW seconds."""
        return sum(ns for second, (_, ns) in self._seconds.items() if now - WINDOW < second <= now)

    def cells(self, now: float, cells: int) -> list[tuple[int, int]]:
        """Return (firings, ns) for each of `cells` equal stretches of the last WINDOW seconds, oldest first.

        The stretches are laid out on the clock, so that what is drawn moves on instead of flickering.
        """
        size = WINDOW // cells
        newest = int(now) // size
        found = [(0, 0)] * cells
        for second, (fired, ns) in self._seconds.items():
            place = cells - 1 - (newest - second // size)
            if 0 <= place < cells:
                found[place] = (found[place][0] + fired, found[place][1] + ns)
        return found


class Minute:
    """The last WINDOW seconds of training: what the time of its iterations was booked to, second by second."""

    def __init__(self) -> None:
        self._seconds: dict[int, Counter[str]] = {}
        self._bins: dict[int, Counter[int]] = {}
        self._summed: tuple[float, Counter[str]] | None = None  # a screen asks for the same moment many times

    def add(self, t: float, phases: Mapping[str, int], iters: list[Any], samples: int, cost: int) -> None:
        """Add a frame: ns by phase, its `iters` entry, training examples, and the ns that writing a frame took."""
        count, total, _, _, bins = iters
        self._summed = None
        second = int(t)
        sums = self._seconds.setdefault(second, Counter())
        sums.update(phases)
        sums.update({"iters": count, "ns": total, "samples": samples, "cost": cost})
        self._bins.setdefault(second, Counter()).update({int(index): fired for index, fired in bins.items()})
        if len(self._seconds) > 2 * WINDOW:
            self._seconds = {at: sums for at, sums in self._seconds.items() if at > t - WINDOW}
            self._bins = {at: counts for at, counts in self._bins.items() if at > t - WINDOW}

    def sums(self, now: float) -> Counter[str]:
        """Return ns by phase, and `iters`, `ns` (of whole iterations), `samples` and `cost`."""
        if self._summed is None or self._summed[0] != now:
            total: Counter[str] = Counter()
            for second, sums in self._seconds.items():
                if now - WINDOW < second <= now:
                    total.update(sums)
            self._summed = now, total
        return self._summed[1]

    def percentile(self, now: float, share: float) -> float:
        """Return the duration in ns that `share` of the iterations stayed below."""
        total: Counter[int] = Counter()
        for second, counts in self._bins.items():
            if now - WINDOW < second <= now:
                total.update(counts)
        return percentile(total, share)
