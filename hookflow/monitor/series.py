"""The values over the iterations.

Scalars are in bounded series, and metrics of validations have the best of each.
"""

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

from hookflow.metric_mode import Mode, read_mode_from_name


def in_order(metrics: Iterable[str], monitored: Iterable[str]) -> list[str]:
    """Return metrics in the order in which they are shown: monitored ones, scores, losses."""
    places = {name: place for place, name in enumerate(monitored)}

    def sort_key(name: str) -> tuple[int, bool]:
        is_loss = read_mode_from_name(name) == "min"
        return places.get(name, len(places)), is_loss

    return sorted(metrics, key=sort_key)


class ValueBucket(NamedTuple):
    """Neighbouring values, the last of them of iteration `it`.

    It has their mean, the least and the greatest.
    """

    it: int
    mean: float
    low: float
    high: float


class NonFiniteRange(NamedTuple):
    """Values in a row that are not finite, from the iteration `first` to `last`.

    `value` is NaN, inf or -inf.
    """

    first: int
    last: int
    value: float

    def takes(self, value: float) -> bool:
        """Return whether the next value belongs to this hole."""
        if math.isnan(self.value):
            return math.isnan(value)
        return value == self.value

    def make_bucket_until(self, it: float) -> ValueBucket:
        """Return the hole up to an iteration in the place of a bucket."""
        return ValueBucket(int(it), self.value, self.value, self.value)


