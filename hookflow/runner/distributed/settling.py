"""After which iterations ranks wait for one another: where hooks fire inside one that may ask for something.

Hooks fire in lockstep and mostly decide alike, so what they ask for then happens at once, on all ranks. A hook says by
the slots that it writes that it may ask: "control" (a stop, the end of the epoch) or "checkpoint" (a save). What any
other asks for, and what one rank alone is asked for, is heard at the next exchange between iterations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hookflow.graph.plan import Binding, Plan
from hookflow.graph.points import Point
from hookflow.pipeline.units import parse_amount

ASKING = frozenset({"control", "checkpoint"})


def settled_iterations(plan: Plan, iters_per_epoch: int, max_iters: int) -> Callable[[int], bool] | None:
    """Return what says, of the number of iterations done, whether ranks wait for one another there; None if never.

    It looks at nothing but that number, as it must be the same on all ranks: so a trigger in seconds has no place in
    it, and one with a condition may fire whenever its `every` does.
    """
    asking = [binding for binding in plan.bindings if _may_ask(binding, plan)]
    units = {"it": 1.0, "ep": float(iters_per_epoch), "%": max_iters / 100}
    periods = {period for binding in asking if (period := _period(binding, plan.points[binding.point], units))}
    if not periods:
        return None
    return lambda iteration: any(_ends(iteration - ahead, period) for period, ahead in periods)


def _period(binding: Binding, point: Point, units: Mapping[str, float]) -> tuple[float, bool] | None:
    """Return every how many iterations a binding may fire, and whether it does so before each of these; None if never.

    What has no `every`, or one that counts firings, may fire in each iteration.
    """
    if (every := binding.trigger.every) is None:
        return 1.0, False
    amount = parse_amount(int(every) if every.isdigit() else every)
    unit = amount.unit or point.unit
    if unit == "s":
        return None
    return (amount.value * units[unit], point.ahead) if unit in units else (1.0, False)


def _ends(position: int, period: float) -> bool:
    """Say whether a position is the first of another multiple, as a trigger does; 0 is one."""
    return position == 0 or (position > 0 and int(position / period + 1e-9) != int((position - 1) / period + 1e-9))


def _may_ask(binding: Binding, plan: Plan) -> bool:
    within = plan.points.in_iteration(binding.point) and plan.hook(binding.hook).ranks == "all"
    return within and not ASKING.isdisjoint(binding.writes)
