"""`hookflow.train`: a pipeline is trained, and shown meanwhile.

It is trained in this process, or in one of its own. A notebook shows bars that are drawn anew while
the run goes on, and in the end a table of its metrics.
"""

import os
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import copy_context
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, get_args

from rich.table import Table
from rich.text import Text

from hookflow.api.pipeline import Pipeline, load
from hookflow.api.recorded import RecordedRun
from hookflow.errors import Problem, TrainingTerminatedError, UserError, nearest_or_all
from hookflow.events.run_lock import exit_code, release
from hookflow.events.rundir import RunDir, short
from hookflow.monitor import plain, progress_bars
from hookflow.monitor.feed import LogFollower, show_records
from hookflow.monitor.health import judge
from hookflow.monitor.summary import make_metrics_table
from hookflow.numbers import format_count, format_span, number
from hookflow.runner.distributed.failures import ChildExit
from hookflow.runner.distributed.rendezvous import is_started_by_torchrun
from hookflow.runner.process.launch import (
    claim,
    finish_notifying,
    hand_on_signals,
    new_run,
    start,
    start_notifying,
)
from hookflow.runner.process.signals import handlers_put_back
from hookflow.service.runs import failure_report
from hookflow.text import make_printable, substitute_on

UIKind = Literal["auto", "plain", "json", "none"]

Follow = Callable[[Callable[[], int | None]], int]
"""Shows a run until it is over, and returns its exit code.

It is given a function that returns the exit code of the training once there is one.
"""


def train(
    pipeline: Pipeline | str | os.PathLike[str] | Mapping[str, Any],
    ui: UIKind = "auto",
    *,
    runs: str | os.PathLike[str] | None = None,
    process: bool = False,
) -> RecordedRun:
    """Train a pipeline (what `load` returns, or what it takes) and return the run when it is over.

    `ui` says how to show it: "plain" prints lines and "json" records, "none" shows nothing, "auto"
    is progress bars and a table in a notebook and plain lines elsewhere. `runs` is the folder of
    runs; left out, the pipeline says it. With `process` it trains in a process of its own, as
    `hookflow run` does.

    An exception that ends the training is raised: a mistake in the pipeline as UserError, else what
    the code of a hook, a model or a task has raised; from a process of its own a RuntimeError with
    the exit status and the reason. Ctrl-C ends the training at its next safe point, with a
    checkpoint, and is raised as KeyboardInterrupt then; SIGTERM and SIGUSR1 likewise, as
    TrainingTerminatedError.
    """
    if not isinstance(pipeline, Pipeline):
        pipeline = load(pipeline)
    _check(pipeline, ui, process)
    folder = None
    if runs is not None:
        folder = Path(runs)
    run_dir = new_run(pipeline.loaded, pipeline.plan, folder)
    follow: Follow | None = None
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if ui == "auto" and hasattr(shell, "kernel"):  # of a notebook
        follow = partial(_follow_in_notebook, run_dir)
    elif ui != "none":
        substitute_on(sys.stdout)
        follow = partial(_follow_on_stdout, run_dir, ui)
    with handlers_put_back():
        try:
            if process:
                code = _in_its_own(run_dir, follow)
            else:
                code = _train_here(pipeline, run_dir, follow)
        finally:
            unsent = finish_notifying(run_dir)
            if unsent:
                warnings.warn(unsent, stacklevel=2)
    _raise_failure(run_dir, code, resumable=not pipeline.objects)
    return RecordedRun(run_dir)


def _check(pipeline: Pipeline, ui: str, process: bool) -> None:
    if ui not in (known := get_args(UIKind)):
        raise UserError(Problem(f'there is no ui "{ui}"', hint=nearest_or_all(str(ui), known)))
    if is_started_by_torchrun():
        hint = "torchrun … -m hookflow run FILE trains one model in all of its processes"
        raise UserError(
            Problem(
                "hookflow.train trains in one process, and torchrun has started several", hint=hint
            )
        )
    if process and pipeline.objects:
        message = (
            "a process of its own has none of the objects in the pipeline:"
            f" {', '.join(pipeline.objects)}"
        )
        raise UserError(
            Problem(
                message,
                hint='leave process out, or let `use` name what makes them: "./file.py:Name"',
            )
        )


def _train_here(pipeline: Pipeline, run_dir: RunDir, follow: Follow | None) -> int:
    """Train in this process and return the exit code. Raises what ends the training."""
    from hookflow.runner.attempt.main import collect_garbage, train

    locks = claim(run_dir)
    start_notifying(run_dir, os.getpid(), time.time())
    try:
        with pipeline.in_use(), _show_in_thread(follow):
            return train(run_dir, raises=True)
    finally:
        release(locks)
        collect_garbage()  # a run is a circle of objects: its models would stay until Python looks


