"""A pipeline file on its way to a validated `Pipeline`, and back to TOML."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError

from hookflow.errors import Problem, UserError, Where, by_place
from hookflow.masking import mask, unmask
from hookflow.pipeline.default_hooks import add_default_hooks
from hookflow.pipeline.explain import explain
from hookflow.pipeline.extend import extended, over_base
from hookflow.pipeline.interpolate import interpolate, variables_of, without_environment
from hookflow.pipeline.overrides import Override, apply
from hookflow.pipeline.public import environment_keys, public
from hookflow.pipeline.read import MOST_BYTES, TOO_LONG, read
from hookflow.pipeline.recover import recover
from hookflow.pipeline.schema import Pipeline
from hookflow.pipeline.source_map import SourceMap
from hookflow.pipeline.switch import hooks_of, switched_off, unknown_hooks


@dataclass(frozen=True, slots=True)
class Loaded:
    """A valid pipeline, the file it came from (as the user named it), and where each of its keys stands."""

    pipeline: Pipeline
    source: Path
    places: SourceMap
    public: Pipeline
    """The pipeline as it is recorded and shown: with references in the place of what the environment has given.

    Its strings are so written that `${…}` in them is a reference, and `$${` a plain `${`.
    """
    overrides: tuple[str, ...] = ()
    in_python: bool = False
    """Whether `overrides` were said in Python."""
    variables: tuple[str, ...] = ()
    """The variables of the environment that it refers to."""


TABLES = Path("<dict>")
"""What stands for the file of a pipeline that was given as tables."""

PipelineSource = Path | Mapping[str, Any]
"""A pipeline file, or the tables that one would hold."""

Said = str | Override
"""A `key=value`: of the option `--set`, or with the place where it was said."""


class UnsoundError(UserError):
    """What is wrong with a file; `rest` is what can be understood of it all the same: its hooks, the others made up."""

    def __init__(self, problems: Iterable[Problem], rest: Loaded | None) -> None:
        super().__init__(sorted(problems, key=by_place))
        self.rest = rest


def load(
    source: PipelineSource,
    overrides: Sequence[Said] = (),
    *,
    without: Sequence[str] = (),
    only: Sequence[str] = (),
    recorded: bool = False,
    environment: bool = True,
) -> Loaded:
    """Read a pipeline file, lay `key=value` overrides over it, fill in its `${…}`, and check it.

    The hooks named in `without` are switched off, and, where `only` names any, all that it does not name. A file that
    is `recorded` has been written by `dump`: its default hooks stand in it. To show or compare it, the
    `environment` need not be asked: its references then stay what they are.
    Raises UserError with everything that is wrong, each with its line.
    """
    if isinstance(source, Path):
        text = read(source, recorded=recorded)
        return parse(text, source, overrides, without=without, only=only, recorded=recorded, environment=environment)
    places = SourceMap.in_tables(source, str(TABLES))
    tree, places = over_base(deepcopy(dict(source)), places, TABLES)
    return _understood(tree, places, TABLES, overrides, without, only, recorded, environment)


@contextmanager
def uncollected() -> Iterator[None]:
    """Collect no garbage in this block, or in the function that this decorates: its objects stay.

    To look through them takes as long as to make a large plan.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@uncollected()
def parse(
    text: str,
    source: Path,
    overrides: Sequence[Said] = (),
    *,
    without: Sequence[str] = (),
    only: Sequence[str] = (),
    recorded: bool = False,
    environment: bool = True,
) -> Loaded:
    """Do what `load` does with the text of a file; `source` is the file that problems are shown to stand in."""
    try:
        return _understood(*extended(text, source), source, overrides, without, only, recorded, environment)
    except RecursionError:
        raise UserError(Problem("its lists and tables are nested too deeply", Where(str(source)))) from None


def _understood(
    tree: dict[str, Any],
    places: SourceMap,
    source: Path,
    overrides: Sequence[Said],
    without: Sequence[str],
    only: Sequence[str],
    recorded: bool,
    environment: bool,
) -> Loaded:
    """Return what the tables of a file come to; `places` says where each of their keys stands."""
    changes = [said if isinstance(said, Override) else Override(said, Where(f"--set {said}")) for said in overrides]
    problems = list(apply(changes, tree, places))
    written, _, variables = without_environment(tree, places)
    resolved, unresolved, _ = interpolate(tree, places, os.environ) if environment else (written, {}, ())
    if environment:
        mask({name: os.environ[name] for name in variables if name in os.environ})
    for tables in (resolved, written):
        if not recorded:
            add_default_hooks(tables, places)
    problems += unknown_hooks(hooks_of(resolved), without, only)
    switches = [] if problems else switched_off(hooks_of(resolved), without, only)
    problems += apply(switches, resolved, places)
    list(apply(switches, written, places))
    problems += dict.fromkeys(unresolved.values())
    if "extends" in resolved:
        wrong = "extends cannot be set from the command line: what a file is built on stands in the file"
        problems.append(Problem(wrong, places.of("extends")))
    pipeline: Pipeline | None = None
    faulty = set(unresolved)
    try:
        pipeline = Pipeline.model_validate(resolved)
    except ValidationError as error:
        found = explain(error, resolved, places, dict(environment_keys(written)))
        problems += (problem for key, problem in found if key not in unresolved)
        faulty.update(key for key, _ in found)
    understood = pipeline if pipeline and not faulty else recover(resolved, faulty)
    said = tuple(change.text for change in (*changes, *switches))
    of_python = any(change.in_python for change in changes)
    if problems or understood is None:
        rest = Loaded(understood, source, places, understood) if understood else None
        raise UnsoundError(problems, rest)
    shown = public(resolved, written)
    unmask(set(variables) - {name for _, text in environment_keys(written) for name in variables_of(text)})
    return Loaded(understood, source, places, shown, said, of_python, variables)


def dump(public: Pipeline, where: Where | None = None) -> str:
    """Return a pipeline, as it is recorded, as TOML that parses to an equal one; it extends no other.

    Raises UserError, at `where`, when nobody could read it back: it is longer than a pipeline file may be.
    """
    written = tomli_w.dumps(as_tables(public))
    if len(written.encode("utf-8", "replace")) > MOST_BYTES:
        said = f"once its references and lists are written out, this is {TOO_LONG}"
        raise UserError(Problem(said, where))
    return written


def as_tables(pipeline: Pipeline) -> dict[str, Any]:
    """Return the pipeline as plain tables; `[run]` in full, else only what is no default."""
    return {
        "run": pipeline.run.model_dump(exclude_none=True),
        "task": pipeline.task.model_dump(exclude_defaults=True),
        **pipeline.model_dump(by_alias=True, exclude_defaults=True, exclude={"run", "task"}),
    }
