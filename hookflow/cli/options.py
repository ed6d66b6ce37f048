"""Options that several commands share, and how commands print."""

from __future__ import annotations

import os
import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from hookflow.cli import complete
from hookflow.errors import Problem, UserError, Where
from hookflow.excerpt import print_error, printable
from hookflow.numbers import strict_json

SELECTION = "Which hooks, in what order"
"""The panel of `--help` for what changes a pipeline from outside."""


class Format(StrEnum):
    """How a command shows what it has found."""

    text = "text"
    json = "json"


PipelineFile = Annotated[Path, typer.Argument(help="A pipeline file.", metavar="FILE", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a key, e.g. run.seed=1. Repeatable.",
        autocompletion=complete.keys,
    ),
]
Without = Annotated[
    list[str] | None,
    typer.Option(
        "--without",
        metavar="HOOK",
        help="Switch a hook off. Repeatable.",
        rich_help_panel=SELECTION,
        autocompletion=complete.hooks,
    ),
]
Only = Annotated[
    list[str] | None,
    typer.Option(
        "--only",
        metavar="HOOK",
        help="Switch every other hook off. Repeatable.",
        rich_help_panel=SELECTION,
        autocompletion=complete.hooks,
    ),
]
Shuffle = Annotated[
    int | None,
    typer.Option(
        metavar="SEED",
        help="Take another order that edges and phases allow, to find a forgotten edge.",
        rich_help_panel=SELECTION,
    ),
]
PipelineOption = Annotated[
    str | None,
    typer.Option(
        "--pipeline",
        "-p",
        metavar="FILE",
        help="A pipeline file, or a run (its id, name or folder).",
        show_default=False,
        autocompletion=complete.files_and_runs,
    ),
]
NoImport = Annotated[
    bool,
    typer.Option("--no-import", help="Read the source of hooks and run none of it: for a file that you do not trust."),
]
RunArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="RUN",
        help="A path, an id, a part of one, a name, or latest; the newest run if left out.",
        show_default=False,
        autocompletion=complete.runs,
    ),
]
RunsFolder = Annotated[Path, typer.Option("--dir", metavar="DIR", help="Where the runs are.")]


STYLE = re.compile(r"(\x1b\[(?:0|1|2|36)m)")
"""The sequences with which a drawing of ours is coloured: bold, dim, cyan, and off."""


def echo(text: str, *, coloured: bool = False) -> None:
    """Print a text of one or more lines, with a dot for each control character; `coloured` keeps our own colours."""
    _print(text, sys.stdout, coloured)


def echo_json(value: Any) -> None:
    """Print a value as JSON, in ASCII."""
    print(as_json(value))


def as_json(value: Any) -> str:
    """Return a value as JSON that is ASCII without control characters, which stand in it as escapes.

    A number that is not finite is null.
    """
    return strict_json(value, indent=1).replace("\x7f", r"\u007f")


def warn(text: str) -> None:
    """Print a text for people beside the output: to stderr, if that takes any."""
    print_error(text)


def warn_of(text: str, level: str = "info") -> None:
    """Print a message of a run that leaves nothing behind, unless it is mere information."""
    if level != "info":
        warn(f"{level}: {text}")


def has_terminal() -> bool:
    """Say whether the dashboard can be shown: it reads the standard input, and paints on the standard error."""
    streams = (sys.stdin, sys.stdout, sys.stderr)
    return all(stream.isatty() for stream in streams) and os.environ.get("TERM", "dumb") != "dumb"


def echo_error(error: UserError) -> None:
    """Print all that the user did wrong; on a terminal, in colours."""
    with suppress(OSError):  # the exit code says it
        print(error.show(sys.stderr.isatty() and "NO_COLOR" not in os.environ), file=sys.stderr, flush=True)


@contextmanager
def exits_after_traceback() -> Iterator[None]:
    """Exit with 1 when something raises that has been printed with its traceback, and with 130 after Ctrl-C.

    A UserError goes through, to be printed.
    """
    try:
        yield
    except UserError:
        raise
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except Exception:
        raise typer.Exit(1) from None


def write_file(path: Path, text: str) -> None:
    """Write what was asked for into a file. Raises UserError when that cannot be."""
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise UserError(Problem(f"cannot be written: {error.strerror}", Where(str(path)))) from None


def labelled(name: str, text: str, width: int) -> str:
    """Return a text behind the name of what it is about, wrapped; an option (`--set`) is not broken at its hyphen."""
    head, indent = f"  {name:<10} ", " " * 15
    return textwrap.fill(text, width, initial_indent=head, subsequent_indent=indent, break_on_hyphens=False)


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a line for each row, its cells one below the other."""
    cells = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in cells]


def _print(text: str, to: TextIO, coloured: bool = False) -> None:
    for line in text.split("\n"):
        parts = STYLE.split(line) if coloured else [line]  # every second one is a colour
        print("".join(part if k % 2 else printable(part) for k, part in enumerate(parts)), file=to)
