"""A pipeline file on its way to a validated `Pipeline`, and back to TOML."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tomli
import tomli_w
from pydantic import ValidationError

from hookflow.errors import Problem, UserError, Where, nearest
from hookflow.pipeline.explain import explain
from hookflow.pipeline.interpolate import escape, interpolate
from hookflow.pipeline.overrides import apply
from hookflow.pipeline.places import Places
from hookflow.pipeline.schema import Pipeline


@dataclass(frozen=True, slots=True)
class Loaded:
    """A valid pipeline, the file it came from (as the user named it), and where each of its keys stands."""

    pipeline: Pipeline
    source: Path
    places: Places
    overrides: tuple[str, ...] = ()


def load(path: Path, overrides: Sequence[str] = (), *, without: Sequence[str] = (), only: Sequence[str] = ()) -> Loaded:
    """Read a pipeline file, lay `key=value` overrides over it, fill in its `${…}`, and check it.

    The hooks named in `without` are switched off, and, where `only` names any, all that it does not name.
    Raises UserError with everything that is wrong, each with its line.
    """
    return parse(_read(path), path, overrides)


def parse(text: str, source: Path, overrides: Sequence[str] = ()) -> Loaded:
    """Do what `load` does with the text of a file; `source` is the file that problems are shown to stand in."""
    shown = str(source)
    try:
        tree = tomli.loads(text)
        places = Places.in_text(text, shown)
        problems = list(apply(overrides, tree, places))
        resolved, unresolved = interpolate(tree, places, os.environ)
    except tomli.TOMLDecodeError as error:
        raise UserError(_syntax(error, text, shown)) from None
    except RecursionError:
        raise UserError(Problem("its lists and tables are nested too deeply", Where(shown))) from None
    problems += dict.fromkeys(unresolved.values())
    try:
        pipeline = Pipeline.model_validate(resolved)
    except ValidationError as error:
        problems += (problem for key, problem in explain(error, resolved, places) if key not in unresolved)
    if problems:
        raise UserError(sorted(problems, key=lambda problem: problem.where.line if problem.where else 0))
    return Loaded(pipeline, source, places, tuple(overrides))


def dump(pipeline: Pipeline) -> str:
    """Return the pipeline as TOML that parses to an equal one; `[run]` in full, else only what is no default."""
    data = {
        "run": pipeline.run.model_dump(exclude_none=True),
        "task": pipeline.task.model_dump(exclude_defaults=True),
        **pipeline.model_dump(by_alias=True, exclude_defaults=True, exclude={"run", "task"}),
    }
    return tomli_w.dumps(escape(data))


def _syntax(error: tomli.TOMLDecodeError, text: str, shown: str) -> Problem:
    said = re.sub(r"\('(.+?)',?\)", lambda match: f"[{match[1]}]".replace("', '", "."), error.msg)
    hint = "a text must end on its line, with the quote that it began with" if "character '\\n'" in said else ""
    where = Where(shown, min(error.lineno, text.count("\n") + 1))
    return Problem(f"this is not TOML: {said[:1].lower()}{said[1:]}", where, hint)


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise UserError(Problem("this is not UTF-8 text", Where(str(path), line))) from None
    except FileNotFoundError:
        beside = sorted(file.stem for file in path.parent.glob("*.toml"))
        hint = nearest(path.stem, beside).replace('"?', '.toml"?')
        raise UserError(Problem("there is no such file", Where(str(path)), hint)) from None
    except OSError as error:
        raise UserError(Problem(f"cannot be read: {error.strerror}", Where(str(path)))) from None
