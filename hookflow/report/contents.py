"""The contents of the report of a run, as texts and numbers."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from hookflow.events.reading import read_regular
from hookflow.events.rundir import RunDir
from hookflow.graph.render.text import as_text, title_of
from hookflow.monitor.compare import env_info
from hookflow.monitor.health import end_reason
from hookflow.monitor.hook_costs import cost_columns, format_costs
from hookflow.monitor.journal import Entry, RepeatedEntry
from hookflow.monitor.series import in_order
from hookflow.monitor.state import RunState
from hookflow.monitor.throughput import Throughput
from hookflow.numbers import duration, format_clock, format_count, format_span, number, out_of
from hookflow.report.curves import CurveSheet, last_iteration, list_marks, make_curves
from hookflow.service.run_facts import Fact, Row, RunFacts, format_date

MAX_ENTRIES = 300
"""Warnings and errors, and entries of the journal, that a report has."""

GRAPH_WIDTH = 120
"""Columns of the drawn graph."""


@dataclass(frozen=True, slots=True)
class ReportNotice:
    """Notes that a reader needs first; `kind` is live, warn or error."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class ReportTile:
    """A figure that stands out: a name, a value, and what explains it."""

    name: str
    value: str
    note: str


@dataclass(frozen=True, slots=True)
class PhaseShare:
    """A phase, its time in an iteration of the last attempt, and its share from 0 to 1."""

    name: str
    time: str
    share: float


@dataclass(frozen=True, slots=True)
class ReportEntry:
    """An entry of the journal.

    A warning or an error has how often it came, and its traceback in `detail`.
    """

    time: str
    where: str
    kind: str
    glyph: str
    source: str
    text: str
    times: int = 1
    detail: str = ""


@dataclass(frozen=True, slots=True)
class RunReport:
    """The report of a run. Of each table the first row has the headings."""

    name: str
    id: str
    condition: str
    glyph: str
    tone: str
    made: str
    reason: Sequence[str]
    detail: str
    notices: Sequence[ReportNotice]
    tiles: Sequence[ReportTile]
    metrics: Sequence[Row]
    troubles: Sequence[ReportEntry]
    phases: Sequence[PhaseShare]
    hooks: Sequence[Row]
    graph: str
    curves: CurveSheet
    attempts: Sequence[Fact]
    checkpoints: Sequence[Row]
    events: Sequence[ReportEntry]
    environment: Sequence[Fact]
    pipeline: str


def read_report(run: RunDir) -> RunReport:
    """Read the run to the present end of its logs, and return what its report says."""
    facts = RunFacts.read(run)
    state = facts.state
    health = facts.health
    tone = "going"
    if health.bad:
        tone = "bad"
    elif health.condition == "finished":
        tone = "good"
    reason = end_reason(state) or [health.sentence]
    newest = [*state.journal][-MAX_ENTRIES:]
    return RunReport(
        name=facts.name,
        id=run.id,
        condition=health.condition,
        glyph=health.glyph,
        tone=tone,
        made=format_date(time.time()),
        reason=[line for line in reason if line],
        detail=_end_detail(state),
        notices=[*_iter_notices(facts)],
        tiles=[*_iter_tiles(state)],
        metrics=facts.metric_rows(),
        troubles=_list_troubles(state),
        phases=_phase_shares(state),
        hooks=facts.hook_rows(),
        graph=_draw_graph(facts),
        curves=_make_curve_sheet(state),
        attempts=[*facts.attempt_facts()],
        checkpoints=facts.checkpoint_rows(),
        events=[_report_entry(entry) for entry in newest],
        environment=[*facts.iter_setting_facts(), *_iter_environment_facts(facts)],
        pipeline=_pipeline_text(run),
    )


def _end_detail(state: RunState) -> str:
    """Return the traceback of the exception that ended the run, or the user's mistake in full."""
    if state.ranks.first_failure is not None:
        _, error = state.ranks.first_failure
        return error["traceback"]
    if state.end is not None and "\n" in state.end["reason"]:
        return state.end["reason"]
    return ""


def _iter_notices(facts: RunFacts) -> Iterator[ReportNotice]:
    state = facts.state
    if not facts.health.over:
        text = (
            f"This run has not ended: the report is of {format_date(state.now)}, iteration"
            f" {state.it:,}"
        )
        left = Throughput.of(state).left
        if left:
            text += f", {left} left"
        yield ReportNotice("live", f"{text}.")
    if state.synthetic:
        splits = ", ".join(state.synthetic)
        yield ReportNotice(
            "warn", f"SYNTHETIC data ({splits}): the scores say nothing about the real data set."
        )
    if state.limited:
        parts = ", ".join(state.limited)
        yield ReportNotice(
            "warn", f"LIMITED data ({parts}): the scores are of a part of the data set."
        )
    if state.not_finite:
        yield ReportNotice("error", f"Not finite at the end: {state.not_finite}.")
    if state.refused:
        reason = " ".join(state.refused["reason"].split())
        yield ReportNotice("error", f"Not resumed: {reason}")
    if state.ranks.straggler:
        yield ReportNotice("warn", state.ranks.straggler.sentence)
    if state.unreadable:
        lines = format_count(state.unreadable, "line")
        yield ReportNotice("warn", f"{lines} of the logs cannot be read ({state.complaint}).")


