"""Mean and sample deviation of a number over runs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from hookflow.numbers import number


@dataclass(frozen=True, slots=True)
class MetricAggregate:
    """A number over several runs: its mean, its sample deviation, and its number of runs.

    The deviation has n - 1 in the denominator. Of one run the deviation is None. Where a value is
    not finite, mean and deviation are NaN.
    """

    mean: float
    deviation: float | None
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "MetricAggregate":
        """Return the aggregate of the values of one run or more."""
        count = len(values)
        if not all(math.isfinite(value) for value in values):
            return cls(math.nan, math.nan if count > 1 else None, count)
        deviation = None
        if count > 1:
            deviation = stdev(values)
        return cls(fmean(values), deviation, count)

    def __str__(self) -> str:
        text = number(self.mean)
        if self.deviation is not None:
            text += f" ± {self.deviation:.2g}"
        return f"{text} (n = {self.count})"
