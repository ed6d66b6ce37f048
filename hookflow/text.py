"""Text for a terminal.

Secrets are masked, control characters replaced, widths in cells, and lines cut to excerpts.
"""

import codecs
import io
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TextIO, TypeVar
from urllib.parse import quote, quote_plus

from rich.cells import cell_len, chop_cells, set_cell_size

SHORTEST, LONG = 6, 12
"""Characters of the shortest masked value, and of the shortest that is masked within a word.

The value "8" stands in too many texts. A value that is masked in a word must not be a part of a
checksum by chance.
"""

CONDITION_NAMES = (
    "starting reading running paused stalled lost unreadable finished stopped interrupted failed"
    " refused"
)
CONDITION_GLYPHS = dict(zip(CONDITION_NAMES.split(), "○○●‖◐??✓■■✗✗", strict=True))
"""The signs of a run's conditions."""

Value = TypeVar("Value")

_ENVIRONMENT_REFERENCE = re.compile(r"\$\{env:(\w+)\}")

_values: dict[str, str] = {}
_references: dict[str, str] = {}
_pattern: re.Pattern[str] | None = None


def mask(values: Mapping[str, str]) -> None:
    """Mask the values of variables, by their names, from now on.

    One that is an existing path stays as it is.
    """
    _set(_values | {name: value for name, value in values.items() if not _is_path(value)})


def remove_masks(names: Iterable[str]) -> None:
    """Mask the values of these variables no more."""
    without = set(names)
    _set({name: value for name, value in _values.items() if name not in without})


def masked(text: str) -> str:
    """Return a text with `${env:NAME}` in the place of each value that is masked."""
    if _pattern is None:
        return text
    return _pattern.sub(lambda match: _references[match[0]], text)


def restore_masked(text: str) -> str:
    """Return a text that `masked` has made, with the values in place of their references."""
    return _ENVIRONMENT_REFERENCE.sub(lambda match: _values.get(match[1], match[0]), text)


def has_masks() -> bool:
    """Return whether there is a value that `masked` looks for."""
    return _pattern is not None


def mask_names(values: Mapping[Any, Value]) -> dict[Any, Value]:
    """Return a mapping with each name in it `masked`, as of metrics."""
    return {
        masked(name) if isinstance(name, str) else name: value for name, value in values.items()
    }


class MaskedStream(io.TextIOWrapper):
    """A stream that writes texts masked, each by itself."""

    def write(self, text: str, /) -> int:
        super().write(masked(text))
        return len(text)


def mask_streams() -> None:
    """Mask what this process prints from Python: to stdout and to stderr."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if not isinstance(stream, io.TextIOWrapper):
            continue
        encoding = stream.encoding
        errors = stream.errors
        line_buffering = stream.line_buffering
        masked_stream = MaskedStream(
            stream.detach(), encoding, errors, line_buffering=line_buffering
        )
        setattr(sys, name, masked_stream)
        setattr(sys, f"__{name}__", masked_stream)


def _set(values: dict[str, str]) -> None:
    global _values, _references, _pattern
    _values = values
    _references = {}
    for name, value in values.items():
        for form in _iter_quoted_forms(value):
            _references[form] = f"${{env:{name}}}"
    patterns = []
    for form in sorted(_references, key=len, reverse=True):
        pattern = re.escape(form)
        if len(form) < LONG:
            pattern = rf"(?<!\w){pattern}(?!\w)"
        patterns.append(pattern)
    _pattern = None
    if patterns:
        _pattern = re.compile("|".join(patterns))


def _iter_quoted_forms(value: str) -> Iterator[str]:
    """Yield the forms in which texts quote a value, and each of its lines where it has several."""
    for part in {value, *value.splitlines()}:
        in_quotes = (repr(part), json.dumps(part), json.dumps(part, ensure_ascii=False))
        forms = {part, quote(part), quote(part, ""), quote_plus(part)}
        forms.update(quoted[1:-1] for quoted in in_quotes)
        for form in forms:
            if len(form.strip()) >= SHORTEST:
                yield form


def _is_path(value: str) -> bool:
    with suppress(OSError, ValueError):
        return Path(value).is_absolute() and Path(value).exists()
    return False


CONTROL_CHARACTERS = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
"""Characters that a line cannot show.

