"""The `hookflow` command. Each command imports its dependencies when it is called."""

from __future__ import annotations

import errno
import gc
import io
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from typer.core import TyperGroup

from hookflow.cli.check import check
from hookflow.cli.checkpoints import checkpoints, prune
from hookflow.cli.compare import compare
from hookflow.cli.control import ctl, now, stop, watch
from hookflow.cli.evaluate import predict, test, val
from hookflow.cli.explain import explain
from hookflow.cli.export import export
from hookflow.cli.fork import fork
from hookflow.cli.graph import graph
from hookflow.cli.new import new
from hookflow.cli.output import echo, echo_error
from hookflow.cli.rerun import rerun
from hookflow.cli.run import run
from hookflow.cli.runs import rm, runs, tag
from hookflow.cli.show import show
from hookflow.cli.sweep import sweep
from hookflow.cli.why import why
from hookflow.errors import Problem, UserError, Where
from hookflow.text import drop_unprinted, print_error, printable, substitute_on
from hookflow.version import __version__


@contextmanager
def _quoted() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if hasattr(error, "format_message") and isinstance(getattr(error, "message", None), str):  # one of click's
            error.message = printable(error.message)  # type: ignore[attr-defined]
        raise


class Commands(TyperGroup):
    """The commands. Messages about a command line quote it without control characters."""

    make_context = _quoted()(TyperGroup.make_context)
    invoke = _quoted()(TyperGroup.invoke)


app = typer.Typer(
    cls=Commands,
    help="Train with hooks that are nodes of a graph: ordered, timed and shown live.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
COMMANDS = {
    "Train": (new, run, fork, rerun, sweep, ctl, stop, val, test, predict),
    "The graph of a pipeline": (check, graph, why, explain),
    "Runs": (runs, compare, watch, now, show, tag, rm, prune, export, checkpoints),
}
for panel, commands in COMMANDS.items():
    for command in commands:
        app.command(rich_help_panel=panel)(command)
app.command("diff", hidden=True)(compare)  # its name before it compared runs


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        echo(f"hookflow {__version__} (Python {platform.python_version()}, PyTorch {version('torch')})")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Take the options that stand before a command."""


REFUSED = (
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.ENXIO),
    *(errno.EIO, errno.ENOTCONN, errno.ESTALE, errno.ENODEV, errno.EHOSTDOWN, errno.ETIMEDOUT),
)
"""Errors of the system that are printed without a traceback.

The permissions of a file forbid it, or its path is of another kind. Or the disk or the mount is broken.
"""


def main() -> None:
    """Run the command line. A user's mistake is printed as such and exits with 2, without a traceback."""
    _open_closed_streams()
    gc.set_threshold(50_000)  # importing makes objects that stay: to search them for garbage is a tenth of the start
    substitute_on(sys.stdout, sys.stderr)  # on the latter the dashboard is painted
    try:
        try:
            app(prog_name="hookflow")  # by which completion asks, too, whatever started it
        finally:
            sys.stdout.flush()  # while it can still be said that this fails
    except UserError as error:
        echo_error(error)
        raise SystemExit(2) from None
    except OSError as error:
        if error.errno in REFUSED and error.filename is not None:
            echo_error(UserError(Problem(str(error.strerror), Where(os.path.relpath(os.fsdecode(error.filename))))))
            raise SystemExit(2) from None
        if error.errno not in (errno.ENOSPC, errno.EPIPE):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or it would fail once more, at the exit
        if error.errno == errno.EPIPE:  # the reader has gone, as after `| head`
            raise SystemExit(1) from None
        print_error(f"cannot be written: {error.strerror}")
        raise SystemExit(2) from None
    finally:
        drop_unprinted()


def _open_closed_streams() -> None:
    """Let the standard streams that are closed from the start (`>&-`) lead nowhere.

    The next file that is opened would have the number of one, and be taken for it by every process that is started.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # it is given the lowest number that is free
            setattr(sys, name, io.TextIOWrapper(io.FileIO(number, mode, closefd=False), encoding="utf-8"))
