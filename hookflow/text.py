"""Texts that a terminal can show: lines of a file, and all of them without the secrets of the environment."""

from __future__ import annotations

import io
import json
import os
import re
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import quote, quote_plus

SHORTEST, LONG = 6, 12
"""Characters of the shortest value that is masked, and of the shortest that is masked within a word.

The value "8" stands in too many texts. A value that is masked in a word must not be a part of a checksum by chance.
"""

_values: dict[str, str] = {}
_references: dict[str, str] = {}
_pattern: re.Pattern[str] | None = None


def mask(values: Mapping[str, str]) -> None:
    """Mask the values of variables, by their names, from now on. One that is an existing path stays as it is."""
    _set(_values | {name: value for name, value in values.items() if not _is_path(value)})


def unmask(names: Iterable[str]) -> None:
    """Mask the values of these variables no more."""
    without = set(names)
    _set({name: value for name, value in _values.items() if name not in without})


def masked(text: str) -> str:
    """Return a text with `${env:NAME}` in the place of each value that is masked."""
    return text if _pattern is None else _pattern.sub(lambda match: _references[match[0]], text)


class MaskedStream(io.TextIOWrapper):
    """A stream that writes texts masked, each by itself."""

    def write(self, text: str, /) -> int:
        super().write(masked(text))
        return len(text)


def mask_streams() -> None:
    """Mask what this process prints from Python: to stdout and to stderr."""
    for name in ("stdout", "stderr"):
        if isinstance(stream := getattr(sys, name), io.TextIOWrapper):
            encoding, errors, by_line = stream.encoding, stream.errors, stream.line_buffering
            masks = MaskedStream(stream.detach(), encoding, errors, line_buffering=by_line)
            setattr(sys, name, masks)
            setattr(sys, f"__{name}__", masks)


def _set(values: dict[str, str]) -> None:
    global _values, _references, _pattern
    _values = values
    _references = {form: f"${{env:{name}}}" for name, value in values.items() for form in _forms(value)}
    parts = [_bounded(form) for form in sorted(_references, key=len, reverse=True)]
    _pattern = re.compile("|".join(parts)) if parts else None


def _forms(value: str) -> Iterator[str]:
    """Yield the forms in which texts quote a value, and each of its lines where it has several."""
    for part in {value, *value.splitlines()}:
        quoted = {repr(part)[1:-1], json.dumps(part)[1:-1], json.dumps(part, ensure_ascii=False)[1:-1]}
        yield from (form for form in quoted | {part, quote(part), quote(part, ""), quote_plus(part)} if _masks(form))


def _masks(form: str) -> bool:
    return len(form.strip()) >= SHORTEST


def _bounded(form: str) -> str:
    pattern = re.escape(form)
    return pattern if len(form) >= LONG else rf"(?<!\w){pattern}(?!\w)"


def _is_path(value: str) -> bool:
    with suppress(OSError, ValueError):
        return Path(value).is_absolute() and Path(value).exists()
    return False


SHOWN = 100
"""How many characters of a line are shown; of a longer one, those around the place."""

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that begin escape sequences, break lines, change the direction of writing, or cannot be encoded."""

ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
"""A sequence that moves a cursor, colours text or names a window."""

_MARKED = re.compile(r'"(?:\\.|[^"\\])*"|\'[^\']*\'|[+-]?\d[\w.+-]*|[\w-]+')
"""The width of the mark below a column: a text in quotes, a number, or a name."""


@dataclass(frozen=True, slots=True)
class Excerpt:
    """The visible part of a line; the mark is indented and wide by so many cells (0 wide: there is none)."""

    text: str
    indent: int
    width: int

    @classmethod
    def around(cls, line: str, column: int) -> Self:
        """Return what to show of the line, with what begins at the column (from 1 on; 0: unknown) marked."""
        if not column:
            line = line.lstrip()
        at = max(column - 1, 0)
        result = _MARKED.match(line, at)
        end = result.end() if result and column else at
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
