"""Triggers at run time.

`every`, `from` and `until` follow `hookflow.graph.schedule`, and `when` is evaluated where the
others hold.

A multiple at which the condition does not hold is spent: the next chance is the next multiple.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import torch
from torch import Tensor

from hookflow.errors import Problem, UserError, nearest_or_all
from hookflow.graph.offload import is_thinned
from hookflow.graph.plan import Binding, Plan
from hookflow.graph.points import Point
from hookflow.graph.schedule import Counter, Measure, Schedule, Totals
from hookflow.hooks.tensors import sum_dtype
from hookflow.pipeline.by_epoch import EpochLengths
from hookflow.pipeline.condition import METRIC_PREFIX, RUN_FACTS, SCALAR_PREFIX
from hookflow.runner.dispatch.dispatcher import TriggerBase
from hookflow.runner.distributed.parallel import ParallelStrategy
from hookflow.runner.model.task import as_number, scalar
from hookflow.runner.process.state import RunState

Holds = Callable[[], bool]


class ScheduledTrigger(TriggerBase):
    """One binding's trigger; call it at a visit of the point to learn whether the binding fires.

    `next` spares calls: while `iter` is below it, the answer is no. It is 0 where that is not
    known, and at a point that counts its firings, since each call is one. It is `inf` once the
    binding can never fire again.
    """

    def __init__(
        self, binding: Binding, point: Point, run: RunState, holds: Holds | None = None
    ) -> None:
        self.next: float = 0
        self._written = binding.trigger
        self._point = point
        self._run = run
        self._holds = holds
        self._began = run.seconds()
        self._counts_visits = point.unit == "firing"
        self._visits = 0
        self._is_spent = False
        """Whether it has fired, and is to fire once."""
        self._schedule: Schedule | None = None
        self._last = -1 if point.ahead else 0
        """The multiple of `every` that the latest visit was in."""
        self._due: float = 0
        """The count at which `every` may enter another multiple."""

    def __call__(self) -> bool:
        if self.next == inf or self._is_spent:
            return False
        if self._counts_visits:
            self._visits += 1
        if self._schedule is None:
            self._schedule = self._make_schedule()
        fires = self._is_firing(self._schedule)
        if fires and self._written.once:
            self._is_spent = True
            self.next = inf
        return fires

    def _is_firing(self, schedule: Schedule) -> bool:
        return self._is_due(schedule) and (self._holds is None or self._holds())

    def _make_schedule(self) -> Schedule:
        """Return the schedule by the present totals.

        A run that only validates learns them from the checkpoint. Before that nothing is done, and
        any totals will do.
        """
        lengths = self._run.epoch_lengths
        if lengths.at(0) == 0:
            lengths = EpochLengths.constant(1)
        totals = Totals(iters=self._run.max_iters or 1, epoch_lengths=lengths)
        return Schedule.of(self._written, self._point, totals)

    def _is_due(self, schedule: Schedule) -> bool:
        if schedule.opens:
            if self._count(schedule.opens.counter) < schedule.opens.at:
                self._wait_for(*schedule.opens)
                return False
            # No counter runs backwards, so a schedule that has opened stays open.
            self._schedule = replace(schedule, opens=None)
        if schedule.closes and self._count(schedule.closes.counter) >= schedule.closes.at:
            self.next = inf
            return False
        every = schedule.every
        if every is None:
            return True
        count = self._count(every.counter)
        if count < self._due:
            return False
        previous = self._last
        self._last = every.multiple(count)
        self._due = every.compute_reached_count(self._last + 1)
        self._wait_for(every.counter, self._due)
        return self._last != previous

    def _count(self, counter: Counter) -> float:
        if counter == "firing":
            return self._visits - self._point.ahead
        if counter == "s":
            return self._run.seconds() - self._began
        if counter == "samples":
            return self._run.samples
        if counter == "tokens":
            return self._run.tokens
        if counter == "it":
            return self._run.iter
        return self._run.epoch

    def _wait_for(self, counter: Counter, count: float) -> None:
        if counter == "it" and not self._counts_visits:
            self.next = count

    def state_dict(self) -> dict[str, Any]:
        every = (self._schedule or self._make_schedule()).every
        state = {
            "last": self._last,
            "visits": self._visits,
            "every": every.as_list() if every else None,
        }
        if self._is_spent:
            return {**state, "spent": True}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned, maybe with another `every`.

        Seconds begin anew with this process.
        """
        self._visits = state["visits"]
        self._is_spent = self._written.once and state.get("spent", False)
        every = self._make_schedule().every
        if every is not None and every.counter != "s":
            same = state["every"] == every.as_list()
            self._last = state["last"] if same else self._compute_passed_multiple(every)
        self.next = 0
        self._due = 0
        self._schedule = None

    def begin_here(self) -> None:
        """Begin at the present counts; multiples that they have passed are not made up for."""
        self.next = 0
        self._due = 0
        every = self._make_schedule().every
        if every is not None and every.counter in ("it", "ep", "samples", "tokens"):
            self._last = self._compute_passed_multiple(every)

    def _compute_passed_multiple(self, every: Measure) -> int:
        """Return the multiple that the latest visit of the point was in."""
        count = self._count(every.counter)
        # At a point that is ahead of its iteration, the count is that of the visit to come. The
        # count of firings leaves it out by itself.
        if self._point.ahead and every.counter != "firing":
            count -= 1
        return every.multiple(count)


