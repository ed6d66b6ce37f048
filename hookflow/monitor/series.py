"""The values over the iterations: scalars in bounded series, metrics of validations and the best of each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from hookflow.metric_mode import Mode, mode_by_name


def in_order(metrics: Iterable[str], monitored: Iterable[str]) -> list[str]:
    """Return metrics in the order in which they are shown: monitored ones, scores, losses."""
    order = {name: place for place, name in enumerate(monitored)}
    return sorted(metrics, key=lambda name: (order.get(name, len(order)), mode_by_name(name) == "min"))


class Series:
    """Means of equally many neighbouring finite values; when there are too many, two neighbours become one."""

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
        """Add a value, and say whether it is the best; no value of a metric without a mode is."""
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
