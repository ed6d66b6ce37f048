"""One scalar over the iterations of a run, in bounded memory however long the run."""

from __future__ import annotations

import math
from collections.abc import Iterator


class Series:
    """Means of equally many neighbouring values; when there are too many, two neighbours become one.

    Values that are not finite are counted in `lost` and not drawn.
    """

    LIMIT = 2048

    def __init__(self) -> None:
        self.last = math.nan
        self.lost = 0
        self._stride = 1
        self._buckets: list[tuple[int, int, float]] = []  # the last iteration, how many values, their sum

    def add(self, it: int, value: float) -> None:
        self.last = value
        if not math.isfinite(value):
            self.lost += 1
        elif self._buckets and self._buckets[-1][1] < self._stride:
            _, count, total = self._buckets[-1]
            self._buckets[-1] = (it, count + 1, total + value)
        else:
            self._buckets.append((it, 1, value))
            if len(self._buckets) > self.LIMIT:
                self._halve()

    def forget_after(self, it: int) -> None:
        """Drop what lies beyond an iteration: a resumed run walks that stretch again."""
        while self._buckets and self._buckets[-1][0] > it:
            self._buckets.pop()

    def __iter__(self) -> Iterator[tuple[int, float]]:
        """Yield (iteration, mean), oldest first."""
        return ((it, total / count) for it, count, total in self._buckets)

    def __len__(self) -> int:
        return len(self._buckets)

    def _halve(self) -> None:
        self._stride *= 2
        ends = self._buckets[1::2]
        pairs = zip(self._buckets[::2], ends, strict=False)
        merged = [(right[0], left[1] + right[1], left[2] + right[2]) for left, right in pairs]
        self._buckets = merged + self._buckets[2 * len(ends) :]
