"""A run in brief.

It has the summary that stays on the screen, the table of its metrics, and its line in a list of
runs.
"""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from hookflow.events.reading import open_regular
from hookflow.events.records import Layer
from hookflow.events.rundir import RunDir, resume_command, run_argument, short
from hookflow.graph.plan import Plan
from hookflow.monitor.feed import LogFollower
from hookflow.monitor.health import Health, end_reason, judge
from hookflow.monitor.log_reader import (
    OTHER_RANK_SUMMARY,
    SUMMARY_RECORDS,
    LogReader,
    RecordFilter,
    find_rank_logs,
)
from hookflow.monitor.ranks import NO_PLAN, RankGroup, can_compare
from hookflow.monitor.series import in_order
from hookflow.monitor.state import RunState
from hookflow.numbers import (
    duration,
    format_count,
    format_percent,
    format_span,
    number,
    out_of,
    size,
)
from hookflow.text import make_printable


@dataclass(frozen=True, slots=True)
class RunSummary:
    """The facts about a run in a list of runs.

    `refused` are logs of other ranks that cannot be read, in words.
    """

    run: RunDir
    state: RunState
    health: Health
    refused: list[str]

    @property
    def reason(self) -> str:
        """Why it has ended, or what is wrong; empty where there is nothing to say."""
        text = next(iter(end_reason(self.state)), self.health.sentence)
        return text.removeprefix(f"{self.health.condition}: ")


class RunSummaryReader:
    """Reads on in the logs of a run.

    It reads only the last of the frames and scalars, which make up most of a log.
    """

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._state = RunState()
        self._readers: dict[int, LogReader] = {}

    def read(self, clock: float) -> RunSummary:
        """Read on to the present end of the logs, and judge the run at the moment `clock`."""
        try:
            open_regular(self._run.events).close()
        except FileNotFoundError:
            pass  # it did not get as far as to have a log
        except OSError as error:
            reason = f"its event log cannot be read: {error.strerror}"
            return RunSummary(self._run, self._state, Health("unreadable", reason), [])
        self._fold(0, self._run.events, SUMMARY_RECORDS)
        refused = []
        if self._may_have_failed_elsewhere():
            for log in find_rank_logs(self._run):
                if log.problem:
                    refused.append(log.problem)
                else:
                    self._fold(log.rank, log.path, OTHER_RANK_SUMMARY)
        return RunSummary(self._run, self._state, judge(self._run, self._state, clock), refused)

    def _may_have_failed_elsewhere(self) -> bool:
        """Return whether another rank may have failed, which rank 0 does not know."""
        state = self._state
        if state.ranks.world == 1:
            return False
        return state.end is None or state.end["status"] in ("failed", "interrupted")

    def _fold(self, rank: int, path: Path, record_filter: RecordFilter) -> None:
        if rank not in self._readers:
            self._readers[rank] = LogReader(path, record_filter)
        for record in self._readers[rank].read_all():
            self._state.apply(record, rank)


def read_run_summary(run: RunDir, clock: float) -> RunSummary:
    """Read the logs of a run to their present end, as a `RunSummaryReader` does."""
    return RunSummaryReader(run).read(clock)


def metric_rows(state: RunState, none: str = "") -> Iterator[tuple[str, ...]]:
    """Yield each metric with its last and best value, and the place of that.

    The place is epoch and iteration. It has `none` where there is no value.
    """
    for name in in_order(state.metrics.by_name, state.monitored):
        points = state.metrics.by_name[name]
        if not points:
            continue
        _, last = points[-1]
        best = state.metrics.best.get(name)
        if best is None:
            yield name, number(last), none, none, none
        else:
            yield name, number(last), number(best.value), f"{best.ep:,}", f"{best.it:,}"


def layer_rows(layers: Sequence[Layer]) -> Iterator[tuple[str, ...]]:
    """Yield each layer of a model: name, class, shapes, parameters, bytes, and what is frozen."""
    for layer in layers:
        frozen = layer["parameters"] - layer["trainable"]
        note = ""
        if frozen and not layer["trainable"]:
            note = "frozen"
        elif frozen:
            note = f"{frozen:,} frozen"
        yield (
            layer["name"],
            layer["kind"],
            layer["shapes"],
            f"{layer['parameters']:,}",
            size(layer["bytes"]),
            note,
        )


def make_metrics_table(state: RunState, scalars: Iterable[str] = ()) -> Table | None:
    """Return the table of the metrics, and of these scalars; None where there is no value yet."""
    table = Table("metric", box=SIMPLE_HEAD, header_style="bold")
    for heading in ("last", "best", "at epoch", "iteration"):
        table.add_column(heading, justify="right")
    for name, *facts in metric_rows(state):
        is_of_test = " " in name
        if is_of_test:
            title = name
        else:
            title = f"val {name}"
        table.add_row(Text(make_printable(title)), *facts)
    for name in scalars:
        table.add_row(Text(make_printable(name)), number(state.scalars[name].last))
    if table.row_count:
        return table
    return None


def print_summary(run: RunDir, out: TextIO) -> None:
    """Read the run's log to its present end and print the summary."""
    live = LogFollower(run, kept=True)
    live.read_all()
    print("\n".join(summary(run, live.state, live.plan)), file=out, flush=True)


MAX_METRICS = 3
"""The metrics in a summary, and the costliest hooks."""


