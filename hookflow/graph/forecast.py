"""When each binding fires in a run that goes to its end: first where, and how often. Nothing is run to tell.

It is `hookflow.runner.triggers` worked out beforehand; a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, inf

from hookflow.graph.plan import Binding, Plan
from hookflow.graph.plan import Trigger as Written
from hookflow.graph.points import Point
from hookflow.pipeline.schema import Interval, Pipeline
from hookflow.pipeline.units import Amount, parse_amount

EACH_EPOCH = Interval(1, "ep")


@dataclass(frozen=True, slots=True)
class Length:
    """How long a run is: in epochs or in iterations, as the pipeline says; the other where it can be known.

    Validation comes every `val_every`, and at the end.
    """

    max_epochs: int | None
    max_iters: int | None
    val_every: Interval = EACH_EPOCH
    validates: bool = True
    tests: bool = False
    iters_per_epoch: int | None = None

    @classmethod
    def of(cls, pipeline: Pipeline, iters_per_epoch: int | None = None) -> Length:
        """Return that of a pipeline; how many batches an epoch has, only its data knows."""
        run, data = pipeline.run, pipeline.data
        return cls(run.max_epochs, run.max_iters, run.validates, data.val is not None, run.test, iters_per_epoch)

    @property
    def totals(self) -> Mapping[str, Fraction]:
        """The whole run in every unit in which it is known: "it", "ep" and "%"."""
        known = {"it": self.max_iters, "ep": self.max_epochs, "%": 100}
        found = {unit: Fraction(total) for unit, total in known.items() if total is not None}
        if self.iters_per_epoch is not None:
            if "it" in found:
                found["ep"] = found["it"] / self.iters_per_epoch
            else:
                found["it"] = found["ep"] * self.iters_per_epoch
        return found


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a binding will do, if nobody stops the run before its end.

    `first` is the place of its first firing in words ("after iteration 50"; "never"), `times` how often it fires
    (None: that depends on what only the run will know), `text` both, and how often between, in one line.
    """

    first: str
    times: int | None
    text: str


def forecast(plan: Plan, length: Length) -> dict[int, Forecast]:
    """Return a forecast for each binding of the plan, by the binding's id."""
    entered = {(b.hook, b.method): b.trigger for b in plan.bindings if b.half == "enter"}
    return {
        binding.id: _forecast(
            entered[binding.hook, binding.method] if binding.half == "exit" else binding.trigger,
            plan.points[binding.point],
            # the second half fires where the first one has: the trigger is asked there
            plan.points[_opening(plan, binding)],
            length,
        )
        for binding in plan.bindings
    }


def window_is_empty(trigger: Written, point: Point) -> bool:
    """Say whether `from` and `until` leave nothing between them at a point, however long the run is."""
    if trigger.since is None or trigger.until is None:
        return False
    since, until = _parsed(trigger.since), _parsed(trigger.until)
    if (since.unit or point.unit) != (until.unit or point.unit):
        return False
    return since.value > until.value or (since.value == until.value and point.ahead)


def _parsed(written: str) -> Amount:
    return parse_amount(int(written) if written.isdigit() else written)


def _opening(plan: Plan, binding: Binding) -> str:
    if binding.half != "exit":
        return binding.point
    return next(b.point for b in plan.bindings if (b.hook, b.method, b.half) == (binding.hook, binding.method, "enter"))


@dataclass(frozen=True, slots=True)
class _Visits:
    """How often the run comes to a point (None: nobody knows), and how far it is then.

    At visit k (from 0) it is `start` + k `step` far, in `unit`, and never further than `end`.
    """

    count: int | None
    unit: str = "it"
    start: int = 0
    step: int = 0
    end: Fraction | None = None


def _visits(point: Point, length: Length) -> _Visits:
    """Return the visits of a point, as `hookflow.graph.points` draws the loop."""
    totals = length.totals
    its, epochs = totals.get("it"), totals.get("ep")
    unit = "ep" if length.max_iters is None else "it"
    if point.unit == "it":
        return _Visits(None if its is None else int(its), "it", int(point.name == "after_train_iter"), 1)
    if point.name == "before_train_epoch":
        return _Visits(None if epochs is None else ceil(epochs), "ep", 0, 1)
    if point.name == "after_train_epoch":
        return _Visits(None if epochs is None else int(epochs), "ep", 1, 1)
    end = totals[unit]
    if point.name in _ONCE:
        start = 0 if point.name in ("before_run", "before_train") else int(end)
        return _Visits(int("test" not in point.name or length.tests), unit, start)
    if point.name in _VALIDATIONS:
        every, unit = length.val_every
        if not length.validates:
            return _Visits(0)
        if unit not in totals:
            return _Visits(None, "")
        return _Visits(ceil(totals[unit] / every), unit, every, every, totals[unit])
    absent = ("val" in point.name and not length.validates) or ("test" in point.name and not length.tests)
    return _Visits(0 if absent and point.kind != "own" else None, "")


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
_WHENEVER = {
    "after_load_checkpoint": "when a run is resumed",
    "before_save_checkpoint": "before a checkpoint is saved",
    "after_save_checkpoint": "after a checkpoint is saved",
    "on_exception": "when something raises",
    "before_val_iter": "before a validation batch",
    "after_val_iter": "after a validation batch",
    "before_test_iter": "before a test batch",
    "after_test_iter": "after a test batch",
}


