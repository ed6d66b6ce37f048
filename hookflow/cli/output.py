"""Output of the command line, with control characters escaped."""

import errno
import os
import re
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import typer

from hookflow.errors import DiagnosisError, Problem, UserError, Where
from hookflow.numbers import strict_json
from hookflow.text import make_printable, print_error
from hookflow.user_code import has_user_frame, is_printed, make_showable

Value = TypeVar("Value")

COLOUR_SEQUENCE = re.compile(r"(\x1b\[(?:0|1|2|36)m)")
"""The sequences with which a drawing of ours is coloured: bold, dim, cyan, and off."""

FULL_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of the system where a disk, a user's share of it or a file is full."""


def echo(text: str, *, coloured: bool = False) -> None:
    """Print a text of one or more lines, with a dot for each control character.

    `coloured` keeps hookflow's own colours.
    """
    if text.replace("\n", "").isprintable():  # in C: it may have 10,000 lines
        print(text)
        return
    for line in text.split("\n"):
        if coloured:
            print(_replace_control_characters(line))
        else:
            print(make_printable(line))


def _replace_control_characters(line: str) -> str:
    """Return a line with a dot for each control character but those of our own colours."""
    parts = COLOUR_SEQUENCE.split(line)  # text and colour in turn
    for k in range(0, len(parts), 2):
        parts[k] = make_printable(parts[k])
    return "".join(parts)


def echo_json(value: Any) -> None:
    """Print a value as JSON, in ASCII."""
    print(as_json(value))


def as_json(value: Any) -> str:
    """Return a value as ASCII JSON, control characters escaped; each item of a list is a line.

    A number that is not finite is null.
    """
    if isinstance(value, list) and value:  # there may be 10,000, and an indent is written in Python
        items = ",\n".join(strict_json(item) for item in value)
        text = f"[\n{items}\n]"
    else:
        text = strict_json(value, indent=1)
    return text.replace("\x7f", r"\u007f")


def warn_of(text: str, level: str = "info") -> None:
    """Print a message of a run that leaves nothing behind, unless it is mere information."""
    if level != "info":
        print_error(f"{level}: {text}")


def has_terminal() -> bool:
    """Say whether the dashboard can be shown.

    It reads the standard input, and paints on the standard error.
    """
    streams = (sys.stdin, sys.stdout, sys.stderr)
    return all(stream.isatty() for stream in streams) and os.environ.get("TERM", "dumb") != "dumb"


IN_BROWSER = "TEXTUAL_DRIVER" in os.environ
"""Whether textual-serve has started this process to draw on a page."""


@contextmanager
def show_transient_line(text: str) -> Iterator[None]:
    """Show a line on a terminal while something is done, and remove it at the end."""
    if IN_BROWSER or not sys.stderr.isatty():
        yield
        return
    with suppress(OSError):
        print(make_printable(text), end="\r", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        with suppress(OSError):
            print("\x1b[K", end="", file=sys.stderr, flush=True)


def check_terminal() -> None:
    """Raise UserError where standard input or standard error is no terminal.

    The dashboard would never get a key.
    """
    if not (IN_BROWSER or (sys.stdin.isatty() and sys.stderr.isatty())):
        raise UserError(
            Problem("the dashboard needs a terminal", Where("--ui"), "lines need none: --ui plain")
        )


def echo_error(error: UserError) -> None:
    """Print all that the user did wrong; on a terminal, in colours."""
    with suppress(OSError):  # the exit code says it
        print(
            error.show(sys.stderr.isatty() and "NO_COLOR" not in os.environ),
            file=sys.stderr,
            flush=True,
        )


@contextmanager
def exit_after_traceback() -> Iterator[None]:
    """Exit with 1 when something raises, and with 130 after Ctrl-C.

    The traceback is printed once. A UserError goes through, to be printed.
    """
    try:
        yield
    except UserError:
        raise
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except Exception as error:
        if not is_printed(error):  # the recorder prints what is raised while it records
            if isinstance(error, DiagnosisError) and not has_user_frame(error):
                lines = traceback.format_exception_only(make_showable(error))
            else:
                lines = traceback.format_exception(make_showable(error))
            print_error("".join(lines).removesuffix("\n"))
        raise typer.Exit(1) from None


@contextmanager
def open_output_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file to write, which is there once all is written.

    Raises UserError when it cannot be written.
    """
    from hookflow.events.rundir import open_replacement

    try:
        if path.exists():
            path.open("ab").close()  # what may not be written is not replaced either
        if path.exists() and not path.is_file():  # a pipe, or a device
            file_manager: AbstractContextManager[BinaryIO] = path.open("wb")
        else:
            file_manager = open_replacement(path.resolve())
        with file_manager as file:
            yield file
    except OSError as error:
        raise UserError(Problem(f"cannot be written: {error.strerror}", Where(str(path)))) from None


def write_file(path: Path, text: str) -> None:
    with open_output_file(path) as file:
        file.write(text.encode())


def check_writable(path: Path) -> None:
    """Make the folder of a file that is written in the end.

    Raises UserError where the file cannot be.
    """
    from tempfile import TemporaryFile

    try:
        with suppress(FileExistsError):
            path.parent.mkdir(parents=True)
        if path.is_file() or path.is_dir():
            path.open("ab").close()
        TemporaryFile(dir=path.parent).close()  # a file that is there is replaced
    except OSError as error:
        raise UserError(Problem(f"cannot be written: {error.strerror}", Where(str(path)))) from None


def columns(rows: Sequence[Sequence[str]], indent: str = "", width: int | None = None) -> list[str]:
    """Return a table's lines: each cell below the one above it.

    The last column is wrapped to fit `width`, if given.
    """
    if not rows:
        return []
    *cells, last = [_make_column_printable(column) for column in zip(*rows, strict=True)]
    padded = []
    for column in cells:
        column_width = max(map(len, column))
        padded.append([cell.ljust(column_width) for cell in column])
    lines = []
    if width is None:
        for cells_of_row in zip(*padded, last, strict=True):
            lines.append(f"{indent}{'  '.join(cells_of_row)}".rstrip())
        return lines
    for *row, text in zip(*padded, last, strict=True):
        head = indent + "".join(f"{cell}  " for cell in row)
        text_width = min(max(width - len(head), 30), 100)
        first, *rest = textwrap.wrap(text, text_width, break_on_hyphens=False) or [""]
        lines.append(f"{head}{first}".rstrip())
        for line in rest:
            lines.append(" " * len(head) + line)
    return lines


def _make_column_printable(column: Sequence[str]) -> Sequence[str]:
    if "".join(column).isprintable():  # in C: there may be 10,000 rows
        return column
    return [make_printable(cell) for cell in column]


def format_briefly(value: Any) -> str:
    """Return a value of the environment on one short line."""
    if value is None:
        return "-"
    text = str(value)
    if isinstance(value, list):
        text = ", ".join(str(item) for item in value)
    if not text:
        return "-"
    return textwrap.shorten(text, 40, placeholder=" …")


def format_cell(value: Value | None, formatted: Callable[[Value], str] = str) -> str:
    """Return a value of a table, `formatted`; "-" where there is none."""
    if value is None:
        return "-"
    return formatted(value)


def with_deltas(cells: Sequence[str], deltas: Sequence[str]) -> tuple[str, ...]:
    """Return the cells of runs, beside each but the first its difference from that."""
    result = [cells[0]]
    for cell, delta in zip(cells[1:], deltas, strict=True):
        result += [cell, delta]
    return tuple(result)
