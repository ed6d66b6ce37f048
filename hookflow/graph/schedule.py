"""Triggers as exact numbers, for the runner and for `forecast`.

They give `every`, `from` and `until` in the counters of a run.

A run counts iterations, epochs, firings of a point, seconds, samples and tokens. The count at a
visit of a point is what is done then: where the point is ahead (`Point.ahead`: at a `before_X`, and
inside an iteration) the first visit is at 0; elsewhere the count includes what has just been done.

- `every` fires where the count has entered another multiple of the amount; where the point is
  ahead, 0 is one.
- `from` admits each count that has reached the amount.
- `until` admits each count up to the amount. Where the point is ahead the amount itself is too
  late: so many are done, and this would be one more.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil, floor
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from hookflow.graph.plan import Binding, DeclaredBinding, Plan, Trigger
from hookflow.graph.points import DEFAULT_POINTS, Kind, Point, Points
from hookflow.pipeline.amounts import Amount
from hookflow.pipeline.by_epoch import EpochLengths
from hookflow.pipeline.values import Interval

if TYPE_CHECKING:
    from hookflow.pipeline.schema import Pipeline

Counter = Literal["it", "ep", "firing", "s", "samples", "tokens"]
"""The counters of a run.

These are iterations, epochs, firings of a point, seconds, and of the batches that it has taken the
samples and the tokens. All but the seconds are integers.
"""


class Totals(NamedTuple):
    """How many iterations and epochs a run has, and the iterations of each epoch.

    A number is None where it is not known yet.
    """

    iters: int | None = None
    epochs: int | None = None
    epoch_lengths: EpochLengths | None = None


class Bound(NamedTuple):
    """A place in the run: where a counter shows `at`."""

    counter: Counter
    at: float


@dataclass(frozen=True, slots=True)
class Measure:
    """An amount in one counter: exactly `numerator` / `denominator` of what that counts.

    With `lengths` it is an amount of epochs of these lengths, and the counter is that of the
    iterations.
    """

    counter: Counter
    numerator: int
    denominator: int
    lengths: EpochLengths | None = None

    @classmethod
    def of_epochs(cls, epochs: Fraction, lengths: EpochLengths) -> "Measure":
        """Return so many epochs, which may be parts of one, in iterations."""
        if lengths.changes:
            return cls("it", *epochs.as_integer_ratio(), lengths)
        return cls("it", *(epochs * lengths.at(0)).as_integer_ratio())

    @classmethod
    def of_interval(cls, interval: Interval, lengths: EpochLengths) -> "Measure":
        """Return an interval of iterations, or of epochs or parts of one, in iterations."""
        value = Fraction(interval.value)
        if interval.unit == "ep":
            return cls.of_epochs(value, lengths)
        return cls("it", *value.as_integer_ratio())

    def multiple(self, count: float) -> int:
        """Return which multiple of the amount a count has entered."""
        if self.lengths is not None:
            return int(self.lengths.epochs(int(count)) * self.denominator // self.numerator)
        return int(count * self.denominator // self.numerator)

    def compute_reached_count(self, multiple: int = 1) -> float:
        """Return the least count that is not below that multiple of the amount."""
        if self.lengths is not None:
            return ceil(
                self.lengths.iterations(Fraction(multiple * self.numerator, self.denominator))
            )
        if self.counter == "s":
            return multiple * self.numerator / self.denominator
        return -(-multiple * self.numerator // self.denominator)

    def compute_passed_count(self) -> float:
        """Return the least count that is above the amount.

        At the very second itself, seconds are over.
        """
        if self.counter == "s":
            return self.compute_reached_count()
        if self.lengths is not None:
            return floor(self.lengths.iterations(Fraction(self.numerator, self.denominator))) + 1
        return self.numerator // self.denominator + 1

    def as_list(self) -> list[Any]:
        """Return the amount for a checkpoint; two that are equal are the same amount."""
        amount = [self.counter, self.numerator, self.denominator]
        if self.lengths is not None:
            return [*amount, [list(stage) for stage in self.lengths.stages]]
        return amount


@dataclass(frozen=True, slots=True)
class Schedule:
    """A trigger at a point of a run, but for its `when`.

    The binding may fire at the counts from `opens` on, up to below `closes`. With `every`, it fires
    at the first visit in each multiple of it; `entered` is the multiple that the run is in before
    it starts.
    """

    every: Measure | None
    opens: Bound | None
    closes: Bound | None
    entered: int

    @classmethod
    def of(cls, trigger: Trigger, point: Point, totals: Totals) -> "Schedule":
        """Return the schedule of a trigger, in the counters that the totals allow."""
        every = opens = closes = None
        if trigger.every:
            every = measure(trigger.every, point, totals)
        if trigger.since:
            since = measure(trigger.since, point, totals)
            opens = Bound(since.counter, since.compute_reached_count())
        if trigger.until:
            until = measure(trigger.until, point, totals)
            if point.ahead:
                end = until.compute_reached_count()
            else:
                end = until.compute_passed_count()
            closes = Bound(until.counter, end)
        entered = 0
        if point.ahead:
            entered = -1
        return cls(every, opens, closes, entered)


def measure(amount: Amount, point: Point, totals: Totals) -> Measure:
    """Return an amount in the counter that it is measured in at a point.

    Only the points of an epoch count in epochs. Elsewhere an epoch is so many iterations, since a
    part of one counts, too. So is a share of the run, everywhere. Without `epoch_lengths` both stay
    in epochs.
    """
    counter: Counter
    counter = "it"
    number = amount.value
    match amount.unit or point.unit:
        case "%" if totals.iters is not None:
            number *= Fraction(totals.iters, 100)
        case "%":
            counter = "ep"
            number = number * Fraction(totals.epochs or 0, 100)
        case "ep" if point.unit != "ep" and totals.epoch_lengths is not None:
            return Measure.of_epochs(number, totals.epoch_lengths)
        case "ep":
            counter = "ep"
        case "s" | "samples" | "tokens" as unit:
            counter = unit
        case "firing":
            counter = "firing"
    return Measure(counter, *number.as_integer_ratio())


def is_window_empty(trigger: Trigger, point: Point) -> bool:
    """Say whether `from` and `until` leave nothing between them, in a run of any length."""
    if trigger.since is None or trigger.until is None:
        return False
    since = trigger.since
    until = trigger.until
    since_unit = since.unit or point.unit
    until_unit = until.unit or point.unit
    if since_unit != until_unit:
        return False
    if since.value == until.value:
        return point.ahead
    return since.value > until.value


EACH_EPOCH = Interval(1, "ep")


@dataclass(frozen=True, slots=True)
class Length:
    """How long a run is, in epochs or in iterations, and when it validates.

    All is as the pipeline says.
    """

    max_epochs: int | None
    max_iters: int | None
    val_every: Interval = EACH_EPOCH
    validates: bool = True
    tests: bool = False
    iters_per_epoch: int | None = None
    at_start: bool = False

    @classmethod
    def of(cls, pipeline: "Pipeline", iters_per_epoch: int | None = None) -> "Length":
        """Return the length of a pipeline.

        Only its data knows how many batches an epoch has, unless `overfit` says it.
        """
        run = pipeline.run
        if iters_per_epoch is None and isinstance(run.overfit, int) and not run.accumulate.changes:
            iters_per_epoch = ceil(run.overfit / run.accumulate.at(0))
        return cls(
            max_epochs=run.epoch_limit,
            max_iters=run.max_iters,
            val_every=run.validates,
            validates=bool(pipeline.validated_sets),
            tests=run.test,
            iters_per_epoch=iters_per_epoch,
            at_start=run.val_at_start,
        )

    @property
    def totals(self) -> Totals:
        """The known length of the run."""
        iters = self.max_iters
        if self.max_epochs is not None and self.iters_per_epoch is not None:
            of_epochs = self.max_epochs * self.iters_per_epoch
            if iters is None or of_epochs < iters:
                iters = of_epochs
        lengths = None
        if self.iters_per_epoch is not None:
            lengths = EpochLengths.constant(self.iters_per_epoch)
        return Totals(iters, self.max_epochs, lengths)

    @property
    def is_endless(self) -> bool:
        """Whether neither epochs nor iterations end the run."""
        return self.max_epochs is None and self.max_iters is None

    @property
    def is_open(self) -> bool:
        """Whether either of two lengths may end the run: which one, only its data know."""
        return (
            self.max_epochs is not None
            and self.max_iters is not None
            and self.iters_per_epoch is None
        )


@dataclass(frozen=True, slots=True)
class Forecast:
    """The forecast of a binding, if the run reaches its end.

    `first` is the place of its first firing in words ("at iteration 50"; "never"), `times` how
    often it fires (None: that depends on what only the run will know), `text` both, and how often
    between, in one line.
    """

    first: str
    times: int | None
    text: str


def compute_forecasts(plan: Plan, length: Length) -> dict[int, Forecast]:
    """Return a forecast for each binding of the plan, by the binding's id."""
    entered: dict[tuple[str, str], Point] = {}
    for binding in plan.bindings:
        if binding.half == "enter":
            entered[binding.hook, binding.method] = plan.points[binding.point]
    known: dict[tuple[Trigger, str, Point], Forecast] = {}
    result: dict[int, Forecast] = {}
    for binding in plan.bindings:
        if binding.stages and "train" not in binding.stages:
            result[binding.id] = _forecast_evaluation(binding, length)
            continue
        here = plan.points[binding.point]
        start = here
        # The trigger of an around is evaluated at its first half, and its second half fires with
        # that.
        if binding.half == "exit":
            start = entered[binding.hook, binding.method]
        key = binding.trigger, binding.point, start
        if key not in known:
            known[key] = _compute_forecast(binding.trigger, here, start, length)
        result[binding.id] = known[key]
    return result


