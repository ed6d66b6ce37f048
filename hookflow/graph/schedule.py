"""Triggers as exact numbers: `every`, `from` and `until` over the counters of a run, for the runner and for `forecast`.

A run counts iterations, epochs, firings of a point, and seconds. The count at a visit of a point is what is done then:
where the point is ahead (`Point.ahead`: at a `before_X`, and inside an iteration) the first visit is at 0; elsewhere
the count includes what has just been done.

- `every` fires where the count has entered another multiple of the amount; where the point is ahead, 0 is one.
- `from` admits each count that has reached the amount.
- `until` admits each count up to the amount. Where the point is ahead the amount itself is too late: so many are done,
  and this would be one more.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import TYPE_CHECKING, Literal, NamedTuple

from hookflow.graph.plan import Binding, Plan, Trigger
from hookflow.graph.points import POINTS, Kind, Point
from hookflow.pipeline.values import Amount, Interval, parse_amount

if TYPE_CHECKING:
    from hookflow.pipeline.schema import Pipeline

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
        return int(count * self.denominator // self.numerator)

    def reached(self, multiple: int = 1) -> float:
        """Return the least count that is not below that multiple of the amount."""
        if self.counter == "s":
            return multiple * self.numerator / self.denominator
        return -(-multiple * self.numerator // self.denominator)

    def passed(self) -> float:
        """Return the least count that is above the amount; at the very second itself, seconds are over."""
        return self.reached() if self.counter == "s" else self.numerator // self.denominator + 1


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
    def of(cls, trigger: Trigger, point: Point, totals: Totals) -> "Schedule":
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


EACH_EPOCH = Interval(1, "ep")


@dataclass(frozen=True, slots=True)
class Length:
    """How long a run is, in epochs or in iterations, as the pipeline says; and when it validates."""

    max_epochs: int | None
    max_iters: int | None
    val_every: Interval = EACH_EPOCH
    validates: bool = True
    tests: bool = False
    iters_per_epoch: int | None = None
    at_start: bool = False

    @classmethod
    def of(cls, pipeline: "Pipeline", iters_per_epoch: int | None = None) -> "Length":
        """Return that of a pipeline; how many batches an epoch has, only its data knows, unless `overfit` says it."""
        run, data = pipeline.run, pipeline.data
        if iters_per_epoch is None and run.overfit is not None:
            iters_per_epoch = ceil(run.overfit / run.accumulate)
        validates = data.val is not None
        at_start = run.val_at_start
        return cls(run.max_epochs, run.max_iters, run.validates, validates, run.test, iters_per_epoch, at_start)

    @property
    def totals(self) -> Totals:
        """The known length of the run."""
        iters = self.max_iters
        if self.max_epochs is not None and self.iters_per_epoch is not None:
            of_epochs = self.max_epochs * self.iters_per_epoch
            iters = of_epochs if iters is None else min(iters, of_epochs)
        return Totals(iters, self.max_epochs, self.iters_per_epoch)

    @property
    def is_open(self) -> bool:
        """Whether either of two lengths may end the run: which one, only its data know."""
        return self.max_epochs is not None and self.max_iters is not None and self.iters_per_epoch is None


@dataclass(frozen=True, slots=True)
class Forecast:
    """The forecast of a binding, if the run reaches its end.

    `first` is the place of its first firing in words ("at iteration 50"; "never"), `times` how often it fires
    (None: that depends on what only the run will know), `text` both, and how often between, in one line.
    """

    first: str
    times: int | None
    text: str


def forecast(plan: Plan, length: Length) -> dict[int, Forecast]:
    """Return a forecast for each binding of the plan, by the binding's id."""
    entered = {(b.hook, b.method): plan.points[b.point] for b in plan.bindings if b.half == "enter"}
    known: dict[tuple[Trigger, str, Point], Forecast] = {}
    result: dict[int, Forecast] = {}
    for binding in plan.bindings:
        if binding.stages and "train" not in binding.stages:
            result[binding.id] = _evaluated(binding, length)
            continue
        here = plan.points[binding.point]
        # the second half fires where the first one has: the trigger is evaluated there
        start = entered[binding.hook, binding.method] if binding.half == "exit" else here
        key = binding.trigger, binding.point, start
        if key not in known:
            known[key] = _forecast(binding.trigger, here, start, length)
        result[binding.id] = known[key]
    return result


def _evaluated(binding: Binding, length: Length) -> Forecast:
    """Return the forecast of a binding inside the network that fires in no training: their batches are unknown."""
    comes = {"val": length.validates, "test": length.tests}
    first = f"in {' and '.join(stage for stage in binding.stages if comes[stage])}"
    if not any(comes[stage] for stage in binding.stages) or window_is_empty(binding.trigger, POINTS[binding.point]):
        return NEVER
    return Forecast(first, None, _conditional(f"{first}, at each module", binding.trigger))


