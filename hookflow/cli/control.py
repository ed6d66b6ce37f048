"""The commands that follow a run or send it a command: watch, ctl, stop, now.

The answer to a command is printed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hookflow.cli import options
from hookflow.cli.output import (
    IN_BROWSER,
    check_terminal,
    columns,
    echo,
    has_terminal,
    show_transient_line,
)
from hookflow.errors import Problem, UserError, Where
from hookflow.text import print_error

if TYPE_CHECKING:
    from hookflow.events.records import Acknowledged
    from hookflow.events.rundir import RunDir


SAFE_POINT_TIMEOUT = 10.0
"""Seconds that a run is given to reach a safe point."""

END_TIMEOUT = 60.0
"""Seconds that a run is given to end, or to validate or save a checkpoint before it answers."""


NOW_HELP = "End the process by signals, without a checkpoint: for a run that hangs."
REPLAY_HELP = "Replay the recording in the dashboard; keys pause and seek."
SPEED_HELP = "With --replay: speed, as a multiple of real time."
WEB_HELP = "Serve the dashboard to a browser of this machine, until Ctrl-C."


def ctl(
    run: options.RunName,
    command: Annotated[str | None, options.argument("COMMAND", "The command.")] = None,
    args: Annotated[list[str] | None, options.argument("ARGS", "What it takes.")] = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask before rewind and stop.")
    ] = False,
    dir: options.RunsFolder = Path("runs"),  # noqa: A002  # the option's name
) -> None:
    """Send a command to a run, and show its answer.

    The answer has the iteration at which the command took effect, or the reason why the run refuses
    it. Without COMMAND it lists the commands, and the arguments of the run's hooks that `set`
    takes.

    Exits with 2 if the run is not running or the command is wrong, with 1 if the run refuses it or
    does not answer.

    Example: `hookflow ctl cifar set grad_clip.max_norm=0.5`
    """
    from hookflow.events.commands import COMMANDS, find_command_problem
    from hookflow.service.runs import read_recorded_plan

    run_dir = _find_running(run, dir)
    settable = read_recorded_plan(run_dir).settable
    if command is None:
        _print_commands(settable)
        return
    words = args or []
    reason = find_command_problem(command, words, settable)
    if reason:
        raise UserError(Problem(reason, Where("COMMAND")))
    if COMMANDS[command].destructive and not yes:
        if not sys.stdin.isatty():
            raise UserError(
                Problem(
                    f"{command} asks first, and there is no terminal", Where("COMMAND"), "add --yes"
                )
            )
        typer.confirm(f"{run_dir.id}: {COMMANDS[command].about}?", abort=True)
    answer = _request(run_dir, END_TIMEOUT, command, *words)
    if answer is None:
        limit = f"within {END_TIMEOUT:.0f} s"
        if _is_over(run_dir):
            limit = "before the run ended"
        print_error(f"no answer {limit}")
        raise typer.Exit(1)
    text = f"{' '.join([command, *words])} done at iteration {answer['it']:,}"
    if answer["note"]:
        text += f" ({answer['note']})"
    echo(text)


def _print_commands(settable: Mapping[str, Collection[str]]) -> None:
    """Print the commands, and the arguments of hooks that `set` takes."""
    from hookflow.events.commands import COMMANDS

    rows = []
    for command in COMMANDS.values():
        call = f"{command.name} {command.takes}".rstrip()
        rows.append((call, command.about))
    echo("\n".join(columns(rows)))
    arguments = []
    for hook, names in settable.items():
        arguments += [f"{hook}.{name}" for name in names]
    echo(f"settable: {', '.join(arguments) or 'none'}")


def now(
    run: options.RunArgument = None,
    dir: options.RunsFolder = Path("runs"),  # noqa: A002  # the option's name
) -> None:
    """Show what each rank is doing now, with its stack.

    The hook that is being called is named, also where it never returns. Stacks are those of ranks
    on this machine, by py-spy if it is installed; else the rank writes its stack into the output of
    the run, too.

    Example: `hookflow now cifar`
    """
    from hookflow.monitor.feed import LogFollower
    from hookflow.monitor.health import describe_training_place, judge
    from hookflow.monitor.process_watch import LocalRanks, read_stacks, read_training_places
    from hookflow.monitor.ranks import NO_PLAN

    run_dir = _find_running(run, dir)
    live = LogFollower(run_dir, kept=True)
    live.read_all()
    state = live.state
    plan = live.plan or NO_PLAN
    health = judge(run_dir, state, time.time())
    echo(f"{health.glyph} {health.condition} at iteration {state.it:,}, {state.stage}")
    pids = LocalRanks.of(state).pids
    for rank, (binding, seconds) in sorted(read_training_places(run_dir, pids).items()):
        frames = read_stacks(run_dir, {rank: pids[rank]})[rank]
        place = describe_training_place(plan, binding, seconds, frames)
        echo(f"rank {rank} (pid {pids[rank]}): {place}")
        echo(
            "\n".join(f"  {frame}" for frame in frames)
            or "  its stack is not known: install py-spy"
        )


def stop(
    run: options.RunName,
    now: Annotated[bool, typer.Option("--now", help=NOW_HELP)] = False,
    dir: options.RunsFolder = Path("runs"),  # noqa: A002  # the option's name
) -> None:
    """Stop a run, with a checkpoint to resume from.

    It stops at its next safe point: between two iterations, after an epoch, after a validation.
    With `--now` its process is ended at once, wherever it is: it has only the checkpoints that it
    has saved before.

    Exits with 2 if the run is not running, with 1 if it refuses to stop.

    Example: `hookflow stop cifar`
    """
    from hookflow.events.commands import stop_now

    run_dir = _find_running(run, dir)
    if now and run_dir.life() == "remote":
        message = (
            f"the run {run_dir.id} is on {run_dir.describe()['host']}, and --now ends processes of"
            " this machine"
        )
        raise UserError(Problem(message, Where("--now"), "use it there, or leave out --now"))
    if not now:
        _request_stop(run_dir)
        return
    try:
        if not stop_now(run_dir, print_error):
            raise typer.Exit(1)
    except OSError as error:
        raise UserError(
            Problem(f"the run {run_dir.id} cannot be stopped: {error.strerror}", Where("RUN"))
        ) from None
    _print_end(run_dir)


def _find_running(name: str | None, folder: Path) -> RunDir:
    """Return a run that is running. Raises UserError where it is not."""
    from hookflow.service.runs import find_run

    run = find_run(name, folder, having=lambda run: run.life() == "alive")
    life = run.life()
    if life in ("alive", "remote"):
        return run
    condition = "has not started"
    if life == "gone":
        condition = "is not running"
    raise UserError(
        Problem(
            f"the run {run.id} {condition}", Where("RUN"), "`hookflow runs` says how each run is"
        )
    )


def _request(run: RunDir, patience: float, command: str, *args: str) -> Acknowledged | None:
    """Write a command into the command log, and return the answer of the run.

    Returns None where it gives none. Exits with 1 where it refuses. Raises UserError without the
    right to write.
    """
    from hookflow.events.commands import send
    from hookflow.events.log import event_log

    log = event_log(run.events)
    if run.events.exists():
        log.at = run.events.stat().st_size
    try:
        request = send(run, command, *args)
    except OSError as error:
        message = f"the run {run.id} cannot be asked to {command}: {error.strerror}"
        raise UserError(Problem(message, Where("RUN"))) from None
    answers: list[Acknowledged] = []

    def is_answered() -> bool:
        for record in log.read():
            if record["k"] == "ack" and record["id"] == request:
                answers.append(record)
        return bool(answers) or _is_over(run)

    _wait_for(is_answered, patience)
    if not answers:
        return None
    answer = answers[0]
    if not answer["ok"]:
        print_error(f"refused: {answer['note']}")
        raise typer.Exit(1)
    return answer


def _request_stop(run: RunDir) -> None:
    from hookflow.events.rundir import run_argument

    name = run_argument(run)
    echo(f"asked {run.id} to stop at its next safe point")
    if _request(run, SAFE_POINT_TIMEOUT, "stop") is None and not _is_over(run):
        echo(
            f"it has not reached one within {SAFE_POINT_TIMEOUT:.0f} s: see where it is with"
            f" `hookflow watch {name}`,"
        )
        echo(f"or end it at once with `hookflow stop {name} --now`")
    elif _wait_for(lambda: _is_over(run), END_TIMEOUT):
        _print_end(run)


def _is_over(run: RunDir) -> bool:
    """Say whether the run has ended; one on another machine shows that in its log alone."""
    from hookflow.monitor.summary import read_run_summary

    life = run.life()
    if life == "remote":
        return read_run_summary(run, time.time()).health.over
    return life in ("gone", "missing")


def _wait_for(condition: Callable[[], bool], seconds: float) -> bool:
    """Return whether a condition holds within so many seconds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.1)
    return condition()