def is_sure_to_fire(binding: DeclaredBinding, points: Points, length: Length) -> bool:
    """Say whether a binding fires in every run of this length that reaches its end.

    It is false where only the run knows.
    """
    name = binding.point
    if binding.half == "exit":  # the trigger is evaluated where the first half fires
        name = f"before_{name.removeprefix('after_')}"
    point = points[name]
    trigger = binding.trigger
    if point.kind not in ("standard", "step") or trigger.when:
        return False
    if trigger.every or trigger.since or trigger.until:
        return bool(_compute_forecast(trigger, point, point, length).times)
    if point.name in _TEST_POINTS:
        return length.tests
    if point.name in _VALIDATION_POINTS:
        return length.validates and length.val_every.value > 0
    return point.unit in ("it", "ep") or point.name in _ONE_TIME_POINTS


def _forecast_evaluation(binding: Binding, length: Length) -> Forecast:
    """Return the forecast of a binding inside the network that fires in no training.

    The batches of the other stages are unknown.
    """
    comes = {"val": length.validates, "test": length.tests}
    stages = [stage for stage in binding.stages if comes[stage]]
    if not stages or is_window_empty(binding.trigger, DEFAULT_POINTS[binding.point]):
        return NEVER_FORECAST
    first = f"in {' and '.join(stages)}"
    return Forecast(first, None, _conditional(f"{first}, at each module", binding.trigger))


