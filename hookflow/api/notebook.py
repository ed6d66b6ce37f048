"""A run in a notebook: a line that is drawn anew while the run goes on, and in the end a table of what it came to."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

from rich.text import Text

from hookflow.events.rundir import RunDir
from hookflow.monitor.feed import Live, follow_records
from hookflow.monitor.health import Pace, judge
from hookflow.monitor.summary import metrics_table
from hookflow.numbers import counted, number, span
from hookflow.text import printable

BAR = 30
"""Characters of the bar."""

PERIOD = 0.5
"""Seconds between two drawings of the line, at the least."""


def is_here() -> bool:
    """Say whether this process is the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


def follow(run_dir: RunDir, child_exit: Callable[[], int | None]) -> int:
    """Show the run until it is over, as `monitor.plain.follow` does."""
    display: Callable[..., Any] = import_module("IPython.display").display  # it is there, in a notebook

    live = Live(run_dir)
    drawn, at = _line(run_dir, live), 0.0
    line = display(drawn, display_id=True)

    def draw(over: bool) -> None:
        nonlocal drawn, at
        if over or time.monotonic() - at > PERIOD:
            before, drawn, at = drawn, _line(run_dir, live), time.monotonic()
            if drawn != before:
                line.update(drawn)

    code = follow_records(run_dir, live, lambda record: draw(False), child_exit, draw)
    draw(True)
    state = live.state
    if table := metrics_table(state, state.scalars):
        title = f"{run_dir.path.parent.name} {run_dir.id}: {counted(state.it, 'iteration')} in {span(state.elapsed)}"
        table.title, table.title_justify = Text(printable(title)), "left"
        display(table)
    return code


def _line(run_dir: RunDir, live: Live) -> Text:
    """Return how far the run is, and its latest numbers."""
    state = live.state
    health = judge(run_dir, state, time.time())
    facts = [f"{run_dir.path.parent.name}: {health.condition}"]
    if state.total_iters:
        done = round(BAR * min(state.it / state.total_iters, 1))
        facts[0] += f"  {'━' * done}{'─' * (BAR - done)}"
        epochs = state.run["max_epochs"]
        facts += [f"epoch {state.epoch}/{epochs}"] if epochs else []
        facts.append(f"iteration {state.it}/{state.total_iters}")
    facts += [f"{name} {number(series.last)}" for name, series in state.scalars.items() if name == "loss"]
    facts += [
        f"val {name} {number(values[-1][1])}" for name, values in state.metrics.by_name.items() if " " not in name
    ]
    if not health.over and (pace := Pace.of(state)).iters_per_s:
        facts.append(f"{pace.iters_per_s:.1f} it/s")
        facts += [f"{span(pace.eta)} left"] if pace.eta is not None else []
    return Text(printable("  ".join(facts)), no_wrap=True, overflow="ignore")
