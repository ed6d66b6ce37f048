"""The axes of a chart: which iterations and which values it spans, and what stands beside its ticks."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from hookflow.monitor.formatting import number


@dataclass(frozen=True, slots=True)
class Iterations:
    """The x-axis, from the first iteration that it shows to the last."""

    first: int
    last: int

    @classmethod
    def of(cls, told: Sequence[int], it: int, total: int) -> Iterations:
        """Return the axis for values at the iterations `told`, of a run that is at iteration `it` of `total`.

        It ends at the run's iteration, rounded up by a tenth at most, so that it holds still for a while. It begins at
        0, unless that would leave a fifth of it empty.
        """
        step = _round_up(it / 25)
        last = max(min(math.ceil(it / step) * step, max(it, total)), 1)
        begin = min(told, default=0) // step * step
        return cls(begin if begin > last / 5 and len(set(told)) > 1 else 0, last)

    def place(self, it: int) -> float:
        """Return 0 to 1 from left to right."""
        return (it - self.first) / max(self.last - self.first, 1)


def _round_up(value: float) -> int:
    """Return the next of 1, 2, 5, 10, 20, 50, …"""
    unit = 10 ** max(math.floor(math.log10(value)), 0) if value > 0 else 1
    return next(unit * digit for digit in (1, 2, 5, 10) if unit * digit >= value)


@dataclass(frozen=True, slots=True)
class Scale:
    """The y-axis: where values lie on a chart; `log` only when all are above zero."""

    low: float
    high: float
    log: bool

    @classmethod
    def of(cls, values: Sequence[float], log: bool) -> Scale:
        low, high = min(values), max(values)
        log = log and low > 0
        if high - low < 1e-12 * max(abs(high), 1e-12):
            low, high = (low * 0.9, high * 1.1) if low > 0 else (low - 1.0, high + 1.0)
        return cls(low, high, log)

    def place(self, value: float) -> float:
        """Return 0 to 1 from bottom to top."""
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def at(self, place: float) -> float:
        """Return the value at a place."""
        if self.log:
            return float(self.low * (self.high / self.low) ** place)
        return self.low + place * (self.high - self.low)


def ticks(values: Sequence[float], width: int) -> list[str]:
    """Return the values of one axis, all with the same number of decimals: three digits of what tells them apart.

    There are fewer where `width` characters do not hold them, and powers of ten where none would tell them apart.
    """
    ordered = sorted(set(values))
    if len(ordered) < 2:
        return [number(value) for value in values]
    step = min(after - before for before, after in pairwise(ordered))
    for decimals in range(max(2 - math.floor(math.log10(step)), 0), -1, -1):
        written = [f"{value:.{decimals}f}" for value in values]
        if max(map(len, written)) <= width and len(set(written)) == len(ordered):
            return written
    return [re.sub(r"e([+-])0*", _power, f"{value:.1e}") if value else "0" for value in values]


def _power(exponent: re.Match[str]) -> str:
    """Return the head of a power of ten without what nobody needs: e-7 for e-07, e7 for e+07."""
    return "e" + exponent[1].replace("+", "")
