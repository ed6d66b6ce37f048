"""Single iterations in a trace, and their totals.

`hookflow.runner.logging.capture` writes the traces.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hookflow.events.reading import read_object, read_regular
from hookflow.events.records import BACKGROUND, DEVICE, PHASES
from hookflow.monitor.background_lanes import BackgroundLane, LaneFiring, read_lanes
from hookflow.monitor.critical_chain import TRAINING, ChainLink, TrainingWait, find_critical_chain
from hookflow.monitor.state import RunState

ROUNDING_MICROSECONDS = 0.01
"""Microseconds by which a span may seem to begin before the one ahead of it has ended."""

WAIT = "wait"
"""The category of the events in which the training thread waited for an offloaded hook."""

IN_HOOKS = ("hook", "wait")
"""Kinds of spans whose time is that of hooks."""

HOST_TRACK = 0
"""The track of a trace with the times of the training thread."""


@dataclass(slots=True)
class SpanGroup:
    """The spans of one name at one place within the same span.

    `kind` is the name of a phase, "hook", "wait" (of the training thread for an offloaded hook),
    "background" (an offloaded hook in its own thread) or "outside". `point` is where a hook fires.
    `parts` has begin and duration of each, in microseconds from the begin of the iteration.
    `device` are the microseconds that it took on an accelerator; None where there is none. `nested`
    are the microseconds of the spans directly within it.
    """

    name: str
    kind: str
    depth: int
    point: str = ""
    parts: list[tuple[float, float]] = field(default_factory=list)
    device: float | None = None
    nested: float = 0.0
    queued: list[tuple[float, float]] = field(default_factory=list)
    """Begin and duration of the times in which firings of an offloaded hook were queued."""
    chain: list[tuple[float, float]] = field(default_factory=list)
    """Begin and duration of what is on the critical chain."""
    since: int = 0
    """The iteration of an offloaded hook's first firing here.

    It is 0 unless that is an earlier iteration.
    """

    @property
    def title(self) -> str:
        """The name in words, without the point."""
        if self.kind == "wait":
            return f"wait for {self.name}"
        if self.kind != "background":
            return self.name
        if self.since:
            return f"{self.name} in background, since {self.since:,}"
        return f"{self.name} in background"

    @property
    def label(self) -> str:
        if self.point:
            return f"{self.title} @ {self.point}"
        return self.title

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
    """A traced iteration, its microseconds, and its spans in the order in which they began.

    `device` are its microseconds on an accelerator; None where there is none. `has_lanes` says
    whether offloaded hooks were at work, or waited for: else the whole training thread is the
    critical chain.
    """

    it: int
    micros: float
    rows: Sequence[SpanGroup]
    device: float | None = None
    has_lanes: bool = False


@dataclass(frozen=True, slots=True)
class TracedTotal:
    """The microseconds of a phase or a hook in one traced iteration, and in the mean of all.

    Neither has the time of other hooks that were called within it. `share` is that of the mean
    iteration.
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
        return traced_iterations([event for event in events if event["ph"] == "X"])
    except OSError as error:
        return f"{path.name} cannot be read: {error.strerror}"
    except (KeyError, TypeError, ValueError):
        return f"{path.name} is no trace of hookflow"


def traced_iterations(spans: Sequence[Event]) -> list[TracedIteration]:
    """Return the iterations among the spans of a trace.

    Raises KeyError, TypeError or ValueError for other ones.
    """
    host = _group_by_iteration(
        event for event in spans if event.get("tid", HOST_TRACK) == HOST_TRACK
    )
    device = _group_by_iteration(event for event in spans if event.get("tid", HOST_TRACK) == DEVICE)
    lanes = read_lanes(event for event in spans if event.get("tid", HOST_TRACK) >= BACKGROUND)
    result = []
    for it in sorted(host):
        traced = _make_traced_iteration(it, host[it], device.get(it, []))
        _add_lanes(traced, float(host[it][0]["ts"]), lanes)
        result.append(traced)
    return result


def _group_by_iteration(events: Iterable[Event]) -> dict[int, list[Event]]:
    """Return the events of each whole iteration.

    The iteration comes first, and then the others as they began, an outer one first.
    """
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


def _make_traced_iteration(it: int, host: list[Event], device: list[Event]) -> TracedIteration:
    micros = float(host[0]["dur"])
    rows = _group_spans(host[1:], float(host[0]["ts"]), micros)
    if not device:
        return TracedIteration(int(it), micros, rows)
    device_micros = float(device[0]["dur"])
    on_device = _group_spans(device[1:], float(device[0]["ts"]), device_micros)
    # Spans are matched by the label alone: work on the device is not nested as its launches are.
    by_label = {row.label: row.total for row in on_device}
    for row in rows:
        row.device = by_label.get(row.label)
    return TracedIteration(int(it), micros, rows, device_micros)


