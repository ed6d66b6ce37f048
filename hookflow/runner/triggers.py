"""When a binding fires: `every`, `from`, `until` and `when` of the pipeline file, asked in this order.

A position is how far the run has come, in the trigger's own unit. `every` fires whenever the position has entered
another multiple; so it needs to remember one number, which a checkpoint keeps.

`when` is asked last, and only where all else says that the binding is due: so beside an `every` it costs nothing in
between. A multiple at which the condition does not hold is spent: the next chance is the next multiple.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from hookflow.graph.plan import Binding, Plan
from hookflow.graph.points import Point
from hookflow.pipeline.units import Amount, parse_amount

Holds = Callable[[], bool]


class Progress(Protocol):
    """What a trigger looks at."""

    iter: int
    epoch: int
    max_iters: int
    iters_per_epoch: int

    def seconds(self) -> float:
        """Return a clock."""


class Trigger:
    """One binding's trigger; call it at each visit of the point to learn whether the binding fires.

    At a `before_X` the position is what has been done, so the first visit is at 0 and fires. It is the same at all the
    points inside an iteration, module points among them: that iteration is not done yet. At every other point it
    includes what has just been done, so `every = 50` at `after_train_iter` fires after 50 iterations.
    """

    def __init__(self, binding: Binding, point: Point, run: Progress, holds: Holds | None = None) -> None:
        self._run = run
        self._holds = holds
        self._before = point.ahead
        self._unit = point.unit
        self._began = run.seconds()
        self._visits = 0
        self.last = -1 if self._before else 0
        written = binding.trigger
        self._every = self._side(written.every)
        self._since = self._side(written.since)
        self._until = self._side(written.until)
        self._timed = written.every is not None and self._amount(written.every).unit == "s"

    def __call__(self) -> bool:
        self._visits += 1
        return self._is_time() and (self._holds is None or self._holds())

    def _is_time(self) -> bool:
        """Say whether `every`, `from` and `until` let the binding fire at this visit."""
        if self._since and self._since[1]() < self._since[0]:
            return False
        if self._until:
            amount, position = self._until
            if position() > amount or (self._before and position() == amount):
                return False
        if self._every is None:
            return True
        amount, position = self._every
        multiple = int(position() / amount + 1e-9)
        if multiple == self.last:
            return False
        self.last = multiple
        return True

    def _side(self, written: str | None) -> tuple[float, Callable[[], float]] | None:
        """Return an amount and the function that tells the position in its unit."""
        if written is None:
            return None
        amount = self._amount(written)
        return amount.value, self._position(amount.unit or self._unit)

    def _amount(self, written: str) -> Amount:
        return parse_amount(int(written) if written.isdigit() else written)

    def _position(self, unit: str) -> Callable[[], float]:
        run = self._run
        match unit:
            case "it":
                return lambda: run.iter
            case "ep" if self._unit == "ep":
                return lambda: run.epoch
            case "ep":
                return lambda: run.iter / run.iters_per_epoch
            case "%":
                return lambda: 100 * run.iter / run.max_iters
            case "s":
                return lambda: run.seconds() - self._began
            case _:
                return lambda: self._visits - self._before

    def state_dict(self) -> dict[str, int]:
        return {"last": self.last, "visits": self._visits}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Take back what `state_dict` returned. Seconds are counted anew, from the start of this process."""
        self._visits = state["visits"]
        if not self._timed:
            self.last = state["last"]


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
