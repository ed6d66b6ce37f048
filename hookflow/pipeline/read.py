"""One pipeline file as it is written: its text, its tables, and where each key stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import tomli

from hookflow.errors import Problem, UserError, Where, nearest
from hookflow.pipeline.source_map import SourceMap


def read(path: Path, named: Where | None = None) -> str:
    """Return the text of a file; `named` is the place of another file that names it. Raises UserError."""
    where = named or Where(str(path))
    file = f'the file "{path}" ' if named else ""
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise UserError(Problem("this is not UTF-8 text", Where(str(path), line))) from None
    except FileNotFoundError:
        beside = sorted(file.stem for file in path.parent.glob("*.toml"))
        hint = nearest(path.stem, beside).replace('"?', '.toml"?')
        said = f'there is no file "{path}"' if named else "there is no such file"
        raise UserError(Problem(said, where, hint)) from None
    except OSError as error:
        raise UserError(Problem(f"{file}cannot be read: {error.strerror}", where)) from None


def tables(text: str, source: str) -> tuple[dict[str, Any], SourceMap]:
    """Return what a TOML text says, and where it says so; `source` is the name to show. Raises UserError."""
    try:
        return tomli.loads(text), SourceMap.in_text(text, source)
    except tomli.TOMLDecodeError as error:
        raise UserError(_syntax(error, text, source)) from None


def _syntax(error: tomli.TOMLDecodeError, text: str, source: str) -> Problem:
    said = re.sub(r"\('(.+?)',?\)", lambda match: f"[{match[1]}]".replace("', '", "."), error.msg)
    hint = "a string must end on its line, with the quote that it began with" if "character '\\n'" in said else ""
    after = error.msg.startswith("Cannot") or error.lineno > text.count("\n") + 1  # the place is behind what it means
    where = Where(source, min(error.lineno, text.count("\n") + 1), 0 if after else error.colno)
    return Problem(f"this is not TOML: {said[:1].lower()}{said[1:]}", where, hint)
