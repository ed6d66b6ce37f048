"""Where the time of an iteration goes.

It has the phases and hooks of the training thread, by a run's means or by a trace.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from hookflow.errors import Problem, UserError, first_few
from hookflow.events.log import event_log
from hookflow.events.reading import read_object, read_regular
from hookflow.events.records import Record
from hookflow.events.rundir import RunDir, run_argument, short
from hookflow.graph.plan import Binding, Plan
from hookflow.graph.render.loop import Row, make_rows
from hookflow.monitor.iteration_trace import TracedIteration, traced_iterations
from hookflow.pipeline.load import load

TRAINING_KINDS = ("standard", "step", "optimizer", "parameter", "comm")
"""Kinds of points that, within an iteration, fire in training alone."""


@dataclass(slots=True)
class TimeSpan:
    """A phase or a hook in an iteration.

    `parts` has the begin of each piece, counted from that of the iteration, and its duration, both
    in ns. `point` is where a hook fires; it is empty for a phase. `depth` is how many spans are
    around it. `queued` has the times in which firings of a hook in background were queued. `chain`
    is what is on the critical chain; None where all is.
    """

    name: str
    point: str = ""
    depth: int = 0
    parts: list[tuple[float, float]] = field(default_factory=list)
    queued: Sequence[tuple[float, float]] = ()
    chain: Sequence[tuple[float, float]] | None = None

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

    Of means, `num_iterations` are those that they are taken over, and `background` are the hooks
    that fire beside the training, whose spans are what the training thread does for them; of a
    trace, `iteration` is the one that is shown, counted from 1.
    """

    total: float
    spans: Sequence[TimeSpan]
    num_iterations: int
    iteration: int = 0
    background: tuple[str, ...] = ()
    has_part: bool = False
    """Whether the means have part of an iteration that did not end.

    The attempt is in it, or was killed there.
    """


@dataclass(slots=True)
class AttemptTotals:
    """The sums of an attempt's frames.

    They are iterations and their ns, ns of phases and bindings, and calls of bindings. `latest` has
    the ns of the latest call of each.
    """

    iterations: int = 0
    total: int = 0
    phases: Counter[str] = field(default_factory=Counter)
    hooks: Counter[int] = field(default_factory=Counter)
    calls: Counter[int] = field(default_factory=Counter)
    latest: dict[int, int] = field(default_factory=dict)

    def has_call_in_part(self, binding: int) -> bool:
        """Say whether the latest call of a binding was in an iteration that did not end.

        A binding that is called once in each iteration has one call more then. One that is called
        several times in each has more calls than that, if two iterations have ended.
        """
        return self.iterations > 1 and self.calls[binding] == self.iterations + 1

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
                    totals.calls[int(binding)] += firings[0]
                    totals.latest[int(binding)] = firings[3]
        return totals


def read_mean_times(run: RunDir, plan: Plan) -> IterationTimes:
    """Return the means of the last attempt of a run.

    Raises UserError if it has trained no iteration.
    """
    totals = AttemptTotals.of_last(event_log(run.events).read_all())
    if not totals.iterations or not totals.total:
        raise UserError(Problem(f"the run {run.id} has no iteration that has been timed"))
    return mean_times(totals, plan)


def mean_times(totals: AttemptTotals, plan: Plan) -> IterationTimes:
    """Return the mean iteration: phases and hooks in the order of the loop, one after the other.

    "other" is the rest: the loop itself, and hooks of which it is not known how much of their time
    is in iterations.
    """
    spans: list[TimeSpan] = []
    begin = 0.0
    known = 0
    has_call_in_part = False
    for row in _list_iteration_rows(plan):
        duration = _duration_of(row, totals, plan)
        if not duration:
            continue
        span = TimeSpan(row.name)
        if row.binding is not None:
            span = TimeSpan(row.binding.hook, row.binding.point)
            has_call_in_part |= totals.has_call_in_part(row.binding.id)
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
    return IterationTimes(
        begin,
        spans,
        totals.iterations,
        background=tuple(background),
        has_part=rest < 0 or has_call_in_part,
    )


def _list_iteration_rows(plan: Plan) -> list[Row]:
    return [row for row in make_rows(plan) if "iteration" in row.within]


def _duration_of(row: Row, totals: AttemptTotals, plan: Plan) -> int:
    """Return the ns of the training thread that a row has taken in all iterations.

    It is 0 where an unknown part of them is in iterations. A call in an iteration that did not end
    is left out where it is known. The time of an offloaded hook is that of its copies, and of the
    waits for room in its queue.
    """
    if row.binding is not None:
        if not _is_training_only(row.binding, plan):
            return 0
        id_ = row.binding.id
        if totals.has_call_in_part(id_):
            return totals.hooks[id_] - totals.latest[id_]
        return totals.hooks[id_]
    if row.kind == "phase":
        return totals.phases[row.name]
    return 0


