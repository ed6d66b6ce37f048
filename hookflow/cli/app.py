"""The `hookflow` command.

The module of a command, and its dependencies, are imported when it is called.
"""

import errno
import gc
import io
import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from hookflow.cli.output import FULL_DISK_ERRORS, echo, echo_error
from hookflow.errors import Problem, UserError, Where
from hookflow.text import drop_unprinted, make_printable, print_error, substitute_on
from hookflow.version import __version__


def _key_of_run(error: Any) -> str:
    """Return how to set the key of [run] that an unknown option is named like.

    The command must take `--set`.
    """
    if not hasattr(error, "possibilities") or not any(
        "--set" in param.opts for param in error.ctx.command.params
    ):
        return ""
    from hookflow.pipeline.schema import RunSection

    name = error.option_name.lstrip("-").replace("-", "_")
    if name not in RunSection.model_fields:
        return ""
    error.possibilities = None
    return f"; did you mean --set run.{name}=…?"


@contextmanager
def _quoted() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        # Only the exceptions of click have both attributes.
        if hasattr(error, "format_message") and isinstance(getattr(error, "message", None), str):
            error.message = make_printable(error.message) + _key_of_run(error)  # type: ignore[attr-defined]
        raise


TRAINING_COMMANDS = (
    "new.new",
    "run.run",
    "run.fork",
    "rerun.rerun",
    "sweep.sweep",
    "control.ctl",
    "control.stop",
    "evaluate.val",
    "evaluate.test",
    "evaluate.predict",
)
RUN_COMMANDS = (
    "runs.runs",
    "compare.compare",
    "control.watch",
    "control.now",
    "show.show",
    "runs.tag",
    "runs.rm",
    "checkpoints.prune",
    "export.export",
    "checkpoints.checkpoints",
)
COMMANDS_BY_PANEL = {
    "Train": TRAINING_COMMANDS,
    "The graph of a pipeline": ("check.check", "graph.graph", "why.why", "explain.explain"),
    "Runs": RUN_COMMANDS,
}
"""Modules and functions of the commands, by the panel of `--help`.

A command has the name of its function.
"""


@dataclass(frozen=True, slots=True)
class CommandPlace:
    """Where a command is: its panel of `--help`, its module in `hookflow.cli`, and its function."""

    panel: str
    module: str
    function: str


def _find_places() -> dict[str, CommandPlace]:
    places = {}
    for panel, commands in COMMANDS_BY_PANEL.items():
        for command in commands:
            module, function = command.split(".")
            places[function] = CommandPlace(panel, module, function)
    return places


COMMAND_PLACES = _find_places()
"""The place of each command by its name."""


def function_of(command: str) -> Callable[..., Any]:
    place = COMMAND_PLACES[command]
    module = import_module(f"hookflow.cli.{place.module}")
    result: Callable[..., Any] = getattr(module, place.function)
    return result


class LazyCommands(Mapping[str, Any]):
    """The commands by name, each made at its first use."""

    def __getitem__(self, name: str) -> Any:
        app_of_command = typer.Typer(add_completion=False, **TYPER_SETTINGS)
        register = app_of_command.command(name, rich_help_panel=COMMAND_PLACES[name].panel)
        register(function_of(name))
        return typer.main.get_command(app_of_command)

    def __iter__(self) -> Iterator[str]:
        return iter(COMMAND_PLACES)

    def __len__(self) -> int:
        return len(COMMAND_PLACES)


class CommandGroup(TyperGroup):
    """The commands. Messages about a command line quote it without control characters."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings | {"commands": LazyCommands()})

    make_context = _quoted()(TyperGroup.make_context)
    invoke = _quoted()(TyperGroup.invoke)


PROGRAM_HELP = "Train with hooks that are nodes of a graph: ordered, timed and shown live."
TYPER_SETTINGS: Mapping[str, Any] = {
    "pretty_exceptions_enable": False,
    "rich_markup_mode": "markdown",
    "context_settings": {"help_option_names": ["-h", "--help"]},
}
app = typer.Typer(cls=CommandGroup, help=PROGRAM_HELP, no_args_is_help=True, **TYPER_SETTINGS)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        echo(
            f"hookflow {__version__} (Python {platform.python_version()}, PyTorch"
            f" {version('torch')})"
        )
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and exit.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Take the options that stand before a command."""


ACCESS_ERRORS = (
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.EISDIR,
    errno.ENOTDIR,
    errno.ELOOP,
    errno.ENXIO,
    errno.EIO,
    errno.ENOTCONN,
    errno.ESTALE,
    errno.ENODEV,
    errno.EHOSTDOWN,
    errno.ETIMEDOUT,
)
"""Errors of the system that are printed without a traceback.

The permissions of a file forbid it, or its path is of another kind. Or the disk or the mount is
broken.
"""


def main() -> None:
    """Run the command line.

    A user's mistake is printed as such and exits with 2, without a traceback.
    """
    _open_closed_streams()
    # The objects that imports make stay: searching them for garbage takes a tenth of the start.
    gc.set_threshold(50_000)
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
        if error.errno in ACCESS_ERRORS and error.filename is not None:
            echo_error(
                UserError(
                    Problem(
                        str(error.strerror), Where(os.path.relpath(os.fsdecode(error.filename)))
                    )
                )
            )
            raise SystemExit(2) from None
        if error.errno not in (*FULL_DISK_ERRORS, errno.EPIPE):
            raise
        # Python flushes stdout again at the exit, where that would fail once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if error.errno == errno.EPIPE:  # the reader has gone, as after `| head`
            raise SystemExit(1) from None
        print_error(f"cannot be written: {error.strerror}")
        raise SystemExit(2) from None
    finally:
        drop_unprinted()


def _open_closed_streams() -> None:
    """Let the standard streams that are closed from the start (`>&-`) lead nowhere.

    The next file that is opened would have the number of one, and be taken for it by every process
    that is started.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # it is given the lowest number that is free
            setattr(
                sys,
                name,
                io.TextIOWrapper(io.FileIO(number, mode, closefd=False), encoding="utf-8"),
            )