NEVER_FORECAST = Forecast("never", 0, "never")
UNKNOWN_NUM_VISITS = 10**12
"""Visits of a point to which the run comes it is not known how often."""

_TEST_POINTS = ("before_test", "before_test_epoch", "after_test_epoch", "after_test")
_ONE_TIME_POINTS = ("before_run", "before_train", "after_train", *_TEST_POINTS, "after_run")
_VALIDATION_POINTS = ("before_val", "before_val_epoch", "after_val_epoch", "after_val")
_VISIT_NAMES: dict[Kind, str] = {
    "module": "module",
    "global": "module",
    "parameter": "parameter",
    "optimizer": "optimizer",
    "comm": "bucket",
}
"""The visits of a point within an iteration."""


def _compute_visits(point: Point, length: Length) -> dict[Counter, Sequence[int]]:
    """Return what the known counters show at each visit of a point.

    There are none where nothing is known.
    """
    totals = length.totals
    first = 1
    if point.ahead:
        first = 0
    if _is_never_visited(point, length):
        return {"firing": ()}
    if length.is_open:
        return {}
    if length.is_endless and point.name in _ONE_TIME_POINTS:
        return {"firing": (first,)}
    if point.unit == "it":
        return {"it": range(first, first + (totals.iters or UNKNOWN_NUM_VISITS))}
    if point.unit == "ep":
        return _compute_epoch_visits(point, totals)
    if point.name in _ONE_TIME_POINTS:
        unit, end = _end_of_run(totals)
        is_begin = point.name in ("before_run", "before_train")
        return {"firing": (first,), unit: (0 if is_begin else end,)}
    if point.name in _VALIDATION_POINTS:
        return _compute_validation_visits(first, length)
    return {}


def _is_never_visited(point: Point, length: Length) -> bool:
    """Say whether a run of this length has no validation, or no test, that the point belongs to."""
    if point.kind == "own":
        return False
    if "val" in point.name and not length.validates:
        return True
    return "test" in point.name and not length.tests


def _compute_epoch_visits(point: Point, totals: Totals) -> dict[Counter, Sequence[int]]:
    first = 1
    if point.ahead:
        first = 0
    if totals.epoch_lengths is None or totals.iters is None:
        return {"ep": range(first, first + (totals.epochs or UNKNOWN_NUM_VISITS))}
    per_epoch = totals.epoch_lengths.at(0)  # a forecast knows one length for all epochs, or none
    count = totals.iters // per_epoch
    if point.ahead:
        count = ceil(totals.iters / per_epoch)  # an epoch that is cut is begun, not done
    return {
        "ep": range(first, first + count),
        "it": range(first * per_epoch, (first + count) * per_epoch, per_epoch),
    }


def _end_of_run(totals: Totals) -> tuple[Counter, int]:
    """Return the counter by which the run ends, and what it shows then."""
    if totals.iters is None:
        return "ep", totals.epochs or 0
    return "it", totals.iters


