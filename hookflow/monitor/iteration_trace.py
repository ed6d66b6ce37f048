"""Single iterations in a trace, as a run writes them (see `hookflow.runner.logging.capture`), and their totals."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hookflow.events.reading import read_object, read_regular
from hookflow.events.records import DEVICE, PHASES
from hookflow.monitor.state import RunState

ROUNDING = 0.01
"""Microseconds by which a span may seem to begin before the one ahead of it has ended."""

HOST = 0
"""The track of a trace with the times of the training thread."""


@dataclass(slots=True)
class SpanGroup:
    """The spans of one name at one place within the same span.

    `kind` is the name of a phase, "hook" or "outside". `parts` has begin and duration of each, in microseconds from the
    begin of the iteration. `device` are the microseconds that it took on an accelerator; None where there is none.
    `nested` are the microseconds of the spans directly within it.
    """

    name: str
    kind: str
    depth: int
    parts: list[tuple[float, float]] = field(default_factory=list)
    device: float | None = None
    nested: float = 0.0

    @property
    def total(self) -> float:
        """The microseconds of all its spans."""
        return sum(duration for _, duration in self.parts)

    @property
    def own(self) -> float:
        """The same without the spans within them."""
        return max(self.total - self.nested, 0.0)


@dataclass(slots=True)
class TracedIteration:
    """A traced iteration, how many microseconds it took, and its spans in the order in which they began.

    `device` are its microseconds on an accelerator; None where there is none.
    """

    it: int
    micros: float
    rows: Sequence[SpanGroup]
    device: float | None = None


@dataclass(frozen=True, slots=True)
class TracedTotal:
    """The time of a phase or a hook in one traced iteration, and in the mean of all of them, in microseconds.

    Neither has the time of other hooks that were called within it. `share` is that of the mean iteration.
    """

    name: str
    kind: str
    micros: float
    mean: float
    share: float


Event = dict[str, Any]


def read_trace(path: Path) -> list[TracedIteration] | str:
    """Return the iterations of a trace, or why there are none: a file may hold anything."""
    try:
        events = read_object(read_regular(path))["traceEvents"]
        spans = [event for event in events if event["ph"] == "X"]
        host = _by_iteration(event for event in spans if event.get("tid", HOST) == HOST)
        device = _by_iteration(event for event in spans if event.get("tid", HOST) == DEVICE)
        return [_traced_iteration(it, host[it], device.get(it, [])) for it in sorted(host)]
    except OSError as error:
        return f"{path.name} cannot be read: {error.strerror}"
    except (KeyError, TypeError, ValueError):
        return f"{path.name} is no trace of hookflow"


def _by_iteration(events: Iterable[Event]) -> dict[int, list[Event]]:
    """Return the events of each whole iteration, its own first, and the others as they began, an outer one first."""
    result: dict[int, list[Event]] = {}
    for event in sorted(events, key=_order_of):
        it = event["args"]["iteration"]
        if event["name"] == "iteration":
            result[it] = [event]
        elif it in result:
            result[it].append(event)
    return result


def _order_of(event: Event) -> tuple[bool, float, float]:
    return event["name"] != "iteration", event["ts"], -event["dur"]


def _traced_iteration(it: int, host: list[Event], device: list[Event]) -> TracedIteration:
    rows = _group_spans(host[1:], float(host[0]["ts"]))
    if not device:
        return TracedIteration(int(it), float(host[0]["dur"]), rows)
    on_device = _group_spans(device[1:], float(device[0]["ts"]))
    micros = {row.name: row.total for row in on_device}  # by name alone: work that waits is not nested as its launches
    for row in rows:
        row.device = micros.get(row.name)
    return TracedIteration(int(it), float(host[0]["dur"]), rows, float(device[0]["dur"]))


def _group_spans(events: list[Event], start: float) -> list[SpanGroup]:
    """Return the spans of an iteration that began at `start`, those of one name within the same span together."""
    rows: dict[tuple[str, ...], SpanGroup] = {}
    open_spans: list[tuple[float, tuple[str, ...]]] = []  # the end of each, and its key
    for event in events:
        begin = float(event["ts"]) - start
        duration = float(event["dur"])
        while open_spans and open_spans[-1][0] <= begin + ROUNDING:
            open_spans.pop()
        label, kind = _label_and_kind(event)
        key: tuple[str, ...] = (label,)
        if open_spans:
            outer = open_spans[-1][1]
            rows[outer].nested += duration
            key = (*outer, label)
        if key not in rows:
            rows[key] = SpanGroup(label, kind, len(open_spans))
        rows[key].parts.append((begin, duration))
        open_spans.append((begin + duration, key))
    return list(rows.values())


def _label_and_kind(event: Event) -> tuple[str, str]:
    name = str(event["name"])
    place = str(event["cat"])
    if place == "outside":
        return name, "outside"
    if place == "phase":
        return name, name if name in PHASES else "other"
    return f"{name} @ {place}", "hook"


def total_by_phase(traced: Sequence[TracedIteration], place: int) -> list[TracedTotal]:
    """Return what each phase took in the iteration at a place, without hooks, which are one of them; longest first."""
    return _totals([_phase_times(iteration) for iteration in traced], traced, place)


def total_by_hook(traced: Sequence[TracedIteration], place: int) -> list[TracedTotal]:
    """Return what each hook took in the iteration at a place at all of its points together; longest first."""
    return _totals([_hook_times(iteration) for iteration in traced], traced, place)


def _phase_times(iteration: TracedIteration) -> dict[str, float]:
    """Return the microseconds of each phase; what no span has is "other"."""
    times = dict.fromkeys(PHASES, 0.0)
    for row in iteration.rows:
        if row.kind == "hook":
            times["hooks"] += row.own
        elif row.kind != "outside":
            times[row.kind] += row.own
    times["other"] += max(iteration.micros - sum(times.values()), 0.0)
    return times


def _hook_times(iteration: TracedIteration) -> dict[str, float]:
    times: dict[str, float] = {}
    for row in iteration.rows:
        if row.kind == "hook":
            hook = row.name.partition(" @ ")[0]
            times[hook] = times.get(hook, 0.0) + row.own
    return times


def _totals(times: Sequence[Mapping[str, float]], traced: Sequence[TracedIteration], place: int) -> list[TracedTotal]:
    whole = sum(iteration.micros for iteration in traced)
    result = []
    names = dict.fromkeys(name for of_iteration in times for name in of_iteration)
    for name in names:
        total = sum(of_iteration.get(name, 0.0) for of_iteration in times)
        share = 0.0
        if whole:
            share = total / whole
        kind = "hooks"
        if name in PHASES:
            kind = name
        result.append(TracedTotal(name, kind, times[place].get(name, 0.0), total / len(times), share))
    return sorted(result, key=lambda each: each.mean, reverse=True)


def describe_progress(state: RunState, *, is_over: bool) -> str:
    """Return in words how far the trace is that was asked for last; empty where none is awaited."""
    requests = [request for request in state.requests.values() if request.cmd == "trace"]
    if not requests or is_over:
        return ""
    request = requests[-1]
    begun = max([state.run.get("t", 0.0), *(trace["t"] for trace in state.traces[-1:])])
    answer = request.answer
    if answer is None:
        is_awaited = request.at > begun
        if is_awaited:
            return "a trace is requested; the run has not answered yet"
        return ""
    if not answer["ok"] or answer["t"] <= begun:
        return ""
    return f"tracing {answer['note']}: {state.it:,} done"
