"""The commands watch, replay and stop: a run followed, shown again, or ended."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hookflow.cli import complete
from hookflow.cli.options import UI, RunArgument, RunsFolder
from hookflow.cli.output import echo, has_terminal, warn
from hookflow.errors import Problem, UserError, Where

if TYPE_CHECKING:
    from hookflow.events.rundir import RunDir


def watch(
    run: RunArgument = None,
    ui: Annotated[
        UI, typer.Option(help="How to show it; auto: the dashboard on a terminal, else plain lines.")
    ] = UI.auto,
    replayed: Annotated[
        bool, typer.Option("--replay", help="Play the recording in the dashboard; keys pause it, and go back and on.")
    ] = False,
    speed: Annotated[float, typer.Option(min=0.01, help="With --replay: how many times as fast as it was.")] = 8.0,
    dir: RunsFolder = Path("runs"),  # noqa: A002  # the option's name
    readonly: Annotated[bool, typer.Option("--readonly", help="No key asks anything of the run.")] = False,
) -> None:
    """Show a run live, or as it ended; or play its recording.

    Leaving it does the run no harm.
    """
    from hookflow.service.runs import find_run

    if replayed:
        replay(run, speed, dir)
    result = find_run(run, dir)
    if ui is UI.none:
        raise UserError(Problem("nothing is shown of the run: --ui none is for hookflow run", Where("--ui")))
    if ui is UI.tui or (ui is UI.auto and has_terminal()):
        from hookflow.monitor.app import MonitorApp
        from hookflow.monitor.summary import print_summary

        app = MonitorApp(result, readonly=readonly)
        app.run()
        print_summary(app.run_dir, sys.stdout)
        raise typer.Exit(app.return_code or 0)
    from hookflow.monitor import jsonl, plain
    from hookflow.monitor.bars import can_show_bars

    if ui is UI.json:
        raise typer.Exit(jsonl.follow(result, sys.stdout))
    raise typer.Exit(plain.follow(result, sys.stdout, bars=can_show_bars(sys.stdout)))


def replay(
    run: RunArgument = None,
    speed: Annotated[float, typer.Option(min=0.01, help="How many times as fast as it was.")] = 8.0,
    dir: RunsFolder = Path("runs"),  # noqa: A002  # the option's name
) -> None:
    """Play a run's recording in the dashboard, as watch --replay does."""
    from hookflow.events.rundir import short
    from hookflow.service.runs import find_run

    result = find_run(run, dir)
    if not result.events.is_file():
        message = f"{short(result.path)} has no recording"
        raise UserError(Problem(message, Where("RUN"), "it did not get as far as to start"))
    if not has_terminal():
        hint = f"its lines, without one: hookflow watch {result.id} --ui plain"
        raise UserError(Problem("a replay needs a terminal", hint=hint))
    from hookflow.monitor.app import MonitorApp
    from hookflow.monitor.summary import print_summary

    app = MonitorApp(result, replay=speed)
    app.run()
    print_summary(result, sys.stdout)
    raise typer.Exit(app.return_code or 0)


PATIENCE = 10.0
"""Seconds that a run is given to reach a safe point, before the command leaves it alone."""

PERIOD = 0.1

ENDING = 60.0
"""Seconds that a run is given to save a checkpoint and end, once it has heard."""


def stop(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="The run: a path, an id, a part of one, or a name.",
            show_default=False,
            autocompletion=complete.runs,
        ),
    ],
    now: Annotated[
        bool, typer.Option("--now", help="End the process by signals, without a checkpoint: for a run that hangs.")
    ] = False,
    dir: RunsFolder = Path("runs"),  # noqa: A002  # the option's name
) -> None:
    """Stop a run, with a checkpoint to resume from.

    It stops at its next safe point: between two iterations, after an epoch, after a validation. With `--now` its
    process is ended at once, wherever it is: it has only the checkpoints that it has saved before.

    Exits with 2 if the run is not running, with 1 if it refuses to stop.

    Example: `hookflow stop cifar`
    """
    from hookflow.service.runs import find_run

    result = find_run(run, dir)
    life = result.life()
    if life not in ("alive", "remote"):
        message = f"the run {result.id} is not running" if life == "gone" else f"the run {result.id} has not started"
        raise UserError(Problem(message, Where("RUN"), "`hookflow runs` says how each run is"))
    try:
        (_end_now if now else _ask)(result)
    except OSError as error:
        raise UserError(Problem(f"the run {result.id} cannot be stopped: {error.strerror}", Where("RUN"))) from None


def _end_now(run: RunDir) -> None:
    from hookflow.events.stop import stop_now

    if run.life() == "remote":
        message = f"the run {run.id} is on {run.describe()['host']}, and --now ends processes of this machine"
        raise UserError(Problem(message, Where("--now"), "use it there, or leave out --now"))
    if not stop_now(run, warn):
        raise typer.Exit(1)
    _tell_end(run)


def _ask(run: RunDir) -> None:
    """Put the request into the command log, and wait for the answer a little."""
    from hookflow.events.log import event_log
    from hookflow.events.records import Record
    from hookflow.events.rundir import run_argument
    from hookflow.events.stop import send

    known = run_argument(run)
    log = event_log(run.events)
    log.at = run.events.stat().st_size if run.events.exists() else 0
    ask = send(run, "stop")
    echo(f"asked {run.id} to stop at its next safe point")
    answers: list[Record] = []

    def heard() -> bool:
        answers.extend(record for record in log.read() if record["k"] == "ack" and record["id"] == ask)
        return bool(answers) or _is_over(run)

    if not _wait_for(heard, PATIENCE):
        echo(f"it has not reached one within {PATIENCE:.0f} s: see where it is with `hookflow watch {known}`,")
        echo(f"or end it at once with `hookflow stop {known} --now`")
    elif refused := [answer["note"] for answer in answers if answer["k"] == "ack" and not answer["ok"]]:
        warn(f"refused: {refused[0]}")
        raise typer.Exit(1)
    elif _wait_for(lambda: _is_over(run), ENDING):
        _tell_end(run)


def _is_over(run: RunDir) -> bool:
    """Say whether the run has ended; one on another machine tells nothing but by its log."""
    from hookflow.monitor.overview import read_overview

    return run.life() in ("gone", "missing") or (run.life() == "remote" and read_overview(run, time.time()).health.over)


def _wait_for(happened: Callable[[], bool], seconds: float) -> bool:
    """Look again and again, until it has happened or the time is over; say whether it has."""
    until = time.monotonic() + seconds
    while not (there := happened()) and time.monotonic() < until:
        time.sleep(PERIOD)
    return there


def _tell_end(run: RunDir) -> None:
    """Say how the run has ended, and how to resume it."""
    from hookflow.events.rundir import run_argument
    from hookflow.monitor.overview import read_overview

    seen = read_overview(run, time.time())
    echo(f"{seen.health.glyph} {seen.health.condition} at iteration {seen.state.it:,}")
    if seen.state.checkpoints and seen.health.condition != "finished":
        at = seen.state.checkpoints[-1][0]
        echo(f"resume from iteration {at:,}: hookflow run --resume {run_argument(run)}")
