"""Where the time of an iteration goes: the phases and hooks of the training thread, by a run's means or by a trace."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hookflow.errors import Problem, UserError, first_few
from hookflow.events.log import event_log
from hookflow.events.reading import read_object, read_regular
from hookflow.events.records import Record
from hookflow.events.rundir import RunDir, run_argument, short
from hookflow.graph.plan import Binding, Plan
from hookflow.graph.render.loop import Row, rows

TRAINING_KINDS = ("standard", "step", "optimizer", "parameter", "comm")
"""Kinds of points that, within an iteration, fire in training alone."""


@dataclass(slots=True)
class TimeSpan:
    """A phase or a hook in an iteration.

    `parts` has the begin of each piece, counted from that of the iteration, and its duration, both in ns. `point` is
    where a hook fires; it is empty for a phase. `depth` is how many spans are around it.
    """

    name: str
    point: str = ""
    depth: int = 0
    parts: list[tuple[float, float]] = field(default_factory=list)

    @property
    def begin(self) -> float:
        return self.parts[0][0]

    @property
    def total(self) -> float:
        """The ns of all parts."""
        return sum(duration for _, duration in self.parts)

    @property
    def label(self) -> str:
        if self.point:
            return f"{self.name} at {self.point}"
        return self.name


@dataclass(frozen=True, slots=True)
class IterationTimes:
    """An iteration of `total` ns, and its spans in the order in which they begin.

    Of means, `num_iterations` are those that they are taken over, and `background` are the hooks that fire beside the
    training; of a trace, `iteration` is the one that is shown, counted from 1.
    """

    total: float
    spans: Sequence[TimeSpan]
    num_iterations: int
    iteration: int = 0
    background: tuple[str, ...] = ()
    has_part: bool = False
    """Whether the means have part of an iteration that did not end: the attempt is in it, or was killed there."""


@dataclass(slots=True)
class AttemptTotals:
    """The sums of the frames of one attempt: iterations and their ns, and the ns of each phase and binding."""

    iterations: int = 0
    total: int = 0
    phases: Counter[str] = field(default_factory=Counter)
    hooks: Counter[int] = field(default_factory=Counter)

    @classmethod
    def of_last(cls, records: Iterable[Record]) -> "AttemptTotals":
        """Return the totals of the last attempt in a log."""
        totals = cls()
        for record in records:
            if record["k"] == "run":
                totals = cls()
            elif record["k"] == "frame":
                count, duration, *_ = record["iters"]
                totals.iterations += count
                totals.total += duration
                totals.phases.update(record["phases"])
                for binding, firings in record["hooks"].items():
                    totals.hooks[int(binding)] += firings[1]
        return totals


def read_mean_times(run: RunDir, plan: Plan) -> IterationTimes:
    """Return the means of the last attempt of a run. Raises UserError if it has trained no iteration."""
    totals = AttemptTotals.of_last(event_log(run.events).read_all())
    if not totals.iterations or not totals.total:
        raise UserError(Problem(f"the run {run.id} has no iteration that has been timed"))
    return mean_times(totals, plan)


def mean_times(totals: AttemptTotals, plan: Plan) -> IterationTimes:
    """Return the mean iteration: phases and hooks in the order of the loop, one after the other.

    "other" is the rest: the loop itself, and hooks of which it is not known how much of their time is in iterations.
    """
    spans: list[TimeSpan] = []
    begin = 0.0
    known = 0
    for row in _rows_of_iteration(plan):
        duration = _duration_of(row, totals, plan)
        if not duration:
            continue
        span = TimeSpan(row.name)
        if row.binding is not None:
            span = TimeSpan(row.binding.hook, row.binding.point)
        known += duration
        mean = duration / totals.iterations
        span.parts.append((begin, mean))
        spans.append(span)
        begin += mean

    rest = totals.total - known
    if rest > 0:
        mean = rest / totals.iterations
        spans.append(TimeSpan("other", parts=[(begin, mean)]))
        begin += mean
    background = dict.fromkeys(binding.hook for binding in plan.bindings if binding.beside)
    return IterationTimes(begin, spans, totals.iterations, background=tuple(background), has_part=rest < 0)


def _rows_of_iteration(plan: Plan) -> list[Row]:
    return [row for row in rows(plan) if "iteration" in row.within]


def _duration_of(row: Row, totals: AttemptTotals, plan: Plan) -> int:
    """Return the ns of a row in all iterations; 0 of what takes no time of the training thread, or an unknown part."""
    if row.binding is not None:
        if not _fires_in_training_alone(row.binding, plan):
            return 0
        return totals.hooks[row.binding.id]
    if row.kind == "phase":
        return totals.phases[row.name]
    return 0


def _fires_in_training_alone(binding: Binding, plan: Plan) -> bool:
    point = plan.points[binding.point]
    if binding.beside or not plan.points.in_iteration(binding.point):
        return False
    if point.kind == "module":
        return set(binding.stages) <= {"train"}
    return point.kind in TRAINING_KINDS


def without_hooks(times: IterationTimes, hooks: Collection[str]) -> IterationTimes:
    """Return mean times without the calls of these hooks: what comes after them begins as much earlier.

    The spans must follow one another, as those of means do.
    """
    spans = []
    begin = 0.0
    for span in times.spans:
        if span.point and span.name in hooks:
            continue
        spans.append(TimeSpan(span.name, span.point, span.depth, [(begin, span.total)]))
        begin += span.total
    return replace(times, total=begin, spans=spans)


def read_traced_times(run: RunDir, iteration: int | None = None) -> IterationTimes | None:
    """Return the iteration of median length of the newest trace of rank 0; None if the run has no trace.

    With `iteration` it is that one, counted from 1, of the newest trace that has it. Raises UserError if a trace is
    damaged, or if none has the iteration.
    """
    every_trace = (_read_trace(path) for path in sorted(run.traces.glob("*.json")))
    with_events = (trace for trace in every_trace if trace["events"])
    if iteration is None:
        newest = max(with_events, key=_began, default=None)  # one trace after another: they may be large
        if newest is None:
            return None
        return traced_times(newest["events"])
    traces = sorted(with_events, key=_began, reverse=True)
    for trace in traces:
        times = traced_times(trace["events"], iteration)
        if times is not None:
            return times
    known = sorted({event["args"]["iteration"] for trace in traces for event in _iterations_of(trace["events"])})
    if known:
        hint = f"traced are {first_few(list(map(str, known)))}"
    else:
        hint = f"hookflow ctl {run_argument(run)} trace"
    raise UserError(Problem(f"the run {run.id} has no trace of iteration {iteration}", hint=hint))


def _read_trace(path: Path) -> dict[str, Any]:
    """Return when a trace began, and its events on the host of rank 0."""
    try:
        trace = read_object(read_regular(path))
        events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
        events = [event for event in events if event["pid"] == 0 and event["tid"] == 0]
        return {"began": float(trace["otherData"]["began"]), "events": events}
    except (OSError, KeyError, TypeError, ValueError):
        hint = f"to see the means instead: hookflow graph {run_argument(RunDir(path.parent.parent))} --critical-chain"
        raise UserError(Problem(f"{short(path)} is no trace of hookflow", hint=hint)) from None


def _began(trace: Mapping[str, Any]) -> float:
    began: float = trace["began"]
    return began


def _iterations_of(events: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [event for event in events if event["cat"] == "iteration" and float(event["dur"]) > 0]


def traced_times(events: Sequence[Mapping[str, Any]], iteration: int | None = None) -> IterationTimes | None:
    """Return the iteration of median length among the events of a trace, or a certain one; None if there is none."""
    iterations = _iterations_of(events)
    num_traced = len(iterations)
    if iteration is not None:
        iterations = [event for event in iterations if event["args"]["iteration"] == iteration]
    if not iterations:
        return None
    by_length = sorted(iterations, key=lambda event: float(event["dur"]))
    median = by_length[(len(by_length) - 1) // 2]
    number = int(median["args"]["iteration"])
    start = float(median["ts"])
    total = float(median["dur"])
    inside = []
    for event in events:
        offset = float(event["ts"]) - start
        if event["cat"] not in ("iteration", "outside") and 0 <= offset < total:
            inside.append((offset * 1000, float(event["dur"]) * 1000, str(event["name"]), str(event["cat"])))
    inside.sort(key=lambda each: (each[0], -each[1]))
    return IterationTimes(total * 1000, _merge_spans(inside), num_traced, iteration=number)


MAX_ROUNDING_NS = 10.0
"""ns by which a span may seem to begin before the one ahead of it has ended."""


def _merge_spans(events: Iterable[tuple[float, float, str, str]]) -> list[TimeSpan]:
    """Return a span for the events of one name at one depth: begin, duration, name, and "phase" or a point."""
    spans: dict[tuple[str, str, int], TimeSpan] = {}
    open_ends: list[float] = []
    for begin, duration, name, category in events:
        while open_ends and open_ends[-1] <= begin + MAX_ROUNDING_NS:
            open_ends.pop()
        if category == "phase":
            point = ""
        else:
            point = category
        key = (name, point, len(open_ends))
        span = spans.setdefault(key, TimeSpan(*key))
        span.parts.append((begin, duration))
        open_ends.append(begin + duration)
    return list(spans.values())
