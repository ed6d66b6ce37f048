"""Text as a terminal can show it: a line of a file with the place to mark, and what is printed to stderr."""

from __future__ import annotations

import os
import re
import sys
import unicodedata
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

from hookflow.masking import masked

SHOWN = 100
"""How many characters of a line are shown; of a longer one, those around the place."""

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""What begins escape sequences, breaks lines, changes the direction of writing, or cannot be encoded."""

ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
"""A sequence that moves a cursor, colours text or names a window."""

_MARKED = re.compile(r'"(?:\\.|[^"\\])*"|\'[^\']*\'|[+-]?\d[\w.+-]*|[\w-]+')
"""What is marked from a column on: a text in quotes, a number, or a name."""


@dataclass(frozen=True, slots=True)
class Excerpt:
    """What to show of a line; the mark is indented and wide by so many cells (0 wide: there is none)."""

    text: str
    indent: int
    width: int

    @classmethod
    def around(cls, line: str, column: int) -> Self:
        """Return what to show of the line, with what begins at the column (from 1 on; 0: unknown) marked."""
        if not column:
            line = line.lstrip()
        at = max(column - 1, 0)
        found = _MARKED.match(line, at)
        end = found.end() if found and column else at
        before, marked, after = map(printable, (line[:at], line[at:end], line[end:]))
        if len(before) + max(len(marked), 1) >= SHOWN:
            before = "…" + before[1 - SHOWN // 2 :]
        rest = marked + after
        room = SHOWN - len(before)
        shown = rest if len(rest) <= room else f"{rest[: room - 1]}…"
        width = max(_cells(shown[: len(marked)]), 1) if column else 0
        return cls(before + shown, _cells(before), width)


def printable(text: str) -> str:
    """Return one line with four blanks for a tab, and a dot for each character that would control the terminal."""
    return CONTROL.sub("·", text.replace("\t", " " * 4))


def print_error(text: str) -> None:
    """Print lines to stderr, each `printable`; a stream that is closed or full, or has no reader, raises nothing."""
    if sys.stderr is not None:  # it is None in a process that began without one
        with suppress(OSError, ValueError):
            print("\n".join(map(printable, masked(text).split("\n"))), file=sys.stderr, flush=True)


def drop_unprinted() -> None:
    """Forget what stdout and stderr do not take: the interpreter would try once more at its exit, and exit with 120."""
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except (OSError, ValueError):
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _cells(text: str) -> int:
    """Return how many cells of a terminal the text takes."""
    return sum(map(_width, text))


def _width(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
