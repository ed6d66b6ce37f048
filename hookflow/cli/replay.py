"""hookflow replay: play what a run recorded."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from hookflow.cli.options import RunArgument, RunsFolder
from hookflow.cli.output import has_terminal


def replay(
    run: RunArgument = None,
    speed: Annotated[float, typer.Option(min=0.01, help="How many times as fast as it was.")] = 8.0,
    dir: RunsFolder = Path("runs"),  # noqa: A002  # the option's name
) -> None:
    """Play a run's recording in the dashboard, at any speed.

    Keys pause it, and go back and on.
    """
    from hookflow.cli.run_dirs import find_run
    from hookflow.errors import Problem, UserError, Where
    from hookflow.events.rundir import short

    found = find_run(run, dir)
    if not found.events.is_file():
        said = f"{short(found.path)} has no recording"
        raise UserError(Problem(said, Where("RUN"), "it did not get as far as to start"))
    if not has_terminal():
        hint = f"its lines, without one: hookflow watch {found.id} --ui plain"
        raise UserError(Problem("a replay needs a terminal", hint=hint))
    from hookflow.monitor.app import MonitorApp
    from hookflow.monitor.summary import print_summary

    app = MonitorApp(found, replay=speed)
    app.run()
    print_summary(found, sys.stdout)
    raise typer.Exit(app.return_code or 0)
