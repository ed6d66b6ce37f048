"""ASCII in the place of the characters that a stream cannot encode: the only table of them."""

from __future__ import annotations

import codecs
import io
import os
from collections.abc import Mapping
from typing import TextIO

from rich.cells import cell_len

SUBSTITUTES: Mapping[str, str] = {
    **dict(zip("…×·–−→←↑↓•", "~x.--><^v*", strict=True)),
    **dict(zip("●○◐‖✓■✗▲?", "*o%=+#x!?", strict=True)),  # states of a run
    **dict(zip("◇◆◉▣¶▟↻★⊘", "o#@ITH@*/", strict=True)),  # events, and marks of rows
    **dict(zip("│─┃━╌┌┐└┘├┤┬┴┼", "|-|=-+++++++++", strict=True)),
    **dict.fromkeys("╭╮╰╯┏┓┗┛", "+"),
    **dict(zip("▸▶▾⋮┊", ">>v::", strict=True)),
    **dict(zip("░▒▓▚", ".:%&", strict=True)),
    **dict(zip("▁▂▃▄▅▆▇█▀", '_.:-=+*#"', strict=True)),  # the higher, the more ink
    **dict(zip("▏▎▍▌▋▊▉", "||::+*#", strict=True)),
    **dict(zip("µ²°Δ", "u2'd", strict=True)),
    "≥": ">=",
    "≤": "<=",
    "±": "+-",
    "\N{REPLACEMENT CHARACTER}": "?",
}
"""Each of one cell, where the meaning does not need two."""

BRAILLE = range(0x2800, 0x2900)
ROWS = (0x09, 0x12, 0x24, 0xC0)
LEFT = 0x47
"""The dots of a braille character in each row, from the top, and in the left column."""


def substitute(character: str) -> str:
    """Return the ASCII substitute of a character; empty where there is none."""
    if ord(character) in BRAILLE:
        return _stroke(ord(character) - BRAILLE.start)
    return SUBSTITUTES.get(character, "")


def _stroke(dots: int) -> str:
    """Return the stroke that is most like the dots of a piece of a curve."""
    rows = [y for y, row in enumerate(ROWS) if dots & row]
    if len(rows) < 2:
        return "'--_"[rows[0]] if rows else " "
    left, right = ([y for y in rows if dots & ROWS[y] & side] for side in (LEFT, ~LEFT))
    if not left or not right:
        return ":" if len(rows) == 2 else "|"
    slope = sum(left) / len(left) - sum(right) / len(right)
    return "/" if slope > 0.5 else "\\" if slope < -0.5 else "|" if len(rows) > 2 else "="


def _unknown(error: UnicodeError) -> tuple[str | bytes, int]:
    return _substituted(error, keeps=False)


def _kept(error: UnicodeError) -> tuple[str | bytes, int]:
    return _substituted(error, keeps=True)


def _substituted(error: UnicodeError, *, keeps: bool) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    result = b""
    for character in error.object[error.start : error.end]:
        known = substitute(character)
        if not known and keeps and not 0xD800 <= ord(character) < 0xE000:
            result += character.encode("utf-8")
        else:
            result += (known or "?" * cell_len(character) or "?").encode("ascii")
    return result, error.end


ASCII, ASCII_AND_TEXTS = "hookflow.ascii", "hookflow.ascii-and-texts"
"""Error handlers: a character that is not in the table is "?", or goes as UTF-8, as it is of the user's own texts."""

codecs.register_error(ASCII, _unknown)
codecs.register_error(ASCII_AND_TEXTS, _kept)


def is_plain(environ: Mapping[str, str]) -> bool:
    """Whether the locale is C or POSIX, which Python takes for UTF-8: it sets LC_CTYPE to C.UTF-8 then.

    A variable of Python that names an encoding counts more.
    """
    if environ.get("PYTHONIOENCODING") or environ.get("PYTHONUTF8") == "1":
        return False
    named = environ.get("LC_ALL") or environ.get("LC_CTYPE", "")
    if not environ.get("LC_ALL") and named in ("", "C.UTF-8", "C.utf8", "UTF-8"):
        named = environ.get("LANG", "")
    return named in ("C", "POSIX")


def substitute_on(*streams: TextIO | None) -> None:
    """Let streams print ASCII in the place of what they cannot encode, or what a plain locale has no sign for."""
    plain = is_plain(os.environ)
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):
            errors = ASCII_AND_TEXTS if plain else ASCII
            stream.reconfigure(encoding="ascii" if plain else None, errors=errors)