def _group_spans(events: list[Event], start: float, micros: float) -> list[SpanGroup]:
    """Return the spans of an iteration of so many `micros` from `start` on.

    Spans of one name are joined in one.
    """
    rows: dict[tuple[str, ...], SpanGroup] = {}
    open_spans: list[tuple[float, tuple[str, ...]]] = []  # the end of each, and its key
    for event in events:
        begin = float(event["ts"]) - start
        duration = float(event["dur"])
        while open_spans and open_spans[-1][0] <= begin + ROUNDING_MICROSECONDS:
            open_spans.pop()
        group = _group_of(event)
        if group.kind == "wait" and begin >= micros:
            group = SpanGroup(group.title, "outside", 0)
        key: tuple[str, ...] = (group.label,)
        if open_spans:
            outer = open_spans[-1][1]
            rows[outer].nested += duration
            key = (*outer, group.label)
        if key not in rows:
            group.depth = len(open_spans)
            rows[key] = group
        rows[key].parts.append((begin, duration))
        open_spans.append((begin + duration, key))
    return list(rows.values())


def _group_of(event: Event) -> SpanGroup:
    """Return an empty group for an event of the training thread."""
    name = str(event["name"])
    place = str(event["cat"])
    if place == "outside":
        return SpanGroup(name, "outside", 0)
    if place == "phase":
        kind = name if name in PHASES else "other"
        return SpanGroup(name, kind, 0)
    if place == WAIT:
        return SpanGroup(name, "wait", 0)
    return SpanGroup(name, "hook", 0, place)


def _add_lanes(traced: TracedIteration, start: float, lanes: Sequence[BackgroundLane]) -> None:
    """Add the rows of offloaded hooks to an iteration that began at `start`.

    The critical chain is marked on all rows.
    """
    firings = {}
    for lane in lanes:
        of_hook = lane.firings_within(start, traced.micros)
        if of_hook:
            firings[lane.hook] = of_hook
    waits = []
    for row in traced.rows:
        if row.kind == "wait":
            waits += [
                TrainingWait(row.name, begin, begin + duration) for begin, duration in row.parts
            ]
    links = find_critical_chain(traced.micros, waits, firings)
    in_training = [link for link in links if link.track == TRAINING]
    for row in traced.rows:
        if row.kind != "outside":
            row.chain = _overlaps(row.parts, in_training)
    lane_rows = []
    for hook, of_hook in firings.items():
        row = _lane_row(hook, of_hook, traced)
        row.chain = [(link.begin, link.end - link.begin) for link in links if link.track == hook]
        lane_rows.append(row)
    traced.rows = [*traced.rows, *lane_rows]
    traced.has_lanes = bool(firings or waits)


def _lane_row(hook: str, firings: Sequence[LaneFiring], traced: TracedIteration) -> SpanGroup:
    """Return the row of an offloaded hook, with what of its firings lies in the iteration."""
    row = SpanGroup(hook, "background", 0)
    for firing in firings:
        row.queued += _within(traced.micros, firing.queued, firing.began)
        row.parts += _within(traced.micros, firing.began, firing.ended)
    if firings[0].it < traced.it:
        row.since = firings[0].it
    return row


def _within(micros: float, begin: float, end: float) -> list[tuple[float, float]]:
    """Return begin and duration of the part of a span that is in an iteration, in a list.

    The list is empty if no part is.
    """
    begin = max(begin, 0.0)
    end = min(end, micros)
    if begin < end:
        return [(begin, end - begin)]
    return []


def _overlaps(
    parts: Sequence[tuple[float, float]], links: Sequence[ChainLink]
) -> list[tuple[float, float]]:
    """Return begin and duration of what lies both in `parts` and in `links`."""
    result = []
    for begin, duration in parts:
        for link in links:
            first = max(begin, link.begin)
            last = min(begin + duration, link.end)
            if last - first > ROUNDING_MICROSECONDS:
                result.append((first, last - first))
    return result


def total_by_phase(traced: Sequence[TracedIteration], place: int) -> list[TracedTotal]:
    """Return what each phase took in the iteration at a place, the longest first.

    Hooks are taken out of the phases, and are one of them.
    """
    return _compute_totals([_phase_times(iteration) for iteration in traced], traced, place)


def total_by_hook(traced: Sequence[TracedIteration], place: int) -> list[TracedTotal]:
    """Return what each hook took in the iteration at a place at all of its points.

    The longest comes first.
    """
    return _compute_totals([_hook_times(iteration) for iteration in traced], traced, place)


def _phase_times(iteration: TracedIteration) -> dict[str, float]:
    """Return the microseconds of each phase; what no span has is "other"."""
    times = dict.fromkeys(PHASES, 0.0)
    for row in iteration.rows:
        if row.kind in IN_HOOKS:
            times["hooks"] += row.own
        elif row.kind in times:
            times[row.kind] += row.own
    times["other"] += max(iteration.micros - sum(times.values()), 0.0)
    return times


def _hook_times(iteration: TracedIteration) -> dict[str, float]:
    times: dict[str, float] = {}
    for row in iteration.rows:
        if row.kind in IN_HOOKS:
            times[row.name] = times.get(row.name, 0.0) + row.own
    return times


def _compute_totals(
    times: Sequence[Mapping[str, float]], traced: Sequence[TracedIteration], place: int
) -> list[TracedTotal]:
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
        result.append(
            TracedTotal(name, kind, times[place].get(name, 0.0), total / len(times), share)
        )
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