class Series:
    """Buckets of equally many neighbouring finite values.

    When there are too many, two neighbours become one.

    `last` is the newest value; `low` and `high` are the extremes of those that are finite. `broken`
    are the holes, where values are not finite, oldest first; when there are too many, every second
    of them is forgotten, but never the first and the newest. `its` are the last iterations of the
    buckets, `highs` their maxima.
    """

    LIMIT = 1024  # even: two and two are merged

    def __init__(self) -> None:
        self.last = math.nan
        self.low = math.inf
        self.high = -math.inf
        self.broken: list[NonFiniteRange] = []
        self.its = array("q")
        self._means = array("d")
        self._lows = array("d")
        self.highs = array("d")
        self._stride = 1  # values of a full bucket
        self._count = 1  # values of the last one

    def add(self, it: int, value: float) -> None:
        if not math.isfinite(value):
            self._add_to_hole(it, value)
            return
        self.last = value
        self.low = min(self.low, value)
        self.high = max(self.high, value)
        if self.its and self._count < self._stride:
            self._fill_bucket(it, [value])
            return
        self._count = 1
        self.its.append(it)
        for column in (self._means, self._lows, self.highs):
            column.append(value)
        if len(self.its) > self.LIMIT:
            self._merge()

    def _add_to_hole(self, it: int, value: float) -> None:
        """Take in a value that is not finite."""
        is_in_hole = bool(self.broken) and not math.isfinite(self.last)
        self.last = value
        if is_in_hole and self.broken[-1].takes(value):
            self.broken[-1] = self.broken[-1]._replace(last=it)
            return
        self.broken.append(NonFiniteRange(it, it, value))
        if len(self.broken) > self.LIMIT:
            # The number of ranges is odd here, so every second one includes the newest.
            self.broken = [self.broken[0], *self.broken[2::2]]

    def extend(self, its: Sequence[int], values: Sequence[float]) -> None:
        """Add values in their order, as `add` does one by one, but for the rounding of means."""
        if not math.isfinite(sum(values)):
            for it, value in zip(its, values, strict=True):
                self.add(it, value)
            return
        at = 0
        while at < len(values):
            room = self._stride - self._count
            if room == 0 or not self.its:
                self.add(its[at], values[at])
                at += 1
                continue
            part = values[at : at + room]
            at += len(part)
            self.last = part[-1]
            self.low = min(self.low, *part)
            self.high = max(self.high, *part)
            self._fill_bucket(its[at - 1], part)

    def _fill_bucket(self, it: int, values: Sequence[float]) -> None:
        """Add finite values to the last bucket, which has room for them.

        The last of them is of iteration `it`.
        """
        self._count += len(values)
        mean = self._means[-1]
        self.its[-1] = it
        self._means[-1] = mean + (sum(values) - len(values) * mean) / self._count
        self._lows[-1] = min(self._lows[-1], *values)
        self.highs[-1] = max(self.highs[-1], *values)

    def _merge(self) -> None:
        """Make one bucket of each two neighbours; the last one has none, and is left alone."""
        self._stride *= 2
        self.its = array("q", [*self.its[1::2], self.its[-1]])
        means = []
        lows = []
        highs = []
        for left in range(0, len(self._means) - 1, 2):
            right = left + 1
            means.append((self._means[left] + self._means[right]) / 2)
            lows.append(min(self._lows[left], self._lows[right]))
            highs.append(max(self.highs[left], self.highs[right]))
        self._means = array("d", [*means, self._means[-1]])
        self._lows = array("d", [*lows, self._lows[-1]])
        self.highs = array("d", [*highs, self.highs[-1]])

    def forget_after(self, it: int) -> None:
        """Drop what lies beyond an iteration: a resumed run walks that stretch again."""
        if self.newest <= it:
            return
        holes = [hole for hole in self.broken if hole.first <= it]
        self.broken = [hole._replace(last=min(hole.last, it)) for hole in holes]
        kept = bisect_right(self.its, it)
        self._cut(kept)
        self.last = math.nan
        if self.broken and self.broken[-1].last == self.newest:
            self.last = self.broken[-1].value
        elif self.its:
            self.last = self._means[-1]

    @property
    def newest(self) -> int:
        """The newest iteration that has a value; -1 where none has."""
        newest = -1
        if self.its:
            newest = self.its[-1]
        if self.broken:
            newest = max(newest, self.broken[-1].last)
        return newest

    def _cut(self, kept: int) -> None:
        """Keep the first buckets alone."""
        if kept == len(self.its):
            return
        self._count = self._stride
        for column in (self.its, self._means, self._lows, self.highs):
            del column[kept:]
        self.low = min(self._lows, default=math.inf)
        self.high = max(self.highs, default=-math.inf)

    def __iter__(self) -> Iterator[tuple[int, float]]:
        """Yield (iteration, mean), oldest first."""
        return zip(self.its, self._means, strict=True)

    def at(self, it: float = math.inf) -> ValueBucket | None:
        """Return the newest values up to an iteration."""
        bucket = None
        hole_bucket = None
        place = bisect_right(self.its, it)
        if place > 0:
            bucket = self._merge_buckets(place - 1, place)
        num_holes = bisect_right(self.broken, it, key=lambda hole: hole.first)
        if num_holes > 0:
            hole = self.broken[num_holes - 1]
            if hole.last <= it:
                last = hole.last
            else:
                last = hole.first
            hole_bucket = hole.make_bucket_until(last)
        if bucket is None or hole_bucket is None:
            return bucket or hole_bucket
        if hole_bucket.it > bucket.it:
            return hole_bucket
        return bucket

    def split_at_edges(self, edges: Sequence[float]) -> list[ValueBucket | None]:
        """Return what is after each edge, up to and including the next.

        It is a hole only where nothing finite is.
        """
        places = [bisect_right(self.its, edge) for edge in edges]
        result: list[ValueBucket | None] = []
        for first, end in pairwise(places):
            result.append(self._merge_buckets(first, end) if first < end else None)
        for hole in self.broken:
            if hole.last <= edges[0]:
                continue
            first = max(bisect_left(edges, hole.first) - 1, 0)
            end = min(bisect_left(edges, hole.last), len(result))
            for place in range(first, end):
                if result[place] is None:
                    result[place] = hole.make_bucket_until(min(hole.last, edges[place + 1]))
        return result

    def _merge_buckets(self, first: int, end: int) -> ValueBucket:
        """Return the buckets from one place to before another as one."""
        mean = sum(self._means[first:end]) / (end - first)
        low = min(self._lows[first:end])
        high = max(self.highs[first:end])
        return ValueBucket(self.its[end - 1], mean, low, high)

    def smooth(self, factor: float) -> Self:
        """Return the series with exponential moving averages of its means.

        They have no bias to where they begin.
        """
        result = copy(self)
        result._means = array("d")
        total = 0.0
        weight = 0.0
        for mean in self._means:
            total = factor * total + (1 - factor) * mean
            weight = factor * weight + (1 - factor)
            result._means.append(total / weight)
        return result

    def best(self, mode: Mode) -> int:
        """Return the iteration of the least or the greatest value, or its bucket's last one."""
        if mode == "min":
            return self.its[self._lows.index(self.low)]
        return self.its[self.highs.index(self.high)]

    @property
    def median(self) -> float:
        """The median of the means; NaN where there are none."""
        if self._means:
            return median(self._means)
        return math.nan


