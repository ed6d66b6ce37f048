"""The contents of the report of a run, as texts and numbers; `hookflow.cli.report_html` draws it."""

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from hookflow.cli.show import Page, at_time
from hookflow.events.reading import read_regular
from hookflow.events.rundir import RunDir
from hookflow.graph.render.text import as_text, title_of
from hookflow.monitor.compare import env_info
from hookflow.monitor.costs import in_columns, of_bindings
from hookflow.monitor.health import Pace, end_reason
from hookflow.monitor.journal import Entry
from hookflow.monitor.series import Series, in_order
from hookflow.monitor.state import RunState
from hookflow.monitor.summary import metric_rows
from hookflow.monitor.view import base
from hookflow.numbers import clock, counted, duration, number, out_of, span

CHARTS = 40
"""Charts that a report has at most."""

POINTS, FEWEST, MOST = 12_000, 64, 512
"""Points of all lines together, about; of one line in a report of many, and of a few."""

ENTRIES = 300
"""Troubles, and entries of the journal, that a report has at most."""


def collect(run: RunDir) -> dict[str, Any]:
    """Read the run to the present end of its logs, and return what its report shows."""
    page = Page.of(run)
    state, health = page.state, page.health
    curves, left_out = _curves(state)
    return {
        "name": run.path.parent.name,
        "id": run.id,
        "condition": health.condition,
        "glyph": health.glyph,
        "tone": "bad" if health.bad else "good" if health.condition == "finished" else "going",
        "made": at_time(time.time()),
        "command": "hookflow export",
        "reason": [line for line in end_reason(state) or [health.sentence] if line],
        "detail": _detail(state),
        "notices": [*_notices(page)],
        "tiles": [*_tiles(state)],
        "x": [
            0,
            max(state.it, 1, *(point[0] for curve in curves for line in curve["lines"] for point in line["points"])),
        ],
        "per_epoch": state.run.get("iters_per_epoch", 0),
        "curves": curves,
        "left_out": left_out,
        "marks": [*_marks(state)],
        "metrics": [("metric", "last", "best", "at epoch", "iteration"), *metric_rows(state, none="-")],
        "phases": [*_phases(state)],
        "hooks": page.hooks(),
        "graph": _graph(page),
        "troubles": [*_troubles(state)],
        "events": [_entry(entry) for entry in [*state.journal][-ENTRIES:]],
        "attempts": [*page.attempts()],
        "checkpoints": page.checkpoints(),
        "environment": [*page.setting(), *_environment(page)],
        "pipeline": _pipeline(run),
    }


def _detail(state: RunState) -> str:
    """Return the traceback of the exception that has ended the run, or the mistake of the user in full."""
    if state.ranks.first_failure:
        return state.ranks.first_failure[1]["traceback"]
    reason = state.end["reason"] if state.end else ""
    return reason if "\n" in reason else ""


def _notices(page: Page) -> Iterator[tuple[str, str]]:
    """Yield what a reader must know before he reads on: a kind and a sentence."""
    state = page.state
    if not page.health.over:
        left = f", {left} left" if (left := Pace.of(state).left) else ""
        yield "live", f"This run has not ended: the report is of {at_time(state.now)}, iteration {state.it:,}{left}."
    if state.synthetic:
        yield "warn", f"SYNTHETIC data ({', '.join(state.synthetic)}): the scores say nothing about the real data set."
    if state.limited:
        yield "warn", f"LIMITED data ({', '.join(state.limited)}): the scores are of a part of the data set."
    if state.not_finite:
        yield "error", f"Not finite at the end: {state.not_finite}."
    if state.refused:
        yield "error", f"Not resumed: {' '.join(state.refused['reason'].split())}"
    if state.ranks.straggler:
        yield "warn", state.ranks.straggler.sentence
    if state.unreadable:
        yield "warn", f"{counted(state.unreadable, 'line')} of the logs cannot be read ({state.complaint})."


def _tiles(state: RunState) -> Iterator[tuple[str, str, str]]:
    """Yield the figures that stand out: a name, a value, and what explains it."""
    run, tries = state.run, len(state.attempts)
    for name in in_order(state.metrics.best, state.monitored)[:3]:
        best = state.metrics.best[name]
        split = "" if " " in name else "val "
        yield f"best {split}{name}", number(best.value), f"epoch {best.ep:,}, iteration {best.it:,}"
    if epochs := run.get("max_epochs"):
        yield "epoch", out_of(state.epoch, epochs), f"iteration {state.it:,} of {state.total_iters:,}"
    else:
        yield "iteration", f"{state.it:,}", f"of {state.total_iters:,}" if state.total_iters else ""
    began = f"since {at_time(run['t'])}" if run else ""
    yield "time", span(state.elapsed), f"attempt {tries:,}, {began}" if tries > 1 else began
    if iterations := state.first.attempt.sums["iters"]:
        each = state.iterating / iterations
        yield "an iteration", duration(each), f"{1e9 / each:,.1f} a second in training"