class ThrottledTrigger(ScheduledTrigger):
    """The trigger of a throttled hook.

    It fires one time out of `every[hook]` times that it is due.
    """

    def __init__(
        self,
        binding: Binding,
        point: Point,
        run: RunState,
        holds: Holds | None,
        every: Mapping[str, int],
    ):
        super().__init__(binding, point, run, holds)
        self._hook = binding.hook
        self._every = every
        self._due_times = 0

    def _is_firing(self, schedule: Schedule) -> bool:
        if not super()._is_firing(schedule):
            return False
        self._due_times += 1
        return self._due_times % self._every[self._hook] == 0

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "due_times": self._due_times}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._due_times = state.get("due_times", 0)


def make_triggers(
    plan: Plan, run: RunState, condition: Callable[[Binding], Holds], every: Mapping[str, int]
) -> dict[int, ScheduledTrigger]:
    """Return the trigger of each binding that has one, by its id; `condition` compiles a `when`.

    The second half of an `around_X` has none: what was entered is left. `every` says how often
    throttled hooks fire.
    """
    result: dict[int, ScheduledTrigger] = {}
    for binding in plan.bindings:
        point = plan.points[binding.point]
        holds = condition(binding) if binding.trigger.when else None
        if is_thinned(plan, binding):
            result[binding.id] = ThrottledTrigger(binding, point, run, holds, every)
        elif binding.half != "exit" and str(binding.trigger):
            result[binding.id] = ScheduledTrigger(binding, point, run, holds)
    return result