class Progress(NamedTuple):
    """How far a run was, in epochs or seconds, when so many iterations were done.

    Without values it is in iterations.
    """

    its: Sequence[float] = ()
    values: Sequence[float] = ()

    def at(self, it: float) -> float:
        """Return the epochs or seconds at an iteration."""
        return _interpolated(it, self.its, self.values)

    def it(self, value: float) -> float:
        """Return the iteration at so many epochs or seconds."""
        return _interpolated(value, self.values, self.its)


def _interpolated(x: float, xs: Sequence[float], ys: Sequence[float]) -> float:
    if not xs:
        return x
    right = bisect_right(xs, x)
    left = right - 1
    if right == 0:
        return ys[0]
    if right == len(xs):
        return ys[-1]
    extent = (xs[right] - xs[left]) or 1.0
    share = (x - xs[left]) / extent
    return ys[left] + (ys[right] - ys[left]) * share


@dataclass(frozen=True, slots=True)
class BestValue:
    """The best value of a metric so far; `ep` is the epoch it is of, counted from 1."""

    value: float
    it: int
    ep: int


class MetricHistory:
    """The values of each metric with their iterations, oldest first.

    Metrics of a test are named "test <name>".
    """

    def __init__(self) -> None:
        self.by_name: dict[str, list[tuple[int, float]]] = {}
        self.series: dict[str, Series] = {}
        # By name of the metric: the values that were the best when they came.
        self._records: dict[str, list[BestValue]] = {}

    @property
    def best(self) -> Mapping[str, BestValue]:
        """The best value of each metric that has one."""
        return {name: records[-1] for name, records in self._records.items()}

    def add(self, name: str, new: BestValue, mode: Mode | None) -> bool:
        """Add a value, and say whether it is the best; no value of a metric without a mode is."""
        if name not in self.by_name:
            self.by_name[name] = []
            self.series[name] = Series()
        self.by_name[name].append((new.it, new.value))
        self.series[name].add(new.it, new.value)
        if mode is None or not math.isfinite(new.value):
            return False
        records = self._records.setdefault(name, [])
        if records:
            best = records[-1].value
            if mode == "min":
                is_better = new.value < best
            else:
                is_better = new.value > best
            if not is_better:
                return False
        records.append(new)
        return True

    def forget_after(self, it: int) -> None:
        """Forget what lies ahead of this iteration: a resumed run does it again."""
        for name, values in self.by_name.items():
            self.by_name[name] = [(at, value) for at, value in values if at <= it]
            self.series[name].forget_after(it)
        for name, records in list(self._records.items()):
            kept = [best for best in records if best.it <= it]
            if kept:
                self._records[name] = kept
            else:
                del self._records[name]

    def find_newest_by(self, it: int) -> tuple[Mapping[str, float], int]:
        """Return the metrics of the last validation up to an iteration, and its iteration.

        That is 0 if there is none.
        """
        last: dict[str, tuple[int, float]] = {}
        for name, values in self.by_name.items():
            count = bisect_right(values, it, key=itemgetter(0))
            if count:
                last[name] = values[count - 1]
        newest = max((validation for validation, _ in last.values()), default=0)
        metrics = {}
        for name, (validation, value) in last.items():
            if validation == newest:
                metrics[name] = value
        return metrics, newest


def base_name(scalar: str) -> str:
    """Return a scalar's name as validation would name it: `train/loss` is the loss."""
    return scalar.removeprefix("train/").removeprefix("train_")


def list_chart_names(scalars: Iterable[str], metrics: Iterable[str]) -> list[str]:
    """Return what can be drawn: the loss, then validation's metrics, then the rest.

    All of it is over the iterations.
    """
    validated = set(metrics)
    names = {base_name(name) for name in scalars} | validated

    def sort_key(name: str) -> tuple[bool, bool, bool, str]:
        is_minimized = read_mode_from_name(name) == "min"
        return name != "loss", name not in validated, is_minimized, name

    return sorted(names, key=sort_key)
