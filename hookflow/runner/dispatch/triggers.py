"""Triggers as the run asks them: `every`, `from` and `until` by `hookflow.graph.schedule`, and then `when`.

`when` is asked last, and only where all else says that the binding is due: so beside an `every` it costs nothing in
between. A multiple at which the condition does not hold is spent: the next chance is the next multiple.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import astuple, replace
from math import inf
from typing import Any, Protocol

from hookflow.graph.plan import Binding, Plan
from hookflow.graph.points import Point
from hookflow.graph.schedule import Counter, Measure, Schedule, Totals

Holds = Callable[[], bool]


class Progress(Protocol):
    """What a trigger looks at; a total of 0 is not known yet."""

    iter: int
    epoch: int
    max_iters: int
    iters_per_epoch: int

    def seconds(self) -> float:
        """Return a clock."""


class Trigger:
    """One binding's trigger; call it at a visit of the point to learn whether the binding fires.

    `next` spares calls: while `iter` is below it, the answer is no, and the visit need not be asked. It is 0 where that
    is not known, and `inf` once the binding can never fire again. At a point that counts its firings it is 0 until
    then: each call is one firing.
    """

    def __init__(self, binding: Binding, point: Point, run: Progress, holds: Holds | None = None) -> None:
        self.next: float = 0
        self._written = binding.trigger
        self._point = point
        self._run = run
        self._holds = holds
        self._began = run.seconds()
        self._counts_visits = point.unit == "firing"
        self._visits = 0
        self._schedule: Schedule | None = None
        self._last = -1 if point.ahead else 0
        self._due: float = 0
        """The count at which `every` may enter another multiple."""

    def __call__(self) -> bool:
        if self.next == inf:
            return False
        self._visits += self._counts_visits
        return self._is_due(self._schedule or self._scheduled()) and (self._holds is None or self._holds())

    def _scheduled(self) -> Schedule:
        """Work the schedule out, at the first visit: a run that only validates learns its totals from the checkpoint.

        Before that nothing is done, and any totals tell as much.
        """
        self._schedule = self._worked_out()
        return self._schedule

    def _worked_out(self) -> Schedule:
        run = self._run
        totals = Totals(iters=run.max_iters or 1, iters_per_epoch=run.iters_per_epoch or 1)
        return Schedule.of(self._written, self._point, totals)

    def _is_due(self, schedule: Schedule) -> bool:
        """Say whether all but `when` lets the binding fire at this visit."""
        if schedule.opens:
            if self._count(schedule.opens.counter) < schedule.opens.at:
                self._wait_for(*schedule.opens)
                return False
            self._schedule = replace(schedule, opens=None)  # no counter runs backwards: it is not asked again
        if schedule.closes and self._count(schedule.closes.counter) >= schedule.closes.at:
            self.next = inf
            return False
        every = schedule.every
        if every is None:
            return True
        count = self._count(every.counter)
        if count < self._due:
            return False
        entered, self._last = self._last, every.multiple(count)
        self._due = every.reached(self._last + 1)
        self._wait_for(every.counter, self._due)
        return entered != self._last

    def _count(self, counter: Counter) -> float:
        match counter:
            case "it":
                return self._run.iter
            case "ep":
                return self._run.epoch
            case "s":
                return self._run.seconds() - self._began
            case "firing":
                return self._visits - self._point.ahead

    def _wait_for(self, counter: Counter, count: float) -> None:
        if counter == "it" and not self._counts_visits:
            self.next = count

    def state_dict(self) -> dict[str, Any]:
        """Return the multiple that the count has entered, of what, and how often the point was visited."""
        every = self._worked_out().every
        return {"last": self._last, "visits": self._visits, "every": list(astuple(every)) if every else None}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned, maybe of a run that had another `every` here, or none.

        Seconds are counted anew, from the start of this process.
        """
        self._visits = state["visits"]
        every = self._worked_out().every
        if every is not None and every.counter != "s":
            same = state["every"] == list(astuple(every))
            self._last = state["last"] if same else self._passed(every)
        self.next, self._due, self._schedule = 0, 0, None

    def begin_here(self) -> None:
        """Begin in a run that has got as far as its counters say: the multiples that they have passed are spent."""
        every = self._worked_out().every
        if every is not None and every.counter in ("it", "ep"):
            self._last = self._passed(every)

    def _passed(self, every: Measure) -> int:
        """Return the multiple that the latest visit of the point was in."""
        ahead = self._point.ahead and every.counter != "firing"  # the count of firings leaves the next one out itself
        return every.multiple(self._count(every.counter) - ahead)


def make_triggers(plan: Plan, run: Progress, condition: Callable[[Binding], Holds]) -> dict[int, Trigger]:
    """Return the trigger of each binding that has one, by the binding's id; `condition` makes a question of a `when`.

    What was entered is left, so that the second half of an `around_X` has none.
    """
    return {
        binding.id: Trigger(
            binding, plan.points[binding.point], run, condition(binding) if binding.trigger.when else None
        )
        for binding in plan.bindings
        if str(binding.trigger) and binding.half != "exit"
    }