def _compute_validation_visits(first: int, length: Length) -> dict[Counter, Sequence[int]]:
    if length.is_endless:
        return {}
    unit, end = _end_of_run(length.totals)
    every, counted = length.val_every
    if counted == "ep" and unit == "it":
        every *= length.iters_per_epoch or 0
        counted = "it"
    if not every or counted != unit or every.denominator != 1:
        return {}
    if length.at_start:
        counts = [0]
    else:
        counts = []
    counts += range(int(every), end, int(every))
    counts.append(end)
    return {"firing": range(first, first + len(counts)), unit: counts}


def _format_amount(word: str, amount: Amount | None) -> str:
    """Return an amount of a trigger behind a word and a space; "" where it has none."""
    if not amount:
        return ""
    return f" {word} {amount}"


def _compute_forecast(trigger: Trigger, point: Point, requested: Point, length: Length) -> Forecast:
    """Return the forecast of a trigger at a point.

    `requested` is the point where the trigger is evaluated.
    """
    visits = _compute_visits(requested, length)
    if not all(visits.values()) or is_window_empty(trigger, requested):
        return NEVER_FORECAST
    noun = _name_visit(point)
    if trigger.once:
        return _compute_single_forecast(trigger, point, requested, length)
    text = _format_frequency(trigger, noun)
    until = _format_amount("until", trigger.until)
    schedule = Schedule.of(trigger, requested, length.totals)
    every = schedule.every
    sides = (every, schedule.opens, schedule.closes)
    counters = {side.counter for side in sides if side is not None}
    if not visits or not counters <= visits.keys():
        since = _format_amount("from", trigger.since)
        return Forecast("unknown", None, _conditional(f"{text}{since}{until}", trigger))

    low, high = _find_window(schedule, visits)
    if low >= high:
        return NEVER_FORECAST
    if point.name in _ONE_TIME_POINTS:
        first = "once"
    else:
        first = f"at {noun} {low + 1:,}"
    if every or low:
        text += f", first {first}"
    count = len(next(iter(visits.values())))
    if count == UNKNOWN_NUM_VISITS:
        return Forecast(first, None, _conditional(text + until, trigger))
    times = high - low
    if every:
        times = _count_firings(every, visits[every.counter][low:high])
    text = _conditional(first if times == 1 else text, trigger, times)
    part = _VISIT_NAMES.get(point.kind)
    if part:
        text += f", at each {part}"
    is_known = not trigger.when and part is None
    return Forecast(first, times if is_known else None, text)


def _compute_single_forecast(
    trigger: Trigger, point: Point, requested: Point, length: Length
) -> Forecast:
    """Return the forecast of a binding that fires once.

    It is the first firing of the same binding without `once`.
    """
    repeated = _compute_forecast(replace(trigger, once=False), point, requested, length)
    if repeated.times == 0:
        return NEVER_FORECAST
    is_known = repeated.times is not None
    text = "once"
    if repeated.first not in ("once", "unknown"):
        text = f"once, {repeated.first}"
    return Forecast(repeated.first, 1 if is_known else None, _conditional(text, trigger))


def _name_visit(point: Point) -> str:
    if point.name in _VALIDATION_POINTS:
        return "validation"
    return {"it": "iteration", "ep": "epoch"}.get(point.unit, "firing")


def _format_frequency(trigger: Trigger, noun: str) -> str:
    amount = str(trigger.every or "1").strip()
    if amount == "1":
        return f"every {noun}"
    if amount.isdigit():
        return f"every {amount} {noun}s"
    return f"every {amount}"


def _find_window(schedule: Schedule, visits: Mapping[Counter, Sequence[int]]) -> tuple[int, int]:
    """Return the first visit at which a schedule fires, and the first one at which it is over."""
    low = 0
    high = len(next(iter(visits.values())))
    if schedule.opens:
        low = bisect_left(visits[schedule.opens.counter], schedule.opens.at)
    if schedule.closes:
        high = bisect_left(visits[schedule.closes.counter], schedule.closes.at)
    if schedule.every:
        reached = schedule.every.compute_reached_count(schedule.entered + 1)
        low = max(low, bisect_left(visits[schedule.every.counter], reached))
    return low, high


def _count_firings(every: Measure, counts: Sequence[int]) -> int:
    """Return how many multiples are entered.

    The steps between the counts are equal, except that the last one may be less.
    """
    first = every.multiple(counts[0])
    last = every.multiple(counts[-1])
    before_last = every.multiple(counts[max(len(counts) - 2, 0)])
    most = len(counts)
    if before_last == last:
        most -= 1
    return max(min(most, last - first + 1), 1)


def _conditional(text: str, trigger: Trigger, times: int = 1) -> str:
    """Return the text with the times, and with the condition where there is one.

    With a condition the binding fires so often at most.
    """
    if times > 1:
        most = ""
        if trigger.when:
            most = "at most "
        text = f"{text}: {most}{times:,} times"
    if trigger.when:
        return f"{text}, where {trigger.when}"
    return text
