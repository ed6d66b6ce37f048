"""The values over the iterations: scalars in bounded series, metrics of validations and the best of each."""

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from statistics import median
from typing import NamedTuple, Self

from hookflow.metric_mode import Mode, mode_by_name


def in_order(metrics: Iterable[str], monitored: Iterable[str]) -> list[str]:
    """Return metrics in the order in which they are shown: monitored ones, scores, losses."""
    order = {name: place for place, name in enumerate(monitored)}
    return sorted(metrics, key=lambda name: (order.get(name, len(order)), mode_by_name(name) == "min"))


class Bucket(NamedTuple):
    """Neighbouring values, the last of them of iteration `it`: their mean, the least and the greatest."""

    it: int
    mean: float
    low: float
    high: float


class Hole(NamedTuple):
    """Values in a row that are not finite, from the iteration `first` to `last`; `value` is NaN, inf or -inf."""

    first: int
    last: int
    value: float

    def takes(self, value: float) -> bool:
        """Return whether the next value belongs to this hole."""
        return value == self.value or (math.isnan(value) and math.isnan(self.value))


class Series:
    """Buckets of equally many neighbouring finite values; when there are too many, two neighbours become one.

    `last` is the newest value; `low` and `high` are the extremes of those that are finite. `broken` are the holes,
    where values are not finite, oldest first; when there are too many, every second of them is forgotten, but never
    the first and the newest. `its` are the last iterations of the buckets, `highs` their maxima.
    """

    LIMIT = 1024  # even: two and two are merged

    def __init__(self) -> None:
        self.last = math.nan
        self.low, self.high = math.inf, -math.inf
        self.broken: list[Hole] = []
        self.its = array("q")
        self._means, self._lows, self.highs = array("d"), array("d"), array("d")
        self._stride = self._count = 1  # values of a full bucket, and of the last one

    def add(self, it: int, value: float) -> None:
        if not math.isfinite(value):
            self._add_to_hole(it, value)
            return
        self.last = value
        self.low, self.high = min(self.low, value), max(self.high, value)
        if self.its and self._count < self._stride:
            self._count += 1
            self.its[-1] = it
            self._means[-1] += (value - self._means[-1]) / self._count
            self._lows[-1], self.highs[-1] = min(self._lows[-1], value), max(self.highs[-1], value)
            return
        self._count = 1
        self.its.append(it)
        for column in (self._means, self._lows, self.highs):
            column.append(value)
        if len(self.its) > self.LIMIT:
            self._merge()

    def _add_to_hole(self, it: int, value: float) -> None:
        """Take in a value that is not finite."""
        goes_on = bool(self.broken) and not math.isfinite(self.last) and self.broken[-1].takes(value)
        self.last = value
        if goes_on:
            self.broken[-1] = self.broken[-1]._replace(last=it)
            return
        self.broken.append(Hole(it, it, value))
        if len(self.broken) > self.LIMIT:
            self.broken = [self.broken[0], *self.broken[2::2]]  # the limit is even: the newest stays

    def extend(self, its: Sequence[int], values: Sequence[float]) -> None:
        """Add values in their order, as `add` does one by one, but for the rounding of means."""
        if not math.isfinite(sum(values)):
            for it, value in zip(its, values, strict=True):
                self.add(it, value)
            return
        at = 0
        while at < len(values):
            room = self._stride - self._count
            if not (self.its and room):
                self.add(its[at], values[at])
                at += 1
                continue
            part = values[at : at + room]
            at += len(part)
            self._count += len(part)
            self.its[-1], self.last, low, high = its[at - 1], part[-1], min(part), max(part)
            self._means[-1] += (sum(part) - len(part) * self._means[-1]) / self._count
            self._lows[-1], self.highs[-1] = min(self._lows[-1], low), max(self.highs[-1], high)
            self.low, self.high = min(self.low, low), max(self.high, high)

    def _merge(self) -> None:
        self._stride *= 2
        self.its = array("q", [*self.its[1::2], self.its[-1]])
        means = ((left + right) / 2 for left, right in zip(self._means[:-1:2], self._means[1::2], strict=True))
        self._means = array("d", [*means, self._means[-1]])
        self._lows = array("d", [*map(min, self._lows[:-1:2], self._lows[1::2]), self._lows[-1]])
        self.highs = array("d", [*map(max, self.highs[:-1:2], self.highs[1::2]), self.highs[-1]])

    def forget_after(self, it: int) -> None:
        """Drop what lies beyond an iteration: a resumed run walks that stretch again."""
        self.broken = [hole._replace(last=min(hole.last, it)) for hole in self.broken if hole.first <= it]
        kept = bisect_right(self.its, it)
        if kept < len(self.its):
            self._count = self._stride
            for column in (self.its, self._means, self._lows, self.highs):
                del column[kept:]
            self.low, self.high = min(self._lows, default=math.inf), max(self.highs, default=-math.inf)

    def __iter__(self) -> Iterator[tuple[int, float]]:
        """Yield (iteration, mean), oldest first."""
        return zip(self.its, self._means, strict=True)

    def at(self, it: float = math.inf) -> Bucket | None:
        """Return the newest values up to an iteration."""
        place = bisect_right(self.its, it)
        newest = [self._bucket(place - 1, place)] if place else []
        begun = bisect_right(self.broken, it, key=lambda hole: hole.first)
        if begun:
            hole = self.broken[begun - 1]
            newest.append(_bucket_of(hole, hole.last if hole.last <= it else hole.first))
        return max(newest, key=itemgetter(0), default=None)

    def stretches(self, edges: Sequence[float]) -> list[Bucket | None]:
        """Return what lies after each edge, up to and including the next: a hole only where nothing finite is."""
        places = [bisect_right(self.its, edge) for edge in edges]
        result = [self._bucket(at, to) if at < to else None for at, to in pairwise(places)]
        for hole in self.broken:
            first = max(bisect_left(edges, hole.first) - 1, 0)
            end = min(bisect_left(edges, hole.last), len(result))
            for place in range(first, end):
                if result[place] is None and hole.last > edges[0]:
                    result[place] = _bucket_of(hole, min(hole.last, edges[place + 1]))
        return result

    def _bucket(self, at: int, to: int) -> Bucket:
        mean = sum(self._means[at:to]) / (to - at)
        return Bucket(self.its[to - 1], mean, min(self._lows[at:to]), max(self.highs[at:to]))

    def smoothed(self, factor: float) -> Self:
        """Return the series with exponential moving averages of its means, without a bias to where they begin."""
        result, total, weight = copy(self), 0.0, 0.0
        result._means = array("d")
        for mean in self._means:
            total, weight = factor * total + (1 - factor) * mean, factor * weight + (1 - factor)
            result._means.append(total / weight)
        return result

    def best(self, mode: Mode) -> int:
        """Return the iteration of the least or the greatest value, or the last one of its bucket."""
        return self.its[(self._lows if mode == "min" else self.highs).index(self.low if mode == "min" else self.high)]

    @property
    def median(self) -> float:
        """The median of the means; NaN where there are none."""
        return median(self._means) if self._means else math.nan


