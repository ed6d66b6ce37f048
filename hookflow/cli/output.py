"""Output of the command line, with control characters escaped."""

import errno
import os
import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import repeat
from pathlib import Path
from typing import Any, BinaryIO

import typer

from hookflow.errors import Problem, UserError, Where
from hookflow.numbers import strict_json
from hookflow.text import print_error, printable

STYLE = re.compile(r"(\x1b\[(?:0|1|2|36)m)")
"""The sequences with which a drawing of ours is coloured: bold, dim, cyan, and off."""

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of the system where a disk, a user's share of it or a file is full."""


def echo(text: str, *, coloured: bool = False) -> None:
    """Print a text of one or more lines, with a dot for each control character; `coloured` keeps our own colours."""
    if text.replace("\n", "").isprintable():  # in C: it may have 10,000 lines
        print(text)
        return
    for line in text.split("\n"):
        parts = STYLE.split(line) if coloured else [line]  # every second one is a colour
        print("".join(part if k % 2 else printable(part) for k, part in enumerate(parts)))


def echo_json(value: Any) -> None:
    """Print a value as JSON, in ASCII."""
    print(as_json(value))


def as_json(value: Any) -> str:
    """Return a value as ASCII JSON, control characters escaped; each item of a list is a line.

    A number that is not finite is null.
    """
    if isinstance(value, list) and value:  # there may be 10,000, and an indent is written in Python
        text = "[\n" + ",\n".join(map(strict_json, value)) + "\n]"
    else:
        text = strict_json(value, indent=1)
    return text.replace("\x7f", r"\u007f")


def warn_of(text: str, level: str = "info") -> None:
    """Print a message of a run that leaves nothing behind, unless it is mere information."""
    if level != "info":
        print_error(f"{level}: {text}")


def has_terminal() -> bool:
    """Say whether the dashboard can be shown: it reads the standard input, and paints on the standard error."""
    streams = (sys.stdin, sys.stdout, sys.stderr)
    return all(stream.isatty() for stream in streams) and os.environ.get("TERM", "dumb") != "dumb"


IN_BROWSER = "TEXTUAL_DRIVER" in os.environ
"""Whether textual-serve has started this process to draw on a page."""


def check_terminal() -> None:
    """Raise UserError where standard input or standard error is no terminal: the dashboard would never get a key."""
    if not (IN_BROWSER or (sys.stdin.isatty() and sys.stderr.isatty())):
        raise UserError(Problem("the dashboard needs a terminal", Where("--ui"), "lines need none: --ui plain"))


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


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file to write: it is there once all is written. Raises UserError when it cannot be written."""
    from hookflow.events.rundir import whole

    try:
        if path.exists():
            path.open("ab").close()  # what may not be written is not replaced either
        with path.open("wb") if path.exists() and not path.is_file() else whole(path.resolve()) as file:
            yield file
    except OSError as error:
        raise UserError(Problem(f"cannot be written: {error.strerror}", Where(str(path)))) from None


def write_file(path: Path, text: str) -> None:
    with opened(path) as file:
        file.write(text.encode())


def check_writable(path: Path) -> None:
    """Make the folder of a file that is written in the end. Raises UserError where the file cannot be."""
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
    """Return a table's lines: each cell below the one above it; the last column is wrapped to fit `width`, if given."""
    if not rows:
        return []
    whole = zip(*rows, strict=True)
    *cells, last = (column if "".join(column).isprintable() else [*map(printable, column)] for column in whole)
    padded = [map(str.ljust, column, repeat(max(map(len, column)))) for column in cells]  # there may be 10,000 rows
    if width is None:
        joined = map("  ".join, zip(*padded, last, strict=True))
        return [*map(str.rstrip, (f"{indent}{line}" for line in joined) if indent else joined)]
    lines = []
    for *row, text in zip(*padded, last, strict=True):
        head = indent + "".join(f"{cell}  " for cell in row)
        room = min(max(width - len(head), 30), 100)
        first, *rest = textwrap.wrap(text, room, break_on_hyphens=False) or [""]
        lines += [f"{head}{first}".rstrip(), *(" " * len(head) + line for line in rest)]
    return lines


def brief(value: Any) -> str:
    """Return a value of the environment on one short line."""
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return "-" if value is None or not text else textwrap.shorten(text, 40, placeholder=" …")


def with_deltas(cells: Sequence[str], deltas: Sequence[str]) -> tuple[str, ...]:
    """Return the cells of runs, beside each but the first its difference from that."""
    first, *others = cells
    return first, *(cell for pair in zip(others, deltas, strict=True) for cell in pair)