class _Side:
    """One amount of a trigger at one point; `known` says whether the run's positions in its unit are."""

    def __init__(self, written: str, point: Point, visits: _Visits, totals: Mapping[str, Fraction]) -> None:
        self.amount = _parsed(written)
        self.at = Fraction(str(self.amount.value))
        self.unit = self.amount.unit or point.unit
        self.start, self.step, self.end = Fraction(0), Fraction(1), None
        self.known = True
        if self.unit == "firing":
            self.start = Fraction(not point.ahead)
            return
        same = self.unit == visits.unit
        self.known = same or (self.unit in totals and visits.unit in totals)
        if self.known:
            scale = Fraction(1) if same else totals[self.unit] / totals[visits.unit]
            self.start, self.step = visits.start * scale, visits.step * scale
            self.end = None if visits.end is None else visits.end * scale

    def position(self, visit: int) -> Fraction:
        here = self.start + visit * self.step
        return here if self.end is None else min(here, self.end)

    def reaches(self, amount: Fraction) -> float:
        """Return the first visit that is at least so far; infinity when none is."""
        if self.start >= amount:
            return 0
        if not self.step or (self.end is not None and self.end < amount):
            return inf
        return ceil(((amount if self.end is None else min(amount, self.end)) - self.start) / self.step)


def _forecast(trigger: Written, point: Point, asked: Point, length: Length) -> Forecast:
    """Return the forecast of a trigger that is asked at the point `asked` for a firing at `point`."""
    visits = _visits(asked, length)
    sides = {
        name: _Side(written, asked, visits, length.totals) if written else None
        for name, written in (("every", trigger.every), ("since", trigger.since), ("until", trigger.until))
    }
    every = sides["every"]
    if visits.count == 0 or window_is_empty(trigger, asked):
        return Forecast("never", 0, "never")
    cadence = f"every {_amount(every, asked)}" if every else _each(point)
    if not all(side is None or side.known for side in sides.values()) or visits.unit == "":
        written = f" from {trigger.since}" * bool(trigger.since) + f" until {trigger.until}" * bool(trigger.until)
        return Forecast(_place(point, None), None, _conditional(f"{cadence}{written}", trigger))
    low, high = _window(asked, visits, sides["since"], sides["until"])
    if every and not asked.ahead:
        low = max(low, every.reaches(every.at))
    if low > high:
        return Forecast("never", 0, "never")
    first = _place(point, int(low))
    said = f"{cadence}, first {first}" if every or low else cadence
    if visits.count is None:
        return Forecast(first, None, _conditional(f"{said} until {trigger.until}" if trigger.until else said, trigger))
    times = _firings(every, int(low), int(high)) if every else int(high) - int(low) + 1
    if point.kind == "module":
        return Forecast(first, None, _conditional(f"{said}: in {times:,} of them, at each module", trigger))
    text = _conditional(first if times == 1 else said, trigger, times)
    return Forecast(first, None if trigger.when else times, text)


def _window(point: Point, visits: _Visits, since: _Side | None, until: _Side | None) -> tuple[float, float]:
    """Return the first and the last visit that `from` and `until` admit; the last is infinite where nobody knows."""
    low = since.reaches(since.at) if since else 0
    high = inf if visits.count is None else visits.count - 1
    if until:
        behind = until.reaches(until.at)
        if behind < inf and until.position(int(behind)) == until.at and not point.ahead:
            behind += 1
        high = min(high, behind - 1)
    return low, high


def _firings(every: _Side, low: int, high: int) -> int:
    """Return how many multiples are entered from the visit `low`, which fires, to the visit `high`."""
    entered = [every.position(visit) // every.at for visit in (low, max(high - 1, low), high)]
    regular = high - 1 - low if every.step >= every.at else entered[1] - entered[0]
    return 1 + max(regular, 0) + (entered[2] > entered[1])


def _conditional(text: str, trigger: Written, times: int = 0) -> str:
    """Return the text with the times, and with the condition, where there is one: then the times are the most."""
    most = "at most " * bool(trigger.when)
    counted = f"{text}: {most}{times:,} times" if times > 1 else text
    return f"{counted}, where {trigger.when}" if trigger.when else counted


def _amount(side: _Side, point: Point) -> str:
    """Return what `every` counts, in words: "50 iterations", "10% of the run"."""
    number = f"{side.amount.value:g}"
    one = side.at == 1
    match side.unit:
        case "%":
            return f"{number}% of the run"
        case "firing":
            nouns = "validations" if point.name in _VALIDATIONS else "firings"
        case unit:
            nouns = {"it": "iterations", "ep": "epochs", "s": "seconds"}[unit]
    return nouns.removesuffix("s") if one else f"{number} {nouns}"


def _each(point: Point) -> str:
    """Return how often a point comes that nothing limits."""
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
        return _WHENEVER.get(name, f"when {name} is fired")
    word = {"before_train_iter": "before", "after_train_iter": "after"}.get(name, "in")
    if point.unit == "ep":
        word = "before" if name == "before_train_epoch" else "after"
    noun = "iteration" if point.unit == "it" else "epoch"
    return f"{word} {noun} {visit + 1}" if visit is not None else f"{word} an {noun}"
