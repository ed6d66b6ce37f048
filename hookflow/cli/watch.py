"""The commands watch and stop: a run followed, played again, or ended."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hookflow.cli import complete
from hookflow.cli.options import RunArgument, RunsFolder, UIOption
from hookflow.cli.output import echo, has_terminal
from hookflow.errors import Problem, UserError, Where
from hookflow.text import print_error

if TYPE_CHECKING:
    from hookflow.events.rundir import RunDir


def watch(
    run: RunArgument = None,
    ui: UIOption = "auto",
    replay: Annotated[
        bool, typer.Option("--replay", help="Replay the recording in the dashboard; keys pause and seek.")
    ] = False,
    speed: Annotated[float, typer.Option(min=0.01, help="With --replay: speed, as a multiple of real time.")] = 8.0,
    dir: RunsFolder = Path("runs"),  # noqa: A002  # the option's name
    readonly: Annotated[bool, typer.Option("--readonly", help="Send no commands to the run.")] = False,
) -> None:
    """Show a run live or as it ended, or replay its recording.

    Leaving the dashboard does not stop the run.
    """
    from hookflow.events.rundir import short
    from hookflow.service.runs import find_run

    run_dir = find_run(run, dir)
    if replay and not run_dir.events.is_file():
        message = f"{short(run_dir.path)} has no recording"
        raise UserError(Problem(message, Where("RUN"), "it did not get as far as to start"))
    if replay and not has_terminal():
        hint = f"its lines, without one: hookflow watch {run_dir.id} --ui plain"
        raise UserError(Problem("a replay needs a terminal", hint=hint))
    if ui == "none":
        raise UserError(Problem("nothing is shown of the run: --ui none is for hookflow run", Where("--ui")))
    if replay or ui == "tui" or (ui == "auto" and has_terminal()):
        from hookflow.monitor.app import MonitorApp
        from hookflow.monitor.summary import print_summary

        app = MonitorApp(run_dir, replay=speed) if replay else MonitorApp(run_dir, readonly=readonly)
        app.run()
        print_summary(app.run_dir, sys.stdout)
        raise typer.Exit(app.return_code or 0)
    from hookflow.monitor import plain

    if ui == "json":
        raise typer.Exit(plain.follow_json(run_dir, sys.stdout))
    raise typer.Exit(plain.follow(run_dir, sys.stdout, bars=plain.can_show_bars(sys.stdout)))


PATIENCE = 10.0
"""Seconds that a run is given to reach a safe point."""

ENDING = 60.0
"""Seconds that a run is given to save a checkpoint and end, once it has answered."""


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
    from hookflow.events.commands import stop_now
    from hookflow.service.runs import find_run

    run_dir = find_run(run, dir)
    life = run_dir.life()
    if life not in ("alive", "remote"):
        message = f"the run {run_dir.id} {'is not running' if life == 'gone' else 'has not started'}"
        raise UserError(Problem(message, Where("RUN"), "`hookflow runs` says how each run is"))
    if now and life == "remote":
        message = f"the run {run_dir.id} is on {run_dir.describe()['host']}, and --now ends processes of this machine"
        raise UserError(Problem(message, Where("--now"), "use it there, or leave out --now"))
    try:
        if not now:
            _request_stop(run_dir)
        elif stop_now(run_dir, print_error):
            _print_end(run_dir)
        else:
            raise typer.Exit(1)
    except OSError as error:
        raise UserError(Problem(f"the run {run_dir.id} cannot be stopped: {error.strerror}", Where("RUN"))) from None


def _request_stop(run: RunDir) -> None:
    """Write the request into the command log, and wait for the answer and the end of the run."""
    from hookflow.events.commands import send
    from hookflow.events.log import event_log
    from hookflow.events.rundir import run_argument

    name = run_argument(run)
    log = event_log(run.events)
    log.at = run.events.stat().st_size if run.events.exists() else 0
    request = send(run, "stop")
    echo(f"asked {run.id} to stop at its next safe point")
    answers: list[str] = []

    def answered() -> bool:
        acks = (record for record in log.read() if record["k"] == "ack" and record["id"] == request)
        answers.extend("" if ack["ok"] else ack["note"] for ack in acks)
        return bool(answers) or _is_over(run)

    if not _wait_for(answered, PATIENCE):
        echo(f"it has not reached one within {PATIENCE:.0f} s: see where it is with `hookflow watch {name}`,")
        echo(f"or end it at once with `hookflow stop {name} --now`")
    elif any(answers):
        print_error(f"refused: {answers[0]}")
        raise typer.Exit(1)
    elif _wait_for(lambda: _is_over(run), ENDING):
        _print_end(run)


def _is_over(run: RunDir) -> bool:
    """Say whether the run has ended; one on another machine shows that in its log alone."""
    from hookflow.monitor.summary import read_overview

    return run.life() in ("gone", "missing") or (run.life() == "remote" and read_overview(run, time.time()).health.over)


def _wait_for(condition: Callable[[], bool], seconds: float) -> bool:
    until = time.monotonic() + seconds
    while not (holds := condition()) and time.monotonic() < until:
        time.sleep(0.1)
    return holds


def _print_end(run: RunDir) -> None:
    from hookflow.events.rundir import run_argument
    from hookflow.monitor.summary import read_overview

    seen = read_overview(run, time.time())
    echo(f"{seen.health.glyph} {seen.health.condition} at iteration {seen.state.it:,}")
    if seen.state.checkpoints and seen.health.condition != "finished":
        at = seen.state.checkpoints[-1]["it"]
        echo(f"resume from iteration {at:,}: hookflow run --resume {run_argument(run)}")