def _is_training_only(binding: Binding, plan: Plan) -> bool:
    point = plan.points[binding.point]
    if not plan.points.in_iteration(binding.point):
        return False
    if point.kind == "module":
        return set(binding.stages) <= {"train"}
    return point.kind in TRAINING_KINDS


def without_hooks(times: IterationTimes, hooks: Collection[str]) -> IterationTimes:
    """Return mean times without the calls of these hooks.

    Spans after a call begin as much earlier. The spans must follow one another, as those of means
    do.
    """
    spans = []
    begin = 0.0
    for span in times.spans:
        if span.point and span.name in hooks:
            continue
        spans.append(TimeSpan(span.name, span.point, span.depth, [(begin, span.total)]))
        begin += span.total
    return replace(times, total=begin, spans=spans)


def read_traced_times(run: RunDir, number: int | None = None) -> IterationTimes | None:
    """Return the iteration of median length of the newest trace of rank 0.

    It is None if the run has no trace.

    With `number` it is that iteration, counted from 1, of the newest trace that has it. Raises
    UserError if a trace is damaged, or if none has the iteration.
    """
    every_trace = (_read_trace(path) for path in sorted(run.traces.glob("*.json")))
    with_iterations = (trace for trace in every_trace if trace.iterations)
    if number is None:
        # Traces may be large, so `max` reads them one after another.
        newest = max(with_iterations, key=attrgetter("began"), default=None)
        if newest is None:
            return None
        by_length = sorted(newest.iterations, key=attrgetter("micros"))
        median = by_length[(len(by_length) - 1) // 2]
        return _times_of(median, len(by_length))
    known = set()
    for trace in sorted(with_iterations, key=attrgetter("began"), reverse=True):
        for traced in trace.iterations:
            if traced.it == number:
                return _times_of(traced, len(trace.iterations))
            known.add(traced.it)
    if known:
        hint = f"traced are {first_few(list(map(str, sorted(known))))}"
    else:
        hint = name_tracing_command(run, number, 1)
    raise UserError(Problem(f"the run {run.id} has no trace of iteration {number}", hint=hint))


def name_tracing_command(run: RunDir, number: int, iterations: int) -> str:
    """Return the command that traces iterations of a run; a rerun's are those from `number` on."""
    if can_only_be_rerun(run):
        return f"hookflow rerun {run_argument(run)} --at {number} --for {iterations} --trace"
    return f"hookflow ctl {run_argument(run)} trace"


def can_only_be_rerun(run: RunDir) -> bool:
    """Say whether a run is over and takes no command, and a rerun can do its iterations again.

    No rerun does so where a loop of the user's own has trained the run.
    """
    if run.life() not in ("gone", "missing"):
        return False
    return not load(run.pipeline, recorded=True).is_attached


class RunTrace(NamedTuple):
    """A trace of rank 0.

    It has when it began, in seconds since 1970, and the iterations that took any time.
    """

    began: float
    iterations: Sequence[TracedIteration]


def _read_trace(path: Path) -> RunTrace:
    try:
        trace = read_object(read_regular(path))
        events = [
            event for event in trace["traceEvents"] if event["ph"] == "X" and event["pid"] == 0
        ]
        iterations = [traced for traced in traced_iterations(events) if traced.micros > 0]
        return RunTrace(float(trace["otherData"]["began"]), iterations)
    except (OSError, KeyError, TypeError, ValueError):
        hint = (
            f"to see the means instead: hookflow graph {run_argument(RunDir(path.parent.parent))}"
            " --critical-chain"
        )
        raise UserError(Problem(f"{short(path)} is no trace of hookflow", hint=hint)) from None


def _times_of(traced: TracedIteration, num_traced: int) -> IterationTimes:
    """Return the times of a traced iteration, of so many in its trace."""
    spans = []
    for row in traced.rows:
        if row.kind == "outside":
            continue
        span = TimeSpan(row.title, row.point, row.depth, _in_ns(row.parts))
        if traced.has_lanes:
            span.queued = _in_ns(row.queued)
            span.chain = _in_ns(row.chain)
        spans.append(span)
    return IterationTimes(traced.micros * 1000, spans, num_traced, iteration=traced.it)


def _in_ns(parts: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    return [(begin * 1000, duration * 1000) for begin, duration in parts]
