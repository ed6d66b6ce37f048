"""Triggers as exact numbers: `every`, `from` and `until` over the counters of a run, for the runner and for `forecast`.

A run counts iterations, epochs, firings of a point, and seconds. The count at a visit of a point is what is done then:
where the point is ahead (`Point.ahead`: at a `before_X`, and inside an iteration) the first visit is at 0; elsewhere
the count includes what has just been done.

- `every` fires where the count has entered another multiple of the amount; where the point is ahead, 0 is one.
- `from` admits each count that has reached the amount.
- `until` admits each count up to the amount. Where the point is ahead the amount itself is too late: so many are done,
  and this would be one more.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil, inf, nextafter
from typing import TYPE_CHECKING, Literal, NamedTuple

from hookflow.graph.plan import Binding, Plan, Trigger
from hookflow.graph.points import POINTS, Kind, Point
from hookflow.pipeline.values import SECONDS, Amount, Interval, parse_amount

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

    `first` is the place of its first firing in words ("after iteration 50"; "never"), `times` how often it fires
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
    stages = {"val": ("in validation", length.validates), "test": ("in the test", length.tests)}
    first = " and ".join(words for words, comes in map(stages.__getitem__, binding.stages) if comes)
    if not first or window_is_empty(binding.trigger, POINTS[binding.point]):
        return Forecast("never", 0, "never")
    return Forecast(first, None, _conditional(f"{first}, at each module", binding.trigger))


@dataclass(frozen=True, slots=True)
class _Counts:
    """The values of a counter at the visits of a point: at visit k (from 0) `start` + k `step`, and at most `end`."""

    start: int
    step: int = 1
    end: int | None = None

    def at(self, visit: int) -> int:
        count = self.start + visit * self.step
        return count if self.end is None else min(count, self.end)

    def reach(self, count: float) -> float:
        """Return the first visit at which the counter shows so much; infinity when it never does."""
        if self.end is not None and self.end < count:
            return inf
        return max(-((self.start - count) // self.step), 0)


@dataclass(frozen=True, slots=True)
class _Visits:
    """How often the run comes to a point (None: unknown), and the counters that are known there."""

    count: int | None
    counts: Mapping[Counter, _Counts] = field(default_factory=dict)

    def reach(self, bound: Bound) -> float:
        return self.counts[bound.counter].reach(bound.at)


def _visits(point: Point, length: Length) -> _Visits:
    totals = length.totals
    first = int(not point.ahead)
    if length.is_open:
        return _Visits(int("test" not in point.name or length.tests) if point.name in _ONCE else None)
    if point.unit == "it":
        return _Visits(totals.iters, {"it": _Counts(first)})
    if point.unit == "ep":
        return _epochs(point, totals)
    unit: Counter
    unit, end = ("ep", totals.epochs or 0) if totals.iters is None else ("it", totals.iters)
    counts: dict[Counter, _Counts] = {"firing": _Counts(first)}
    if point.name in _ONCE:
        counts[unit] = _Counts(0 if point.name in ("before_run", "before_train") else end)
        return _Visits(int("test" not in point.name or length.tests), counts)
    if point.name in _VALIDATIONS and length.validates:
        every, counted = length.val_every
        if counted == "ep" and unit == "it":
            every, counted = every * (totals.iters_per_epoch or 0), "it"
        if not every or counted != unit or every.denominator != 1:
            return _Visits(None)
        step = int(every)
        counts[unit] = _Counts(0 if length.at_start else min(step, end), step, end)
        return _Visits(ceil(end / step) + length.at_start, counts)
    absent = ("val" in point.name and not length.validates) or ("test" in point.name and not length.tests)
    return _Visits(0 if absent and point.kind != "own" else None)


def _epochs(point: Point, totals: Totals) -> _Visits:
    """Return the visits of a point of every epoch. One that `max_iters` cuts is begun, and not done."""
    first = int(not point.ahead)
    counts: dict[Counter, _Counts] = {"ep": _Counts(first)}
    per = totals.iters_per_epoch
    if per is None or totals.iters is None:
        return _Visits(totals.epochs, counts)
    counts["it"] = _Counts(first * per, per)
    return _Visits(ceil(totals.iters / per) if point.ahead else totals.iters // per, counts)


_ONCE = {
    "before_run": "at the start of the run",
    "before_train": "before the training",
    "after_train": "after the training",
    "before_test": "before the test",
    "before_test_epoch": "in the test",
    "after_test_epoch": "in the test",
    "after_test": "after the test",
    "after_run": "at the end of the run",
}
_VALIDATIONS = {
    "before_val": "before validation",
    "before_val_epoch": "in validation",
    "after_val_epoch": "in validation",
    "after_val": "after validation",
}
_AT_EACH: dict[Kind, str] = {
    "module": "module",
    "global": "module",
    "parameter": "parameter",
    "optimizer": "optimizer",
    "comm": "bucket",
}
"""The visits of a point within an iteration."""


def _forecast(trigger: Trigger, point: Point, requested: Point, length: Length) -> Forecast:
    visits = _visits(requested, length)
    if visits.count == 0 or window_is_empty(trigger, requested):
        return Forecast("never", 0, "never")
    schedule = Schedule.of(trigger, requested, length.totals)
    every = schedule.every
    cadence = f"every {_amount(trigger.every, requested)}" if trigger.every else _part(point)
    used = {side.counter for side in (every, schedule.opens, schedule.closes) if side}
    if not visits.counts or not used <= visits.counts.keys():
        window = f" from {trigger.since}" * bool(trigger.since) + f" until {trigger.until}" * bool(trigger.until)
        return Forecast(_place(point, None), None, _conditional(f"{cadence}{window}", trigger))
    low, high = _window(schedule, visits)
    if low > high:
        return Forecast("never", 0, "never")
    first = _place(point, int(low))
    message = f"{cadence}, first {first}" if every or low else cadence
    if visits.count is None:
        return Forecast(
            first, None, _conditional(f"{message} until {trigger.until}" if trigger.until else message, trigger)
        )
    times = _firings(every, visits.counts[every.counter], int(low), int(high)) if every else int(high) - int(low) + 1
    if each := _AT_EACH.get(point.kind):
        return Forecast(first, None, _conditional(f"{message}: in {times:,} of them, at each {each}", trigger))
    text = _conditional(first if times == 1 else message, trigger, times)
    return Forecast(first, None if trigger.when else times, text)


def _window(schedule: Schedule, visits: _Visits) -> tuple[float, float]:
    """Return the first visit that fires, and the last one that may; the last is infinite where unknown."""
    every = schedule.every
    low = visits.reach(schedule.opens) if schedule.opens else 0
    if every:
        low = max(low, visits.reach(Bound(every.counter, every.reached(schedule.entered + 1))))
    high = inf if visits.count is None else visits.count - 1
    if schedule.closes:
        high = min(high, visits.reach(schedule.closes) - 1)
    return low, high


def _firings(every: Measure, counts: _Counts, low: int, high: int) -> int:
    """Return how many multiples are entered from the visit `low` to `high`; the step to the last one may be shorter."""
    entered = [every.multiple(counts.at(visit)) for visit in (low, max(high - 1, low), high)]
    regular = high - 1 - low if every.multiple(counts.step) else entered[1] - entered[0]
    return 1 + max(regular, 0) + (entered[2] > entered[1])


def _conditional(text: str, trigger: Trigger, times: int = 1) -> str:
    """Return the text with the times, and with the condition, where there is one: then the times are the most."""
    most = "at most " * bool(trigger.when)
    counted = f"{text}: {most}{times:,} times" if times > 1 else text
    return f"{counted}, where {trigger.when}" if trigger.when else counted


def _amount(every: str, point: Point) -> str:
    amount = parsed(every)
    unit = every.strip()[-1] if amount.unit == "s" else amount.unit or point.unit  # minutes stay minutes
    value = amount.value / SECONDS.get(unit, 1)
    number = str(value) if value.denominator == 1 else f"{float(value):g}"
    match unit:
        case "%":
            return f"{number}% of the run"
        case "firing":
            nouns = "validations" if point.name in _VALIDATIONS else "firings"
        case _:
            nouns = {"it": "iterations", "ep": "epochs", "s": "seconds", "m": "minutes", "h": "hours"}[unit]
    return nouns.removesuffix("s") if value == 1 else f"{number} {nouns}"


def _part(point: Point) -> str:
    if point.unit in ("it", "ep"):
        return "every iteration" if point.unit == "it" else "every epoch"
    return "every validation" if point.name in _VALIDATIONS else _place(point, None)


def _place(point: Point, visit: int | None) -> str:
    """Return a visit (from 0) of a point in words; None is any of them."""
    name = point.name
    if name in _ONCE:
        return _ONCE[name]
    if name in _VALIDATIONS:
        return f"{_VALIDATIONS[name]} {visit + 1}" if visit is not None else _VALIDATIONS[name]
    if point.unit not in ("it", "ep"):
        return f"at {name}"
    word = {"before_fetch": "before", "before_train_iter": "before", "after_train_iter": "after"}.get(name, "in")
    if point.unit == "ep":
        word = "before" if name == "before_train_epoch" else "after"
    noun = "iteration" if point.unit == "it" else "epoch"
    return f"{word} {noun} {visit + 1}" if visit is not None else f"{word} an {noun}"