@dataclass
class LatestScalars:
    """The latest value of each number that is logged in a run, or is a single output.

    Only numbers that conditions or hooks name are kept. They are in a checkpoint, too.
    """

    plan: Plan
    state: RunState
    strategy: ParallelStrategy
    device: torch.device
    rank: int

    def __post_init__(self) -> None:
        watched: set[str] = set()
        for binding in self.plan.bindings:
            if binding.trigger.when:
                watched.update(binding.trigger.when.names)
            for slot in binding.reads:
                if slot.startswith(SCALAR_PREFIX):
                    watched.add(slot.removeprefix(SCALAR_PREFIX))
        self.watched = frozenset(watched)
        """The names in conditions, and those of numbers that hooks declare to read."""
        self._latest: dict[str, float | Tensor] = {}
        self._times: dict[str, int] = {}
        self._others: set[str] = set()
        self._unseen: dict[tuple[str, str], str] = {}

    def log(self, name: str, value: float | Tensor) -> None:
        if name in self.watched:
            self._latest[name] = value
            self._times[name] = self._times.get(name, 0) + 1
        elif self.watched:
            self._others.add(name)

    def latest(self, name: str) -> float:
        """Return the latest number of a name.

        Raises UserError where none was logged, or no hook declares the name.
        """
        if name not in self.watched:
            hint = (
                f'declare it: reads = ["{SCALAR_PREFIX}{name}"] in the table of the hook, or in its'
                " class"
            )
            raise UserError(
                Problem(f'no hook declares that it reads the number "{name}"', hint=hint)
            )
        if name not in self._latest:
            hint = nearest_or_all(name, sorted({*self._latest, *self._others}), none="none yet")
            raise UserError(Problem(f'no number "{name}" has been logged', hint=hint))
        return _number(self._latest[name], name)

    def count(self, name: str) -> int:
        """Return how often a watched number has been logged, or was an output."""
        return self._times.get(name, 0)

    def take(self, outputs: Mapping[str, Any]) -> None:
        """Take the single numbers among a training iteration's outputs.

        They stay on the device that has computed them.
        """
        if not self.watched:
            return
        for name, value in outputs.items():
            if isinstance(value, int | float) or (isinstance(value, Tensor) and value.numel() == 1):
                self.log(name, scalar(value, name) if name in self.watched else 0.0)

    def condition(self, binding: Binding) -> Holds:
        """Return a function that says whether the `when` of a binding holds now."""
        condition = binding.trigger.when
        assert condition is not None, "who has none asks for none"
        on_all = self.plan.hook(binding.hook).ranks == "all"
        over_ranks = self.strategy.several and on_all and binding.point != "on_log"
        named = sorted(
            name
            for name in condition.names
            if name not in RUN_FACTS and not name.startswith(METRIC_PREFIX)
        )

        def holds() -> bool:
            numbers: Mapping[str, float | Tensor] = self._latest
            if over_ranks and named:
                numbers = self._average_over_ranks(named)

            def look(name: str) -> float | None:
                value = self._value(name, numbers)
                if value is None:
                    self._unseen[binding.hook, name] = condition.text
                return value

            return condition(look)

        return holds

    def _average_over_ranks(self, names: Sequence[str]) -> Mapping[str, float]:
        """Return the mean of each number over the ranks that have it.

        All must ask, and each waits for the others.
        """
        latest = self._latest
        own = [
            (_number(latest[name], name), 1.0) if name in latest else (0.0, 0.0) for name in names
        ]
        sums = torch.tensor(own, dtype=sum_dtype(self.device), device=self.device)
        result = self.strategy.all_reduce(sums, self.device)
        return {
            name: total / ranks
            for name, (total, ranks) in zip(names, result.tolist(), strict=True)
            if ranks
        }

    def _value(self, name: str, numbers: Mapping[str, float | Tensor]) -> float | None:
        run = self.state
        if name == "rank":
            return float(self.rank)
        if name == "max_epochs" and run.max_epochs is None:
            return float(run.epoch_lengths.epochs(run.max_iters))
        if name in RUN_FACTS:
            return float(getattr(run, name))
        value = numbers.get(name, run.metrics.get(name.removeprefix(METRIC_PREFIX)))
        if value is None:
            return None
        return _number(value, name)

    def list_complaints(self) -> Iterator[str]:
        """Yield a line for each name in a condition that has no value yet."""
        metrics = self.state.metrics
        known = {
            *self._latest,
            *self._others,
            *metrics,
            *(f"{METRIC_PREFIX}{name}" for name in metrics),
        }
        for (hook, name), text in self._unseen.items():
            if self._value(name, self._latest) is None:
                hint = nearest_or_all(name, sorted(known))
                yield (
                    f'hook "{hook}": nobody has ever logged the "{name}" of its condition "{text}";'
                    f" {hint}"
                )

    def state_dict(self) -> dict[str, Any]:
        return {"latest": dict(self._latest), "times": dict(self._times)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned.

        The conditions of that run may have named other numbers.
        """
        latest = state["latest"]
        self._latest = {name: value for name, value in latest.items() if name in self.watched}
        self._times = dict(state["times"])


def _number(value: Any, name: str) -> float:
    return as_number(value, f'"{name}" in a condition')