@contextmanager
def _show_in_thread(follow: Follow | None) -> Iterator[None]:
    """Show the run from a thread while the training has this one."""
    if follow is None:
        yield
        return
    has_begun = threading.Event()
    is_trained = threading.Event()

    def child_exit() -> int | None:
        has_begun.set()  # it is first asked when all is read that earlier attempts have left
        if is_trained.is_set():
            return 0
        return None

    def show() -> None:
        try:
            with suppress(BrokenPipeError):  # the reader has gone
                follow(child_exit)
        finally:
            has_begun.set()

    thread = threading.Thread(
        target=copy_context().run, args=(show,), name="hookflow-ui", daemon=True
    )
    thread.start()
    has_begun.wait()
    try:
        yield
    finally:
        is_trained.set()
        thread.join()


def _in_its_own(run_dir: RunDir, follow: Follow | None) -> int:
    """Train in a process of its own and return its exit code.

    The signals that this one gets are handed on to it.
    """

    def begin() -> subprocess.Popen[bytes]:
        child = start(run_dir)
        if threading.current_thread() is threading.main_thread():
            hand_on_signals(child, [])
        return child

    child_exit = ChildExit(run_dir, begin)
    if follow is not None:
        with suppress(BrokenPipeError):
            follow(child_exit)
    return exit_code(child_exit.wait())


def _raise_failure(run_dir: RunDir, code: int, *, resumable: bool) -> None:
    """Raise what the exit code of a training says, unless it is over as it should be."""
    if code == 0:
        return
    reason = failure_report(run_dir)
    run = short(run_dir.path)
    if resumable:
        follows = f"resume it with: hookflow run --resume {run}"
    else:
        follows = f"hookflow.load_run({str(run)!r})"
    if code == 130:
        raise KeyboardInterrupt(f"{reason}; {follows}")
    if code == 143:
        raise TrainingTerminatedError(f"{reason}; {follows}")
    if code == 2:
        raise UserError(Problem(reason))
    raise RuntimeError(
        f"the run {run_dir.id} ended with exit status {code}: {reason} (see"
        f" {short(run_dir.output)})"
    )


def _follow_on_stdout(run_dir: RunDir, ui: UIKind, child_exit: Callable[[], int | None]) -> int:
    """Print the records of a run, or its plain lines, until it is over."""
    if ui == "json":
        return plain.print_records(run_dir, sys.stdout, child_exit=child_exit)
    return plain.print_run(run_dir, sys.stdout, child_exit=child_exit)


NOTEBOOK_WIDTH = 115
"""Characters of a line that rich draws in a notebook."""

REDRAW_PERIOD_SECONDS = 0.5
"""Seconds between two drawings of the bars, at the least."""


def _follow_in_notebook(run_dir: RunDir, child_exit: Callable[[], int | None]) -> int:
    """Show the run until it is over, as `monitor.plain.follow` does."""
    # IPython is installed wherever a notebook runs.
    display: Callable[..., Any] = import_module("IPython.display").display

    live = LogFollower(run_dir)
    shown = display(_render_bars(run_dir, live), display_id=True)
    at = 0.0

    def draw(over: bool) -> None:
        nonlocal at
        if over or time.monotonic() - at > REDRAW_PERIOD_SECONDS:
            shown.update(_render_bars(run_dir, live))
            at = time.monotonic()

    code = show_records(run_dir, live, lambda record: draw(False), child_exit, draw)
    draw(True)
    state = live.state
    table = make_metrics_table(state, state.scalars)
    if table:
        done = f"{format_count(state.it, 'iteration')} in {format_span(state.elapsed)}"
        title = f"{run_dir.path.parent.name} {run_dir.id}: {done}"
        table.title = Text(make_printable(title))
        table.title_justify = "left"
        display(table)
    return code


def _render_bars(run_dir: RunDir, live: LogFollower) -> Table:
    """Return the bars that a terminal shows.

    They are below the condition of the run and its latest metrics.
    """
    state = live.state
    facts = [f"{run_dir.path.parent.name}: {judge(run_dir, state, time.time()).condition}"]
    metrics = state.metrics.by_name.items()
    facts += [f"val {name} {number(values[-1][1])}" for name, values in metrics if " " not in name]
    table = progress_bars.make_bars_table(
        [*progress_bars.make_progress_bars(state)], NOTEBOOK_WIDTH
    )
    table.title = Text(make_printable("  ".join(facts)))
    table.title_justify = "left"
    return table