def _print_end(run: RunDir) -> None:
    from hookflow.events.rundir import resume_command
    from hookflow.monitor.summary import read_run_summary

    seen = read_run_summary(run, time.time())
    echo(f"{seen.health.glyph} {seen.health.condition} at iteration {seen.state.it:,}")
    at = run.find_resume_iteration()
    if at is not None and seen.health.condition != "finished":
        echo(f"resume from iteration {at:,}: {resume_command(run)}")


def watch(
    run: options.RunToWatch = None,
    ui: options.UIOption = "auto",
    replay: Annotated[bool, typer.Option("--replay", help=REPLAY_HELP)] = False,
    speed: Annotated[float, typer.Option(min=0.01, help=SPEED_HELP)] = 8.0,
    dir: options.RunsFolder = Path("runs"),  # noqa: A002  # the option's name
    readonly: Annotated[
        bool, typer.Option("--readonly", help="Send no commands to the run.")
    ] = False,
    web: Annotated[bool, typer.Option("--web", help=WEB_HELP)] = False,
) -> None:
    """Show a run live or as it ended, or replay its recording.

    Without RUN, the newest run that trains is shown, or the newest of all where none trains; if
    several are training, the dashboard begins with the list of all runs. A name means the newest
    run of that name that trains, if one does. A replay is of the newest. Leaving the dashboard
    stops no run.

    With `--web` it prints the address of a page. The token in the address lets one browser in,
    once; requests from other machines and other pages are refused.

    Example: `hookflow watch cifar --replay`
    """
    with show_transient_line(f"reading {dir} …"):
        from hookflow.events.rundir import short
        from hookflow.service.runs import find_run

        living = [] if replay else _list_training_runs(dir)
        if living and run is None:
            run_dir = living[0]
        else:
            run_dir = find_run(run, dir, having=lambda each: each in living)
    if replay and not run_dir.events.is_file():
        message = f"{short(run_dir.path)} has no recording"
        raise UserError(Problem(message, Where("RUN"), "it did not get as far as to start"))
    if web:
        replay_speed = speed if replay else None
        _serve(run_dir, run, dir, replay_speed, readonly=readonly)
        return
    if replay or ui == "tui":
        check_terminal()
    if ui == "none":
        raise UserError(
            Problem("nothing is shown of the run: --ui none is for hookflow run", Where("--ui"))
        )
    if replay:
        raise typer.Exit(_show_dashboard(run_dir, replay=speed))
    if ui == "tui" or (ui == "auto" and has_terminal()):
        page = "overview"
        if run is None and len(living) > 1:  # which of them is meant is not said
            page = "runs"
        raise typer.Exit(_show_dashboard(run_dir, readonly=readonly, page=page))
    raise typer.Exit(_print_lines(run_dir, as_json=ui == "json"))


