"""The `hookflow` command. Each command stands in a file of its own and imports what it needs when it is called."""

from __future__ import annotations

import errno
import gc
import io
import os
import sys

import typer

from hookflow.cli.check import check
from hookflow.cli.checkpoints import checkpoints
from hookflow.cli.diff import diff
from hookflow.cli.graph import graph
from hookflow.cli.hooks import hooks
from hookflow.cli.output import show_error, warn
from hookflow.cli.points import points
from hookflow.cli.replay import replay
from hookflow.cli.run import run
from hookflow.cli.runs import runs
from hookflow.cli.schema import schema
from hookflow.cli.test import test
from hookflow.cli.val import val
from hookflow.cli.watch import watch
from hookflow.cli.why import why
from hookflow.errors import UserError

app = typer.Typer(
    help="Train with hooks that are nodes of a graph: ordered, timed and shown live.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
COMMANDS = {
    "Train": (run, val, test),
    "The graph of a pipeline": (check, graph, why, diff),
    "What there is": (points, hooks, schema),
    "Runs": (watch, replay, runs, checkpoints),
}
for panel, commands in COMMANDS.items():
    for command in commands:
        app.command(rich_help_panel=panel)(command)


def main() -> None:
    """Run the command line. A user's mistake is printed as such and exits with 2, without a traceback."""
    gc.set_threshold(50_000)  # importing makes objects that stay: to search them for garbage is a tenth of the start
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # where it takes nothing but ASCII, an arrow is a question mark
    try:
        _run()
    except UserError as error:
        show_error(error)
        raise SystemExit(2) from None
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or it would fail once more, at the exit
        warn(f"cannot be written: {error.strerror}")
        raise SystemExit(2) from None


def _run() -> None:
    try:
        app(prog_name="hookflow")  # by which completion asks, too, whatever started it
    finally:
        sys.stdout.flush()  # while it can still be said that this fails
