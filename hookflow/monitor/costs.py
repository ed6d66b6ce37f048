"""The cost of each row of the loop: how often it fires, how long it takes, against its own past, and its share."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hookflow.graph.plan import Binding, Plan
from hookflow.graph.render.loop import Row
from hookflow.monitor.durations import ITERATION, WINDOW, usual
from hookflow.monitor.health import Pace
from hookflow.monitor.state import RunState

COSTS = 0.01
"""The share of the iterations from which on a hook that has become slower is marked."""

ENOUGH = 3
"""Firings of the last minute that are compared with all of them."""

PARTS = 64
"""Parts of the run, of whose means the median is the past of a phase."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The costs of a row; None, or nothing, is what is not known of it, or makes no sense.

    `ns` is the median of its firings, of a phase the mean. `device` is the mean on an accelerator, of the last minute.
    `ratio` is its last minute by its past. `share` is that of the iterations. `recent`: it has fired in the last
    minute. `slower`: it has become slower, and that costs something.
    """

    every: str = ""
    count: int = 0
    ns: float | None = None
    ratio: float | None = None
    share: float | None = None
    recent: bool = False
    slower: bool = False
    device: float | None = None


def since(state: RunState, plan: Plan, binding: Binding) -> float:
    """Return when the window of a binding begins: what fires in iterations is seen in those of the last minute."""
    return (state.first.trained if plan.points.in_iteration(binding.point) else state.now) - WINDOW


def cost(state: RunState, plan: Plan, pace: Pace, row: Row, whole: bool) -> Cost:
    """Return the cost of a row, of the last minute or of the `whole` attempt; a round but the iteration has none."""
    if row.binding:
        return cost_of(state, plan, pace, row.binding, whole)
    if row.kind == "phase" or row.name == ITERATION:
        return _of_phase(state, pace, row.name, whole)
    return Cost()


def cost_of(state: RunState, plan: Plan, pace: Pace, binding: Binding, whole: bool) -> Cost:
    """Return the cost of a binding, of the last minute or of the `whole` attempt."""
    timing, inside = state.first.timing(binding.id), plan.points.in_iteration(binding.point)
    every = written(plan, binding)
    if not timing.count:
        return Cost(every)
    begin = since(state, plan, binding)
    lately, always = timing.firings(begin), timing.firings()
    shown = always if whole or not lately.count else lately
    ratio = None
    if timing.slower:
        ratio = timing.slower.ns / timing.slower.usual
    elif lately.count >= ENOUGH and (past := always.percentile(0.5)):
        ratio = lately.percentile(0.5) / past
    spent, of = (timing.total, state.iterating) if whole else (timing.spent(begin), pace.whole)
    share = spent / of if inside and of else None
    slower = timing.slower is not None and (share or 0.0) >= COSTS
    device = state.first.device.firing(binding.id)
    return Cost(every, timing.count, shown.percentile(0.5), ratio, share, lately.count > 0, slower, device)


def _of_phase(state: RunState, pace: Pace, name: str, whole: bool) -> Cost:
    minute = state.first.minute
    before = usual(state.histories.of(name).means(state.it + 1, PARTS))
    count = minute.sums["iters"]
    if not count or not before:
        return Cost()
    lately = (minute.sums["ns"] if name == ITERATION else minute.booked[name]) / count
    booked = state.first.attempt.booked
    shares = {phase: ns / (sum(booked.values()) or 1) for phase, ns in booked.items()} if whole else pace.phases
    share = 1.0 if name == ITERATION else shares[name]
    done = state.it - state.attempts[-1].begin if name == ITERATION and state.attempts else 0
    times = state.first.device
    device = times.iteration() if name == ITERATION else times.phase(name)
    ratio = minute.usual("ns" if name == ITERATION else name) / before  # medians, in which spikes weigh nothing
    return Cost("", done, before if whole else lately, ratio, share, True, device=device)


def written(plan: Plan, binding: Binding) -> str:
    """Return how often a binding fires, in a few characters: "1 it", "2 ep", "once"."""
    point, every = plan.points[binding.point], binding.trigger.every
    unit = point.unit
    if unit == "firing":
        unit = next((short for part, short in PLACES.items() if part in point.name), "")
    if every is None:
        return f"1 {unit}" if unit else "once"
    match = re.fullmatch(r"([\d.]+)\s*(\D*)", every)
    return f"{match[1]} {match[2] or unit}" if match else every


PLACES = {
    "_val_iter": "bat",
    "_test_iter": "bat",
    "_predict_iter": "bat",
    "_val": "val",
    "_test": "test",
    "save": "save",
    "copy": "save",
}
"""Units in which the firings of a point are counted, by a part of the point's name."""
