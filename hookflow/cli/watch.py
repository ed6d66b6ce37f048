"""hookflow watch: look at a run, live, from as many places as one likes."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from hookflow.cli.options import RunArgument, RunsFolder
from hookflow.cli.output import has_terminal


class Face(StrEnum):
    """How a run is shown."""

    TUI = "tui"
    PLAIN = "plain"
    JSON = "json"


def watch(
    run: RunArgument = None,
    ui: Annotated[Face | None, typer.Option(help="The dashboard, plain lines, or raw events; by the terminal.")] = None,
    dir: RunsFolder = Path("runs"),  # noqa: A002  # the option's name
    readonly: Annotated[bool, typer.Option("--readonly", help="No key asks anything of the run.")] = False,
) -> None:
    """Show a run live, or as it ended.

    Leaving it does the run no harm.
    """
    from hookflow.cli.run_dirs import find_run

    found = find_run(run, dir)
    if ui is Face.TUI or (ui is None and has_terminal()):
        from hookflow.monitor.app import MonitorApp
        from hookflow.monitor.summary import print_summary

        app = MonitorApp(found, readonly=readonly)
        app.run()
        print_summary(app.run_dir, sys.stdout)
        raise typer.Exit(app.return_code or 0)
    from hookflow.monitor import jsonl, plain
    from hookflow.monitor.bars import can_show_bars

    if ui is Face.JSON:
        raise typer.Exit(jsonl.follow(found, sys.stdout))
    raise typer.Exit(plain.follow(found, sys.stdout, bars=can_show_bars(sys.stdout)))
