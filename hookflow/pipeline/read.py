"""One pipeline file as it is written: its text, its tables, and where each key stands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tomli

from hookflow.errors import Problem, UserError, Where, nearest
from hookflow.events.regular_file import open_regular
from hookflow.pipeline.nested import walk
from hookflow.pipeline.source_map import Key, SourceMap

MOST_BYTES = 1_000_000
"""Of a pipeline file. To read fifty times as much would take minutes, and all memory."""

TOO_LONG = f"longer than {MOST_BYTES // 1_000_000} MB, which is too much for a pipeline"

MOST_BITS = 14_000
"""Of an integer; Python writes no more than 4,300 digits."""

_TOO_MANY_DIGITS = re.compile(r"\d[\d_]{4300,}")


def read(path: Path, named: Where | None = None, *, recorded: bool = False) -> str:
    """Return the text of a file; `named` is the place of another file that names it. Raises UserError.

    A file that is named, or `recorded` in a run, is no pipe: nobody waits for who might write to it.
    """
    where = named or Where(str(path))
    file = f'the file "{path}" ' if named else ""
    try:
        if (
            named and path.exists() and not (path.is_file() or path.is_dir())
        ):  # a device that never ends, a pipe that nobody writes to
            raise UserError(Problem(f'"{path}" is not a file', where))
        with open_regular(path) if recorded else path.open("rb") as opened:
            data = opened.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise UserError(Problem(f"{file or 'this '}is {TOO_LONG}", where, "data belong in files of their own"))
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise UserError(Problem("this is not UTF-8 text", Where(str(path), line))) from None
    except FileNotFoundError:
        said = f'there is no file "{path}"' if named else "there is no such file"
        raise UserError(Problem(said, where, nearest_file(path))) from None
    except OSError as error:
        raise UserError(Problem(f"{file}cannot be read: {error.strerror}", where)) from None
    except ValueError:  # there is a NUL in it
        raise UserError(Problem(f"{path} is not the name of a file", where)) from None


def nearest_file(path: Path) -> str:
    """Return `did you mean "x.toml"?` for the file beside `path` with the nearest name; empty when none is close."""
    beside = sorted(file.stem for file in path.parent.glob("*.toml"))
    return nearest(path.stem, beside).replace('"?', '.toml"?')


def tables(text: str, source: str) -> tuple[dict[str, Any], SourceMap]:
    """Return what a TOML text says, and where it says so; `source` is the name to show. Raises UserError."""
    try:
        found, places = tomli.loads(text), SourceMap.in_text(text, source)
    except tomli.TOMLDecodeError as error:
        raise UserError(_syntax(error, text, source)) from None
    except ValueError:  # Python converts no more digits
        line = text.count("\n", 0, digits.start()) + 1 if (digits := _TOO_MANY_DIGITS.search(text)) else 0
        raise UserError(Problem("this is not TOML: an integer has too many digits", Where(source, line))) from None
    except RecursionError:
        raise UserError(Problem("this is not TOML: nested too deep", Where(source))) from None
    if wrong := [Problem(said, places.of(key)) for key, said in impossible(found)]:
        raise UserError(wrong)
    return found, places


def is_printable(value: int) -> bool:
    """Say whether Python writes an integer out. It reads longer ones in hexadecimal digits."""
    return value.bit_length() <= MOST_BITS


def impossible(tree: Any) -> Iterator[tuple[Key, str]]:
    """Yield the keys whose values nothing could be done with, and what is wrong with them."""
    for key, value in walk(tree):
        if isinstance(value, int) and not is_printable(value):
            yield key, f"{'.'.join(key)}: the integer has too many digits"


def _syntax(error: tomli.TOMLDecodeError, text: str, source: str) -> Problem:
    said = re.sub(r"\('(.+?)',?\)", lambda match: f"[{match[1]}]".replace("', '", "."), error.msg)
    hint = "a string must end on its line, with the quote that it began with" if "character '\\n'" in said else ""
    after = error.msg.startswith("Cannot") or error.lineno > text.count("\n") + 1  # the place is behind what it means
    where = Where(source, min(error.lineno, text.count("\n") + 1), 0 if after else error.colno)
    return Problem(f"this is not TOML: {said[:1].lower()}{said[1:]}", where, hint)