MAX_BEST_TILES = 3


def _iter_tiles(state: RunState) -> Iterator[ReportTile]:
    run = state.run
    for name in in_order(state.metrics.best, state.monitored)[:MAX_BEST_TILES]:
        best = state.metrics.best[name]
        is_of_test = " " in name
        if is_of_test:
            title = f"best {name}"
        else:
            title = f"best val {name}"
        yield ReportTile(title, number(best.value), f"epoch {best.ep:,}, iteration {best.it:,}")
    epochs = run.get("max_epochs")
    if epochs:
        note = f"iteration {state.it:,} of {state.total_iters:,}"
        yield ReportTile("epoch", out_of(state.epoch, epochs), note)
    else:
        note = ""
        if state.total_iters:
            note = f"of {state.total_iters:,}"
        yield ReportTile("iteration", f"{state.it:,}", note)
    yield ReportTile("time", format_span(state.elapsed), _time_note(state))
    iterations = state.first.attempt.sums["iters"]
    if iterations:
        mean = state.iterating / iterations
        yield ReportTile("an iteration", duration(mean), f"{1e9 / mean:,.1f} a second in training")


def _time_note(state: RunState) -> str:
    notes = []
    if len(state.attempts) > 1:
        notes.append(f"attempt {len(state.attempts):,}")
    if state.run:
        notes.append(f"since {format_date(state.run['t'])}")
    return ", ".join(notes)


def _make_curve_sheet(state: RunState) -> CurveSheet:
    curves, left_out = make_curves(state)
    last = max(state.it, last_iteration(curves))
    per_epoch = 0
    if not state.epoch_lengths.changes:
        per_epoch = state.epoch_lengths.at(0)
    return CurveSheet(0, last, per_epoch, curves, left_out, list_marks(state))


def _phase_shares(state: RunState) -> list[PhaseShare]:
    attempt = state.first.attempt
    iterations = attempt.sums["iters"] or 1
    whole = sum(attempt.by_phase.values())
    shares = []
    for phase, ns in attempt.by_phase.items():
        if not ns:
            continue
        text = duration(ns / iterations)
        on_device = state.first.device.phase(phase)
        if on_device:
            text += f", {duration(on_device)} on the device"
        shares.append(PhaseShare(phase, text, round(ns / whole, 4)))
    return shares


def _draw_graph(facts: RunFacts) -> str:
    """Return the graph of the hooks with what they took, as `hookflow graph` draws it.

    It is empty without hooks.
    """
    if not facts.plan.bindings:
        return ""
    plan = replace(facts.plan, off=tuple(facts.state.disabled.items()))
    costs = format_costs(facts.state, plan, cost_columns)
    return as_text(plan, title_of(plan), GRAPH_WIDTH, False, costs)


def _list_troubles(state: RunState) -> list[ReportEntry]:
    """Return warnings and errors, each text once: errors first, as they came."""
    repeated = sorted(
        state.journal.repeated.values(), key=lambda trouble: trouble.first.kind != "error"
    )
    return [_make_trouble_entry(trouble) for trouble in repeated[:MAX_ENTRIES]]


def _make_trouble_entry(trouble: RepeatedEntry) -> ReportEntry:
    entry = trouble.first
    where = ""
    if entry.it is not None:
        where = f"iteration {entry.it:,}"
        if trouble.it is not None and trouble.it != entry.it:
            where += f" to {trouble.it:,}"
    return replace(_report_entry(entry), where=where, times=trouble.times, detail=entry.detail)


def _report_entry(entry: Entry) -> ReportEntry:
    if entry.it is None:
        where = ""
    else:
        where = f"{entry.it:,}"
    return ReportEntry(
        format_clock(entry.t), where, entry.kind, entry.glyph, entry.source, entry.text
    )


def _iter_environment_facts(facts: RunFacts) -> Iterator[Fact]:
    """Yield the machine, the versions and the code."""
    known = {
        "host": facts.state.run.get("host"),
        "python": facts.state.run.get("python"),
        "hookflow": facts.run.describe().get("hookflow"),
    }
    for name, value in known.items():
        if value:
            yield name, value
    for name, value in env_info(facts.run).items():
        yield name, str(value)


def _pipeline_text(run: RunDir) -> str:
    try:
        return read_regular(run.pipeline).decode(errors="replace")
    except OSError:
        return ""