NEVER = Forecast("never", 0, "never")
ENDLESS = 10**12
"""Visits of a point to which the run comes it is not known how often."""

_TESTS = ("before_test", "before_test_epoch", "after_test_epoch", "after_test")
_ONCE = ("before_run", "before_train", "after_train", *_TESTS, "after_run")
_VALIDATIONS = ("before_val", "before_val_epoch", "after_val_epoch", "after_val")
_PARTS: dict[Kind, str] = {
    "module": "module",
    "global": "module",
    "parameter": "parameter",
    "optimizer": "optimizer",
    "comm": "bucket",
}
"""The visits of a point within an iteration."""


def _visits(point: Point, length: Length) -> dict[Counter, Sequence[int]]:
    """Return what the counters that are known show at each visit of a point; none where nothing is known."""
    totals, first = length.totals, int(not point.ahead)
    absent = ("val" in point.name and not length.validates) or ("test" in point.name and not length.tests)
    if absent and point.kind != "own":
        return {"firing": ()}
    if length.is_open:
        return {}
    if point.unit == "it":
        return {"it": range(first, first + (totals.iters or ENDLESS))}
    per = totals.iters_per_epoch
    if point.unit == "ep":
        if per is None or totals.iters is None:
            return {"ep": range(first, first + (totals.epochs or ENDLESS))}
        count = ceil(totals.iters / per) if point.ahead else totals.iters // per  # one that is cut is begun, not done
        return {"ep": range(first, first + count), "it": range(first * per, (first + count) * per, per)}
    unit: Counter
    unit, end = ("ep", totals.epochs or 0) if totals.iters is None else ("it", totals.iters)
    if point.name in _ONCE:
        return {"firing": (first,), unit: (0 if point.name in ("before_run", "before_train") else end,)}
    every, counted = length.val_every
    if counted == "ep" and unit == "it":
        every, counted = every * (per or 0), "it"
    if point.name not in _VALIDATIONS or not every or counted != unit or every.denominator != 1:
        return {}
    counts = [*[0] * length.at_start, *range(int(every), end, int(every)), end]
    return {"firing": range(first, first + len(counts)), unit: counts}


def _forecast(trigger: Trigger, point: Point, requested: Point, length: Length) -> Forecast:
    visits = _visits(requested, length)
    if not all(visits.values()) or window_is_empty(trigger, requested):
        return NEVER
    noun = "validation" if point.name in _VALIDATIONS else {"it": "iteration", "ep": "epoch"}.get(point.unit, "firing")
    amount = (trigger.every or "1").strip()
    text = f"every {noun}" if amount == "1" else f"every {amount} {noun}s" if amount.isdigit() else f"every {amount}"
    schedule = Schedule.of(trigger, requested, length.totals)
    every, opens, closes = schedule.every, schedule.opens, schedule.closes
    if not visits or not {side.counter for side in (every, opens, closes) if side} <= visits.keys():
        text += f" from {trigger.since}" * bool(trigger.since) + f" until {trigger.until}" * bool(trigger.until)
        return Forecast("unknown", None, _conditional(text, trigger))
    count = len(next(iter(visits.values())))
    low = bisect_left(visits[opens.counter], opens.at) if opens else 0
    high = bisect_left(visits[closes.counter], closes.at) if closes else count
    if every:
        low = max(low, bisect_left(visits[every.counter], every.reached(schedule.entered + 1)))
    if low >= high:
        return NEVER
    first = "once" if point.name in _ONCE else f"at {noun} {low + 1:,}"
    text += f", first {first}" if every or low else ""
    if count == ENDLESS:
        return Forecast(first, None, _conditional(text + f" until {trigger.until}" * bool(trigger.until), trigger))
    times = _firings(every, visits[every.counter][low:high]) if every else high - low
    text = _conditional(first if times == 1 else text, trigger, times)
    if part := _PARTS.get(point.kind):
        text += f", at each {part}"
    return Forecast(first, None if trigger.when or part else times, text)


def _firings(every: Measure, counts: Sequence[int]) -> int:
    """Return how many multiples are entered: the steps between the counts are equal, but that the last may be less."""
    first, before, last = (every.multiple(counts[visit]) for visit in (0, max(len(counts) - 2, 0), -1))
    return max(min(len(counts) - (before == last), last - first + 1), 1)


def _conditional(text: str, trigger: Trigger, times: int = 1) -> str:
    """Return the text with the times, and with the condition, where there is one: then the times are the most."""
    most = "at most " * bool(trigger.when)
    counted = f"{text}: {most}{times:,} times" if times > 1 else text
    return f"{counted}, where {trigger.when}" if trigger.when else counted