def lines_of(state: RunState) -> dict[str, list[tuple[str, Series]]]:
    """Return what there are charts of: metrics that hooks monitor, the loss, other metrics, other scalars."""
    result: dict[str, list[tuple[str, Series]]] = {}
    for scalar, series in state.scalars.items():
        result.setdefault(base(scalar), []).append(("train", series))
    for metric, series in state.metrics.series.items():
        split = "test" if metric.startswith("test ") else "val"
        result.setdefault(metric.removeprefix("test "), []).append((split, series))
    order = {name: place for place, name in enumerate(state.monitored)}

    def rank(name: str) -> tuple[int, bool, bool]:
        return order.get(name, len(order)), name != "loss", name not in state.metrics.by_name

    return {name: result[name] for name in sorted(result, key=rank)}


def _curves(state: RunState) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the charts, with the lines of the training, the validations and the tests; and the names without one."""
    lines = lines_of(state)
    names, left_out = [*lines][:CHARTS], [*lines][CHARTS:]
    most = min(max(POINTS // (sum(len(lines[name]) for name in names) or 1), FEWEST), MOST)
    curves = []
    for name in names:
        best = state.metrics.best.get(name)
        drawn = [{"style": split, "label": split, "points": points(series, most)} for split, series in lines[name]]
        curves.append({"name": name, "lines": drawn, "best": [best.it, best.value] if best else None})
    return curves, left_out


def points(series: Series, most: int) -> list[list[float]]:
    """Return [iteration, mean], or [iteration, mean, least, greatest], of at most so many stretches with values."""
    its = sorted({*series.its, *(it for hole in series.broken for it in (hole.first, hole.last))})
    if not its:
        return []
    edges: list[float] = [its[0] - 1, *its]
    if len(its) > most:
        edges = [its[0] - 1 + (its[-1] - its[0] + 1) * k / most for k in range(most + 1)]
    result = []
    for it, mean, low, high in filter(None, series.stretches(edges)):
        values = (mean, low, high) if low < high else (mean,)
        result.append([it, *(float(f"{value:.7g}") for value in values)])  # as exact as fp32
    return result


def _marks(state: RunState) -> Iterator[tuple[int, str, str]]:
    """Yield what happened on the way: the iteration, a sign and a text; of one sign no two that would touch."""
    marks = [(saved["it"], "◆", saved["path"].rsplit("/", 1)[-1]) for saved in state.checkpoints]
    marks += [(entry.it, entry.glyph, entry.text) for entry in state.journal if entry.trouble and entry.it]
    marks += [(attempt.begin, "↻", f"attempt {k}") for k, attempt in enumerate(state.attempts, 1) if k > 1]
    for sign in "◆▲✗↻":
        places = {round(60 * it / max(state.it, 1)): (it, sign, text) for it, each, text in marks[::-1] if each == sign}
        yield from sorted(places.values())


def _phases(state: RunState) -> Iterator[tuple[str, str, float]]:
    """Yield of each phase its name, its time in an iteration of the last attempt, and its share."""
    attempt = state.first.attempt
    booked = attempt.booked
    whole = sum(booked.values())
    for name, ns in booked.items():
        device = state.first.device.phase(name)
        beside = f", {duration(device)} on the device" if device else ""
        if ns:
            yield name, f"{duration(ns / (attempt.sums['iters'] or 1))}{beside}", round(ns / whole, 4)


GRAPH = 120
"""Columns of the drawn graph."""


def _graph(page: Page) -> list[str]:
    """Return the graph of the hooks with what they took, in lines as `hookflow graph` draws it."""
    plan = replace(page.plan, off=tuple(page.state.disabled.items()))
    drawn = as_text(plan, title_of(plan), GRAPH, False, of_bindings(page.state, plan, in_columns))
    return drawn.split("\n") if plan.bindings else []


def _troubles(state: RunState) -> Iterator[dict[str, Any]]:
    """Yield warnings and errors, each text once: errors first, as they came."""
    repeated = sorted(state.journal.repeated.values(), key=lambda each: each.first.kind != "error")
    for first, last, times in repeated[:ENTRIES]:
        until = f" to {last:,}" if last is not None and last != first.it else ""
        more = {"where": f"iteration {first.it:,}{until}"} if first.it is not None else {}
        yield _entry(first) | more | {"times": times, "detail": first.detail}


def _entry(entry: Entry) -> dict[str, Any]:
    where = "" if entry.it is None else f"{entry.it:,}"
    shown = {"kind": entry.kind, "glyph": entry.glyph, "source": entry.source, "text": entry.text}
    return {"time": clock(entry.t), "where": where, **shown}


def _environment(page: Page) -> Iterator[tuple[str, str]]:
    """Yield the machine, the versions and the code."""
    versions = {"python": page.state.run.get("python"), "hookflow": page.run.describe().get("hookflow")}
    yield from ((name, value) for name, value in {"host": page.state.run.get("host"), **versions}.items() if value)
    yield from ((name, str(value)) for name, value in env_info(page.run).items())


def _pipeline(run: RunDir) -> str:
    try:
        return read_regular(run.pipeline).decode(errors="replace")
    except OSError:
        return ""