They steer a terminal, break lines, change the direction of writing, or have no place in UTF-8 or
XML.
"""

ESCAPE_SEQUENCE = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\?)|[@-Z\\-_])"
)
"""A sequence that moves a cursor, colours text or names a window."""


def make_printable(text: str) -> str:
    """Return one line without control characters.

    A tab becomes four blanks, a line break a blank, and others a dot.
    """
    if text.isprintable():
        return text
    return CONTROL_CHARACTERS.sub("·", text.replace("\t", " " * 4).replace("\n", " "))


def make_lines_printable(text: str) -> str:
    """Return the text with each of its lines `printable`."""
    return "\n".join(map(make_printable, text.split("\n")))


def fit(text: str, width: int, align: str = "<") -> str:
    """Return one `printable` line of exactly `width` cells, aligned "<" or ">".

    It is shortened with an ellipsis at need.
    """
    text = make_printable(text)
    cells = cell_len(text)
    if cells > width:
        if width <= 0:
            return ""
        return f"{set_cell_size(text, width - 1)}…"
    padding = " " * (width - cells)
    if align == ">":
        return padding + text
    return text + padding


def cut(text: str, width: int) -> str:
    """Return one `printable` line of at most `width` cells, shortened with an ellipsis at need."""
    text = make_printable(text)
    return fit(text, max(min(cell_len(text), width), 0))


def fit_name(text: str, width: int) -> str:
    """Return a name in exactly `width` cells.

    It is shortened before its last third at need, since names differ there, too.
    """
    text = make_printable(text)
    if cell_len(text) <= width or width < 5:
        return fit(text, width)
    end = width // 3
    return f"{set_cell_size(text, width - 1 - end)}…{set_cell_size(text[::-1], end)[::-1]}"


def first_paragraph(docstring: str) -> str:
    """Return the first paragraph of a docstring without indentation, as one line."""
    return " ".join(docstring.partition("\n\n")[0].split())


def wrapped(text: str, width: int) -> list[str]:
    """Return the text in lines of at most `width` cells, broken between words.

    A word that is wider than a line is broken.
    """
    lines = []
    for part in text.splitlines() or [""]:
        lines += wrapped_phrases(part.split(" "), width)
    return lines


def wrapped_phrases(phrases: Iterable[str], width: int) -> list[str]:
    """Return the phrases in lines of at most `width` cells.

    A phrase is broken only if it is wider than a line.
    """
    lines = [""]
    used = -1  # cells of the last line; -1: it is empty
    for phrase in phrases:
        for piece in _split_phrase(phrase, width):
            if used >= 0 and piece.strip(" ") and used + 1 + cell_len(piece.rstrip(" ")) > width:
                lines.append("")
                used = -1
            if used >= 0:
                lines[-1] += " "
            lines[-1] += piece
            used += cell_len(piece) + 1
    return [line.rstrip(" ") for line in lines]


def _split_phrase(phrase: str, width: int) -> list[str]:
    """Return a phrase whole if it fits into a line, or else its words.

    Words that are too wide are cut into lines.
    """
    if cell_len(phrase) <= width:
        return [phrase]
    pieces: list[str] = []
    for word in phrase.split(" "):
        pieces += chop_cells(word, max(width, 1))
    return pieces


EXCERPT_WIDTH = 100
"""Characters of a line that a `LineExcerpt` shows."""

_MARKED_PATTERN = re.compile(r'"(?:\\.|[^"\\])*"|\'[^\']*\'|[+-]?\d[\w.+-]*|[\w-]+')
"""The width of the mark below a column: a text in quotes, a number, or a name."""


@dataclass(frozen=True, slots=True)
class LineExcerpt:
    """The visible part of a line.

    The mark is indented and wide by so many cells, and there is none if that is 0.
    """

    text: str
    indent: int
    width: int

    @classmethod
    def around(cls, line: str, column: int) -> Self:
        """Return what to show of the line, with what begins at the column marked.

        Columns count from 1, and 0 is unknown.
        """
        if not column:
            return cls(
                _shorten_text(make_printable(line.lstrip()), EXCERPT_WIDTH), indent=0, width=0
            )
        start = column - 1
        end = start
        match = _MARKED_PATTERN.match(line, start)
        if match is not None:
            end = match.end()
        before = make_printable(line[:start])
        marked = make_printable(line[start:end])
        after = make_printable(line[end:])
        if len(before) + max(len(marked), 1) >= EXCERPT_WIDTH:
            before = "…" + before[1 - EXCERPT_WIDTH // 2 :]
        rest = _shorten_text(marked + after, EXCERPT_WIDTH - len(before))
        marked_cells = cell_len(rest[: len(marked)])
        return cls(before + rest, indent=cell_len(before), width=max(marked_cells, 1))


def _shorten_text(text: str, most: int) -> str:
    """Return at most so many characters, with an ellipsis where there are more."""
    if len(text) <= most:
        return text
    return f"{text[: most - 1]}…"


def print_error(text: str) -> None:
    """Print lines to stderr, each `printable`.

    A stream that is closed or full, or has no reader, raises nothing.
    """
    if sys.stderr is not None:  # it is None in a process that began without one
        with suppress(OSError, ValueError):
            print(make_lines_printable(masked(text)), file=sys.stderr, flush=True)


def drop_unprinted() -> None:
    """Forget what stdout and stderr do not take.

    The interpreter would try once more at its exit, and exit with 120.
    """
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except (OSError, ValueError):
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


ASCII_SUBSTITUTES: Mapping[str, str] = {
    **dict(zip("…×·ʘ–−→←↑↓•", "~x.o--><^v*", strict=True)),
    **dict(zip("●○◐‖✓■✗▲?", "*o%=+#x!?", strict=True)),  # states of a run
    **dict(zip("◇◆◉▣¶▟↻★⊘", "o#@ITH@*/", strict=True)),  # events, and marks of rows
    **dict(zip("│─┃━╌┌┐└┘├┤┬┴┼", "|-|=-+++++++++", strict=True)),
    **dict.fromkeys("╭╮╰╯┏┓┗┛", "+"),
    **dict(zip("▸▶▾▼⋮┊┄", ">>vv::-", strict=True)),
    **dict(zip("░▒▓▚", ".:%&", strict=True)),
    **dict(zip("▁▂▃▄▅▆▇█▀", '_.:-=+*#"', strict=True)),  # the higher, the more ink
    **dict(zip("▏▎▍▌▋▊▉", "||::+*#", strict=True)),
    "▬": "=",
    **dict(zip("µ²°Δ", "u2'd", strict=True)),
    "≥": ">=",
    "≤": "<=",
    "±": "+-",
    "\N{REPLACEMENT CHARACTER}": "?",
}
"""Each of one cell, where the meaning does not need two."""

BRAILLE_RANGE = range(0x2800, 0x2900)
UPPER, LOWER = 0x1B, 0xE4
"""The dots of a braille character in its upper and in its lower half."""


def substitute(character: str) -> str:
    """Return the ASCII substitute of a character; empty where there is none."""
    dots = ord(character)
    if dots not in BRAILLE_RANGE:
        return ASCII_SUBSTITUTES.get(character, "")
    has_upper = bool(dots & UPPER)
    has_lower = bool(dots & LOWER)
    if has_upper and has_lower:
        return ":"
    if has_upper:
        return "'"
    if has_lower:
        return "."
    return " "


def _substitute_characters(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    substitutes = []
    for character in error.object[error.start : error.end]:
        cells = max(cell_len(character), 1)
        substitutes.append(substitute(character) or "?" * cells)
    return "".join(substitutes), error.end


ASCII = "hookflow.ascii"
"""The error handler: a character that is not in the table is "?"."""

codecs.register_error(ASCII, _substitute_characters)


def substitute_on(*streams: TextIO | None) -> None:
    """Let streams print ASCII in the place of what they cannot encode."""
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=ASCII)