def _show_dashboard(run_dir: RunDir, **choices: Any) -> int:
    """Show the dashboard with these choices of `MonitorApp`, and return its exit code."""
    with show_transient_line(f"opening {run_dir.id} …"):
        from hookflow.monitor.app import MonitorApp, list_pages_of_actions
        from hookflow.monitor.settings import load
        from hookflow.monitor.summary import print_summary

        app = MonitorApp(run_dir, preferences=load(list_pages_of_actions()), **choices)
    app.run()
    if not IN_BROWSER:  # else the output is the channel to the page
        print_summary(app.run_dir, sys.stdout)
    return app.return_code or 0


def _print_lines(run_dir: RunDir, *, as_json: bool) -> int:
    """Print lines about a run, or its records, until it ends; return the exit code."""
    from hookflow.monitor import plain
    from hookflow.monitor.progress_bars import can_show_bars

    if as_json:
        return plain.print_records(run_dir, sys.stdout)
    return plain.print_run(run_dir, sys.stdout, bars=can_show_bars(sys.stdout))


def _serve(
    run_dir: RunDir, run: str | None, folder: Path, replay_speed: float | None, *, readonly: bool
) -> None:
    """Serve the dashboard, of a replay at `replay_speed`.

    Raises UserError where textual-serve is not installed.
    """
    from hookflow.pipeline.registry import missing_package

    missing = missing_package(
        "--web", "textual-serve", "web", Where("--web"), module="textual_serve"
    )
    if missing:
        raise UserError(missing)
    from hookflow.web.server import serve

    command = [sys.executable, "-m", "hookflow", "watch"]
    if run is not None:
        command.append(str(run_dir.path))
    command += [f"--dir={folder}", "--ui=tui"]
    if replay_speed is not None:
        command += ["--replay", f"--speed={replay_speed}"]
    if readonly:
        command.append("--readonly")
    serve(command, f"{run_dir.path.parent.name} {run_dir.id}", _print_address)


def _print_address(address: str) -> None:
    echo(
        f"{address}\nOpen it in a browser on this machine. The token is good for one time. Ctrl-C"
        " ends this server."
    )
    sys.stdout.flush()


def _list_training_runs(folder: Path) -> list[RunDir]:
    """Return the runs of a folder that train, the newest first.

    A run of another machine that has stalled is none of them: it is unknown whether its process is
    still there.
    """
    from hookflow.monitor.health import ALIVE_CONDITIONS
    from hookflow.monitor.index import Index

    living = []
    for row in Index(folder).refresh():
        status = row.values["status"]
        if status in ALIVE_CONDITIONS and (status != "stalled" or row.run.life() == "alive"):
            living.append(row.run)
    return living
