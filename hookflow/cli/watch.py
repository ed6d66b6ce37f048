"""The command watch: a run followed, or played again."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hookflow.cli.options import RunArgument, RunsFolder, UIOption
from hookflow.cli.output import echo, has_terminal
from hookflow.errors import Problem, UserError, Where

if TYPE_CHECKING:
    from hookflow.events.rundir import RunDir

IN_BROWSER = "TEXTUAL_DRIVER" in os.environ
"""Whether textual-serve has started this process to draw on a page."""


def watch(
    run: RunArgument = None,
    ui: UIOption = "auto",
    replay: Annotated[
        bool, typer.Option("--replay", help="Replay the recording in the dashboard; keys pause and seek.")
    ] = False,
    speed: Annotated[float, typer.Option(min=0.01, help="With --replay: speed, as a multiple of real time.")] = 8.0,
    dir: RunsFolder = Path("runs"),  # noqa: A002  # the option's name
    readonly: Annotated[bool, typer.Option("--readonly", help="Send no commands to the run.")] = False,
    web: Annotated[
        bool, typer.Option("--web", help="Serve the dashboard to a browser of this machine, until Ctrl-C.")
    ] = False,
) -> None:
    """Show a run live or as it ended, or replay its recording.

    Without RUN, the dashboard begins with the list of all runs if several are training. Leaving it stops no run.

    With `--web` it prints the address of a page. The token in the address lets one browser in, once; requests from
    other machines and other pages are refused.
    """
    from hookflow.events.rundir import short
    from hookflow.service.runs import find_run

    run_dir = find_run(run, dir)
    if replay and not run_dir.events.is_file():
        message = f"{short(run_dir.path)} has no recording"
        raise UserError(Problem(message, Where("RUN"), "it did not get as far as to start"))
    if web:
        _serve(run_dir, run, dir, ["--replay", f"--speed={speed}"] * replay + ["--readonly"] * readonly)
        return
    if replay and not (has_terminal() or IN_BROWSER):
        hint = f"its lines, without one: hookflow watch {run_dir.id} --ui plain"
        raise UserError(Problem("a replay needs a terminal", hint=hint))
    if ui == "none":
        raise UserError(Problem("nothing is shown of the run: --ui none is for hookflow run", Where("--ui")))
    if replay or ui == "tui" or (ui == "auto" and has_terminal()):
        from hookflow.monitor.app import MonitorApp
        from hookflow.monitor.settings import load
        from hookflow.monitor.summary import print_summary

        page = "runs" if run is None and _several_train(dir) else "main"
        how: dict[str, Any] = {"replay": speed} if replay else {"readonly": readonly, "page": page}
        app = MonitorApp(run_dir, preferences=load(), **how)
        app.run()
        if not IN_BROWSER:  # else the output is the channel to the page
            print_summary(app.run_dir, sys.stdout)
        raise typer.Exit(app.return_code or 0)
    from hookflow.monitor import plain

    if ui == "json":
        raise typer.Exit(plain.follow_json(run_dir, sys.stdout))
    raise typer.Exit(plain.follow(run_dir, sys.stdout, bars=plain.can_show_bars(sys.stdout)))


def _serve(run_dir: RunDir, run: str | None, folder: Path, options: list[str]) -> None:
    """Serve the dashboard. Raises UserError where textual-serve is not installed."""
    from hookflow.pipeline.registry import missing_package

    if missing := missing_package("--web", "textual-serve", "web", Where("--web"), module="textual_serve"):
        raise UserError(missing)
    from hookflow.monitor.web import serve

    named = [] if run is None else [str(run_dir.path)]
    command = [sys.executable, "-m", "hookflow", "watch", *named, f"--dir={folder}", "--ui=tui", *options]
    serve(command, f"{run_dir.path.parent.name} {run_dir.id}", _print_address)


def _print_address(address: str) -> None:
    echo(f"{address}\nOpen it in a browser on this machine. The token is good for one time. Ctrl-C ends this server.")
    sys.stdout.flush()


def _several_train(folder: Path) -> bool:
    from hookflow.monitor.health import ALIVE
    from hookflow.monitor.index import Index

    return sum(row.values["status"] in ALIVE for row in Index(folder).refresh()) > 1
