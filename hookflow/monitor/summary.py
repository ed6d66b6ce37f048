"""The summary that stays on the screen when the dashboard closes."""

from __future__ import annotations

import re
import shutil
import textwrap
import time
from collections import Counter
from collections.abc import Iterable
from typing import TextIO

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from hookflow.events.rundir import RunDir, run_argument, short
from hookflow.graph.plan import Plan
from hookflow.monitor.feed import Live
from hookflow.monitor.health import end_reason, judge
from hookflow.monitor.ranks import NO_PLAN
from hookflow.monitor.series import in_order
from hookflow.monitor.state import RunState
from hookflow.numbers import counted, ms, number, out_of, percent, span
from hookflow.text import printable


def metrics_table(state: RunState, plan: Plan) -> Table | None:
    """Return the table; None of a run that has not been validated or tested."""
    metrics = state.metrics.by_name
    names = [name for name in in_order(metrics, plan) if metrics[name]]
    if not names:
        return None
    table = Table("metric", box=SIMPLE_HEAD, header_style="bold")
    for heading in ("last", "best", "at epoch", "iteration"):
        table.add_column(heading, justify="right")
    for name in names:
        best = state.metrics.best.get(name)
        where = (number(best.value), str(best.ep), str(best.it)) if best else ("", "", "")
        table.add_row(Text(printable(name)), number(metrics[name][-1][1]), *where)
    return table


COMMAND = re.compile(r"(?<=: )hookflow .*$")
"""A command at the end of a line, for people to copy."""


def print_summary(run: RunDir, out: TextIO) -> None:
    """Read the run's log to its present end and print what it comes to."""
    live = Live(run)
    while live.poll():
        pass
    print_folded(summary(run, live.state, live.plan), out)


def print_folded(lines: Iterable[str], out: TextIO) -> None:
    """Print lines, on a terminal broken between words alone, and not in a command: what is to be copied stays whole."""
    if out.isatty():
        width = shutil.get_terminal_size().columns
        lines = [part for line in lines for part in _folded(line, width)]
    print("\n".join(lines), file=out, flush=True)


def _folded(line: str, width: int) -> list[str]:
    inner = " " * (len(line) - len(line.lstrip()) + 2)
    kept = COMMAND.sub(lambda result: result[0].replace(" ", "\0"), line)  # as one word, for no line has a \0
    parts = textwrap.wrap(kept, width, subsequent_indent=inner, break_long_words=False, break_on_hyphens=False)
    return [part.replace("\0", " ") for part in parts]


def summary(run: RunDir, state: RunState, plan: Plan | None) -> list[str]:
    """Return the lines."""
    health = judge(run, state, time.time(), plan)
    whole = state.run.get("max_epochs")
    epoch = f" epoch {out_of(state.epoch, whole)}," if whole else ""
    lines = [
        f"{health.glyph} {run.path.parent.name} {run.id}: {health.condition} after {span(state.elapsed)},"
        f"{epoch} iteration {out_of(state.it, state.total_iters)}"
    ]
    lines += [f"  {line}" for line in end_reason(state) or [health.sentence] if line]
    if state.refused:
        lines.append(f"  not resumed: {' '.join(state.refused['reason'].split())}")
    if splits := state.synthetic:
        lines.append(f"  SYNTHETIC {', '.join(splits)} data: the scores say nothing about the real data set")
    if parts := state.limited:
        lines.append(f"  LIMITED data ({', '.join(parts)}): the scores are of a part of the data set")
    for name in in_order(state.metrics.best, plan or NO_PLAN)[:3]:
        best = state.metrics.best[name]
        lines.append(f"  best {name} {number(best.value)} at epoch {best.ep}, iteration {best.it}")
    if state.checkpoints:
        lines.append(f"  checkpoint {short(run.path / state.checkpoints[-1][1])}")
    if costs := _costs(state, plan or NO_PLAN):
        lines.append(f"  costliest hooks: {costs}")
    if state.ranks.world > 1:
        lines.append(f"  {state.ranks.world} ranks: {_evenness(state)}")
    if state.journal.warnings or state.journal.errors:
        troubles = f"warnings {state.journal.warnings}, errors {state.journal.errors}"
        lines.append(f"  {troubles}; in full: hookflow show {run_argument(run)}")
        if state.errors:
            lines.append(f"  whole tracebacks and what the run printed: {short(run.output)}")
    if state.unreadable:
        were = "was" if state.unreadable == 1 else "were"
        passed_over = f"cannot be read and {were} passed over ({state.complaint})"
        lines.append(f"  {counted(state.unreadable, 'line')} of its logs {passed_over}")
    if not run.path.exists():
        return [printable(line) for line in lines]
    known = run_argument(run)
    if state.checkpoints and health.condition in ("interrupted", "stopped", "failed", "lost"):
        lines.append(f"  resume from iteration {state.checkpoints[-1][0]}: hookflow run --resume {known}")
    lines.append(f"  {'look again' if health.over else 'the run goes on; watch it'}: hookflow watch {known}")
    return [printable(line) for line in lines]


def _evenness(state: RunState) -> str:
    """Return how even the ranks were over the whole attempt, and who left without a word."""
    message = [f"no end record from rank {', '.join(map(str, gone))}"] if (gone := state.ranks.gone) else []
    if skew := state.ranks.mean_skew():
        slowest, cost, whole = skew
        times = f"{ms(cost)} ms of each {ms(whole)} ms iteration ({percent(cost / whole)} %)"
        message = [f"mean skew {times}, rank {slowest} the slowest", *message]
    too_early = "too few iterations to compare them" if state.it else "they did not get as far as to iterate"
    return ", ".join(message) or too_early


def _costs(state: RunState, plan: Plan) -> str:
    """Return the hooks that took most of the whole attempt: of its iterations, and outside them."""
    inside: Counter[str] = Counter()
    outside: Counter[str] = Counter()
    for binding in plan.bindings:
        if spent := state.timing(binding.id).total:
            (inside if plan.points.in_iteration(binding.point) else outside)[binding.hook] += spent
    costs = []
    if inside and state.iterating:
        shares = ", ".join(f"{hook} {percent(ns / state.iterating)} %" for hook, ns in inside.most_common(3))
        costs.append(f"{shares} of the iterations")
    if outside:
        hook, ns = outside.most_common(1)[0]
        where = "outside them " if costs else "outside the iterations " if state.iterating else ""
        costs.append(f"{where}{hook} {ms(ns)} ms")
    return ", ".join(costs)