def _bucket_of(hole: Hole, it: float) -> Bucket:
    """Return a hole up to an iteration in the place of a bucket."""
    return Bucket(int(it), hole.value, hole.value, hole.value)


class Progress(NamedTuple):
    """How far a run was, in epochs or seconds, when so many iterations were done; without values in iterations."""

    its: Sequence[float] = ()
    values: Sequence[float] = ()

    def at(self, it: float) -> float:
        return _interpolated(it, self.its, self.values)

    def it(self, value: float) -> float:
        return _interpolated(value, self.values, self.its)


def _interpolated(x: float, xs: Sequence[float], ys: Sequence[float]) -> float:
    at = bisect_right(xs, x)
    if not xs or not 0 < at < len(xs):
        return ys[min(at, len(ys) - 1)] if xs else x
    return ys[at - 1] + (ys[at] - ys[at - 1]) * (x - xs[at - 1]) / ((xs[at] - xs[at - 1]) or 1.0)


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
        self.series: dict[str, Series] = {}
        self._records: dict[str, list[Best]] = {}  # by name the values that were the best when they came

    @property
    def best(self) -> Mapping[str, Best]:
        """The best value of each metric that has one."""
        return {name: records[-1] for name, records in self._records.items()}

    def add(self, name: str, new: Best, mode: Mode | None) -> bool:
        """Add a value, and say whether it is the best; no value of a metric without a mode is."""
        self.by_name.setdefault(name, []).append((new.it, new.value))
        self.series.setdefault(name, Series()).add(new.it, new.value)
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
            self.series[name].forget_after(it)
        kept = {name: [best for best in records if best.it <= it] for name, records in self._records.items()}
        self._records = {name: records for name, records in kept.items() if records}

    def newest_by(self, it: int) -> tuple[Mapping[str, float], int]:
        """Return the metrics of the last validation up to an iteration, and that validation's iteration: 0 if none."""
        known = [(name, at, value) for name, values in self.by_name.items() for at, value in values if at <= it]
        newest = max((at for _, at, _ in known), default=0)
        return {name: value for name, at, value in known if at == newest}, newest
