"""The cost of each row of the loop: how often it fires, how long it takes, against its own past, and its share.

A trace has the same of single iterations, as a run writes it (see `hookflow.runner.logging.capture`).
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hookflow.events.reading import read_object, read_regular
from hookflow.events.records import DEVICE, PHASES
from hookflow.graph.plan import Binding, Plan
from hookflow.graph.render.loop import Row
from hookflow.monitor.durations import ITERATION, WINDOW, usual
from hookflow.monitor.health import Pace
from hookflow.monitor.state import RunState
from hookflow.numbers import aligned, percent

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
    p95: float | None = None
    longest: float | None = None


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
    device, recent = state.first.device.firing(binding.id), lately.count > 0
    p50, p95 = shown.percentile(0.5), shown.percentile(0.95)
    return Cost(every, timing.count, p50, ratio, share, recent, slower, device, p95, shown.longest)


def of_bindings(state: RunState, plan: Plan, written: Callable[[Cost, bool], str]) -> dict[int, str]:
    """Return what the bindings took in the attempt, `written` with whether the run has times on a device."""
    pace, has_device = Pace.of(state), state.first.device.iteration() is not None
    costs = {binding.id: cost_of(state, plan, pace, binding, whole=True) for binding in plan.bindings}
    return {id_: written(cost, has_device) for id_, cost in costs.items() if cost.ns is not None}


def in_columns(cost: Cost, has_device: bool) -> str:
    """Return firings, median and share of the iterations, and before that the mean on the device, if runs have any."""
    share = "·" if cost.share is None else percent(cost.share)
    device = f"{aligned(cost.device) if cost.device else '':>8} " * has_device
    return f"{cost.count:>9,} {aligned(cost.ns or 0.0)} {device}{share:>5}"


def _of_phase(state: RunState, pace: Pace, name: str, whole: bool) -> Cost:
    minute = state.first.minute
    before = usual(state.histories.of(name).means(state.it + 1, PARTS))
    count = minute.sums["iters"]
    if not count or not before:
        return Cost()
    lately = minute.sums["ns"] / count * (1.0 if name == ITERATION else pace.phases[name])
    booked = state.first.attempt.booked
    shares = {phase: ns / (sum(booked.values()) or 1) for phase, ns in booked.items()} if whole else pace.phases
    share = 1.0 if name == ITERATION else shares[name]
    done = state.it - state.attempts[-1].begin if name == ITERATION and state.attempts else 0
    times = state.first.device
    device = times.iteration() if name == ITERATION else times.phase(name)
    ratio = minute.usual("ns" if name == ITERATION else name) / before  # medians, in which spikes weigh nothing
    return Cost("", done, before if whole else lately, ratio, share, True, device=device)


def written(plan: Plan, binding: Binding) -> str:
    """Return how often a binding fires, in a few characters: "1 it", "2 ep", "once", "each" time."""
    point, every = plan.points[binding.point], binding.trigger.every
    unit = point.unit
    if unit == "firing":
        unit = next((short for part, short in PLACES.items() if part in point.name), "")
    if every is None:
        return f"1 {unit}" if unit else "once" if point.kind == "standard" else "each"
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

ROUNDING = 0.01
"""Microseconds by which a span may seem to begin before the one ahead of it has ended."""


@dataclass(slots=True)
class Spans:
    """The spans of one name at one place within the same span.

    `kind` is the name of a phase, "hook" or "outside". `parts` has begin and duration of each, in microseconds from the
    begin of the iteration. `device` are the microseconds that it took on an accelerator; None where there is none.
    """

    name: str
    kind: str
    depth: int
    parts: list[tuple[float, float]] = field(default_factory=list)
    device: float | None = None

    @property
    def total(self) -> float:
        return sum(duration for _, duration in self.parts)


@dataclass(slots=True)
class Traced:
    """A traced iteration, how many microseconds it took, and its spans in the order in which they began.

    `device` are its microseconds on an accelerator; None where there is none.
    """

    it: int
    micros: float
    rows: Sequence[Spans]
    device: float | None = None


def read_trace(path: Path) -> list[Traced] | str:
    """Return the iterations of a trace, or why there are none: a file may hold anything."""
    try:
        events = read_object(read_regular(path))["traceEvents"]
        spans = [event for event in events if event["ph"] == "X"]
        tracks = [_by_iteration(event for event in spans if event.get("tid", 0) == track) for track in (0, DEVICE)]
        return [_traced(it, host, tracks[1].get(it, [])) for it, host in sorted(tracks[0].items())]
    except OSError as error:
        return f"{path.name} cannot be read: {error.strerror}"
    except (KeyError, TypeError, ValueError):
        return f"{path.name} is no trace of hookflow"


def _by_iteration(events: Iterable[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    """Return the events of each whole iteration, its own first, and the others as they began, an outer one first."""
    result: dict[int, list[dict[str, Any]]] = {}
    for event in sorted(events, key=lambda event: (event["name"] != "iteration", event["ts"], -event["dur"])):
        it = event["args"]["iteration"]
        if event["name"] == "iteration":
            result[it] = [event]
        elif it in result:
            result[it].append(event)
    return result


def _traced(it: int, host: list[dict[str, Any]], device: list[dict[str, Any]]) -> Traced:
    rows = _rows(host[1:], float(host[0]["ts"]))
    beside = _rows(device[1:], float(device[0]["ts"])) if device else []
    micros = {row.name: row.total for row in beside}  # by name alone: work that waits is not nested as its launches are
    for row in rows:
        row.device = micros.get(row.name)
    return Traced(int(it), float(host[0]["dur"]), rows, float(device[0]["dur"]) if device else None)


def _rows(events: list[dict[str, Any]], start: float) -> list[Spans]:
    rows: dict[tuple[str, ...], Spans] = {}
    around: list[tuple[float, tuple[str, ...]]] = []  # the spans that are open: end, and key
    for event in events:
        begin, duration = float(event["ts"]) - start, float(event["dur"])
        while around and around[-1][0] <= begin + ROUNDING:
            around.pop()
        name, place = str(event["name"]), str(event["cat"])
        kind = {"phase": name if name in PHASES else "other", "outside": "outside"}.get(place, "hook")
        label = f"{name} @ {place}" if kind == "hook" else name
        key = (*(around[-1][1] if around else ()), label)
        rows.setdefault(key, Spans(label, kind, len(around))).parts.append((begin, duration))
        around.append((begin + duration, key))
    return list(rows.values())
