"""Triggers as exact numbers: `every`, `from` and `until` over the counters of a run, for the runner and the forecast.

A run counts iterations, epochs, firings of a point, and seconds. The count at a visit of a point is what is done then:
where the point is ahead (`Point.ahead`: at a `before_X`, and inside an iteration) the first visit is at 0; elsewhere
the count includes what has just been done.

- `every` fires where the count has entered another multiple of the amount; where the point is ahead, 0 is one.
- `from` admits each count that has reached the amount.
- `until` admits each count up to the amount. Where the point is ahead the amount itself is too late: so many are done,
  and this would be one more.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import inf, nextafter
from typing import Literal, NamedTuple

from hookflow.graph.plan import Trigger
from hookflow.graph.points import Point
from hookflow.pipeline.values import Amount, parse_amount

Counter = Literal["it", "ep", "firing", "s"]
"""The counters of a run: iterations, epochs, firings of a point, seconds. All but the seconds are integers."""


class Totals(NamedTuple):
    """How many iterations and epochs a run has, and iterations an epoch; None where it is not known yet."""

    iters: int | None = None
    epochs: int | None = None
    iters_per_epoch: int | None = None


class Bound(NamedTuple):
    """A place in the run: where a counter shows `at`."""

    counter: Counter
    at: float


@dataclass(frozen=True, slots=True)
class Measure:
    """An amount in one counter: exactly `numerator` / `denominator` of what that counts."""

    counter: Counter
    numerator: int
    denominator: int

    def multiple(self, count: float) -> int:
        """Return which multiple of the amount a count has entered."""
        whole, part = count.as_integer_ratio()
        return whole * self.denominator // (part * self.numerator)

    def reached(self, multiple: int = 1) -> float:
        """Return the least count that is not below that multiple of the amount."""
        whole, rest = divmod(multiple * self.numerator, self.denominator)
        return whole + (rest > 0) if self.counter != "s" else self._instant(multiple)

    def passed(self) -> float:
        """Return the least count that is above the amount."""
        return self.numerator // self.denominator + 1 if self.counter != "s" else self._instant(1, above=True)

    def _instant(self, multiple: int, *, above: bool = False) -> float:
        """Return the least float that is not below that multiple of the amount, or that is above it."""
        number = Fraction(multiple * self.numerator, self.denominator)
        instant = float(number)
        return nextafter(instant, inf) if instant < number or (above and instant == number) else instant


@dataclass(frozen=True, slots=True)
class Schedule:
    """A trigger at a point of a run, but for its `when`.

    The binding may fire at the counts from `opens` on, up to below `closes`. With `every`, it fires at the first visit
    in each multiple of it; `entered` is the multiple that the run is in before it starts.
    """

    every: Measure | None
    opens: Bound | None
    closes: Bound | None
    entered: int

    @classmethod
    def of(cls, trigger: Trigger, point: Point, totals: Totals) -> Schedule:
        """Return the schedule of a trigger, in the counters that the totals allow."""
        every, since, until = (
            measure(parsed(written), point, totals) if written else None
            for written in (trigger.every, trigger.since, trigger.until)
        )
        return cls(
            every,
            Bound(since.counter, since.reached()) if since else None,
            Bound(until.counter, until.reached() if point.ahead else until.passed()) if until else None,
            -1 if point.ahead else 0,
        )


def measure(amount: Amount, point: Point, totals: Totals) -> Measure:
    """Return an amount in the counter that it is measured in at a point.

    Only the points of an epoch count in epochs. Elsewhere an epoch is so many iterations, since a part of one counts,
    too. So is a share of the run, everywhere. Without `iters_per_epoch` both stay in epochs.
    """
    counter: Counter
    counter, number = "it", amount.value
    per_epoch = totals.iters_per_epoch
    match amount.unit or point.unit:
        case "%" if totals.iters is not None:
            number *= Fraction(totals.iters, 100)
        case "%":
            counter, number = "ep", number * Fraction(totals.epochs or 0, 100)
        case "ep" if point.unit != "ep" and per_epoch is not None:
            number *= per_epoch
        case "ep":
            counter = "ep"
        case "s":
            counter = "s"
        case "firing":
            counter = "firing"
    return Measure(counter, *number.as_integer_ratio())


def parsed(written: str) -> Amount:
    """Return an amount of a plan's trigger."""
    return parse_amount(int(written) if written.isdigit() else written)


def window_is_empty(trigger: Trigger, point: Point) -> bool:
    """Say whether `from` and `until` leave nothing between them at a point, however long the run is."""
    if trigger.since is None or trigger.until is None:
        return False
    since, until = parsed(trigger.since), parsed(trigger.until)
    if (since.unit or point.unit) != (until.unit or point.unit):
        return False
    return since.value > until.value or (since.value == until.value and point.ahead)