def summary(run: RunDir, state: RunState, plan: Plan | None) -> list[str]:
    """Return the lines that stay on the screen when a run is left."""
    health = judge(run, state, time.time())
    lines = [
        _first_line(run, state, health),
        *_format_reason(state, health),
        *_result_lines(run, state),
        *_cost_lines(state, plan or NO_PLAN),
        *_rank_lines(state.ranks),
        *_format_trouble(run, state),
    ]
    if run.path.exists():
        lines += _next_lines(run, state, health)
    return [make_printable(line) for line in lines]


def _first_line(run: RunDir, state: RunState, health: Health) -> str:
    name = f"{run.path.parent.name} {run.id}"
    iteration = f"iteration {out_of(state.it, state.total_iters)}"
    epochs = state.run.get("max_epochs")
    if epochs:
        iteration = f"epoch {out_of(state.epoch, epochs)}, {iteration}"
    return (
        f"{health.glyph} {name}: {health.condition} after {format_span(state.elapsed)}, {iteration}"
    )


def _format_reason(state: RunState, health: Health) -> Iterator[str]:
    for line in end_reason(state) or [health.sentence]:
        if line:
            yield f"  {line}"
    if state.refused:
        reason = " ".join(state.refused["reason"].split())
        yield f"  not resumed: {reason}"


def _result_lines(run: RunDir, state: RunState) -> Iterator[str]:
    """Yield what the scores are worth, the best ones, and the last checkpoint."""
    if state.synthetic:
        yield (
            f"  SYNTHETIC {', '.join(state.synthetic)} data: the scores say nothing about the real"
            " data set"
        )
    if state.limited:
        yield (
            f"  LIMITED data ({', '.join(state.limited)}): the scores are of a part of the data set"
        )
    for name in in_order(state.metrics.best, state.monitored)[:MAX_METRICS]:
        best = state.metrics.best[name]
        yield f"  best {name} {number(best.value)} at epoch {best.ep}, iteration {best.it}"
    if state.checkpoints:
        newest = run.path / state.checkpoints[-1]["path"]
        yield f"  checkpoint {short(newest)}"


def _cost_lines(state: RunState, plan: Plan) -> Iterator[str]:
    costs = _format_costs(state, plan)
    if costs:
        yield f"  costliest hooks: {costs}"
    for binding, offloaded in state.first.beside.items():
        if binding < len(plan.bindings):
            yield f"  beside the training: {plan.bindings[binding].hook}, {offloaded}"


def _format_costs(state: RunState, plan: Plan) -> str:
    """Return the hooks that took most of the whole attempt: of its iterations, and outside them."""
    inside, outside = _hook_times(state, plan)
    shares = []
    if state.iterating:
        for hook, ns in inside.most_common(MAX_METRICS):
            share = format_percent(ns / state.iterating)
            if share != "0.0":
                shares.append(f"{hook} {share} %")
    costs = []
    if shares:
        costs.append(f"{', '.join(shares)} of the iterations")
    if outside:
        hook, ns = outside.most_common(1)[0]
        cost = f"{hook} {duration(ns)}"
        if shares:
            cost = f"outside them {cost}"
        elif state.iterating:
            cost = f"outside the iterations {cost}"
        costs.append(cost)
    return ", ".join(costs)


def _hook_times(state: RunState, plan: Plan) -> tuple[Counter[str], Counter[str]]:
    """Return by hook the ns that it took within iterations, and those outside them."""
    inside: Counter[str] = Counter()
    outside: Counter[str] = Counter()
    for binding in plan.bindings:
        spent = state.first.timing(binding.id).total
        if not spent:
            continue
        if plan.points.in_iteration(binding.point):
            inside[binding.hook] += spent
        else:
            outside[binding.hook] += spent
    return inside, outside


def _rank_lines(ranks: RankGroup) -> Iterator[str]:
    """Yield how the ranks compare, where there are several."""
    if ranks.world <= 1:
        return
    verdict = "too few iterations to compare them"
    if ranks.straggler is not None:
        verdict = ranks.straggler.sentence
    elif can_compare(ranks.of):
        verdict = "even"
    line = f"  {ranks.world} ranks: {verdict}"
    if ranks.gone:
        line += f", no end record from rank {', '.join(map(str, ranks.gone))}"
    yield line


def _format_trouble(run: RunDir, state: RunState) -> Iterator[str]:
    journal = state.journal
    if journal.warnings or journal.errors:
        counts = f"warnings {journal.warnings}, errors {journal.errors}"
        yield f"  {counts}; in full: hookflow show {run_argument(run)}"
        if state.errors and run.output.is_file() and run.output.stat().st_size:
            yield f"  whole tracebacks and what the run printed: {short(run.output)}"
    if state.unreadable:
        were = "were"
        if state.unreadable == 1:
            were = "was"
        lines = format_count(state.unreadable, "line")
        yield f"  {lines} of its logs cannot be read and {were} passed over ({state.complaint})"


RESUMABLE_CONDITIONS = ("interrupted", "stopped", "failed", "lost")
"""The conditions of a run that is to go on."""


def _next_lines(run: RunDir, state: RunState, health: Health) -> Iterator[str]:
    """Yield the commands that follow."""
    known = run_argument(run)
    resumes_at = run.find_resume_iteration()
    if resumes_at is not None and health.condition in RESUMABLE_CONDITIONS:
        yield f"  resume from iteration {resumes_at}: {resume_command(run)}"
    invitation = "the run goes on; watch it"
    if health.over:
        invitation = "look again"
    elif state.was_asked_to_stop:
        invitation = "the run was asked to stop, and has not ended yet; watch it"
    yield f"  {invitation}: hookflow watch {known}"
