"""`hookflow hooks`: which hooks can be used here, and how one of them is used."""

from __future__ import annotations

import ast
import re
import shutil
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from inspect import isfunction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hookflow.cli import complete
from hookflow.cli.options import NoImport, PipelineOption
from hookflow.cli.output import echo
from hookflow.hooks.registry import BUILT_IN, HOOKS
from hookflow.pipeline.load import DEFAULT_HOOKS
from hookflow.pipeline.registry import COMPONENTS

if TYPE_CHECKING:
    from hookflow.cli.pipelines import Target
    from hookflow.graph.points import Points
    from hookflow.hooks.describe import Description

Row = tuple[str, str]
"""A name, and what is said of it."""

Find = Callable[[str, Path, Any], Any]
"""Finds a hook by its `use`, relative to a folder."""

DEFINES = (ast.ClassDef, ast.FunctionDef)
"""What defines a hook in a file."""


def hooks(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help='The hook to describe: a short name, "package.module:Name", "./file.py:Name", '
            "or a hook of the pipeline.",
            show_default=False,
            autocompletion=complete.known_hooks,
        ),
    ] = None,
    pipeline: PipelineOption = None,
    no_import: NoImport = False,
) -> None:
    """List the available hooks, or describe one.

    These are the built-in ones, those that installed packages offer (entry points of the group `hookflow.hooks`), and,
    with `--pipeline`, those that the pipeline uses, and what else the files offer that it takes hooks from. Models,
    data, tasks and writers that installed packages offer are listed too.

    Hooks are imported to be looked at. `--no-import` reads their source instead, as is done with those of a run.

    Example: `hookflow hooks ema`
    """
    target = None
    if pipeline is not None:
        from hookflow.cli.pipelines import open_target

        target = open_target(pipeline, imports=not no_import)
    width = shutil.get_terminal_size().columns
    find = _finder(imports=not no_import and (target is None or target.imports))
    echo("\n".join(_list(target, find, width) if name is None else _one(name, target, find, width)))


def _finder(*, imports: bool) -> Find:
    """Return what finds a hook: by importing it, or by its source alone."""
    from hookflow.hooks.compile import find_hook
    from hookflow.hooks.unimported import find_unimported

    return find_hook if imports else find_unimported


def _list(target: Target | None, find: Find, width: int) -> Iterator[str]:
    sections: dict[str, list[Row]] = {"built in": [(name, _built_in(name, find)) for name in BUILT_IN]}
    if offers := HOOKS.offered():
        sections["from installed packages"] = [
            (offered.name, f"{offered.package}: {HOOKS.clash(offered) or _sentence(offered.use, find)}")
            for offered in offers
        ]
    for registry in COMPONENTS:
        if offers := registry.offered():  # these are not imported: most of them would import torch
            sections[f"{registry.kind}s from installed packages"] = [
                (offered.name, f"{offered.package}: {registry.clash(offered) or offered.use}") for offered in offers
            ]
    if target is not None:
        for file, rows in _own(target, find).items():
            sections[f"in {file}"] = rows
        sections[f"used by {target.name}"] = [*_used(target)]
    left = max(len(name) for rows in sections.values() for name, _ in rows) + 4
    for title, rows in sections.items():
        yield title
        yield from _table(rows, left, width)
        yield ""
    yield "hookflow hooks NAME describes one of them."


def _built_in(name: str, find: Find) -> str:
    return f"{_sentence(BUILT_IN[name], find)}{' (default)' * (name in DEFAULT_HOOKS)}"


def _sentence(use: str, find: Find) -> str:
    from hookflow.errors import UserError
    from hookflow.hooks.compile import looking_at
    from hookflow.hooks.inspect import about

    try:
        with looking_at(use):
            return about(find(use, Path(), None))
    except UserError as error:  # one that is broken keeps nobody from the others
        return "; ".join(problem.message for problem in error.problems)


def _own(target: Target, find: Find) -> dict[str, list[Row]]:
    """Return what each file that the pipeline takes hooks from offers, as one would write it."""
    from hookflow.errors import UserError
    from hookflow.hooks.compile import looking_at
    from hookflow.hooks.inspect import about
    from hookflow.pipeline.use import parse_file

    uses = (hook.use.rpartition(":")[0] for hook in target.loaded.pipeline.hooks.values())
    found: dict[str, list[Row]] = {}
    for file in dict.fromkeys(file for file in uses if file.endswith(".py")):
        try:
            defined = [node.name for node in parse_file(target.base / file).body if isinstance(node, DEFINES)]
        except (OSError, SyntaxError):  # of a run that was moved, say
            continue
        found[file] = []
        for name in defined:
            with looking_at(f"what is in {file}"), suppress(UserError):
                thing = find(f"{file}:{name}", target.base, None)
                if _can_be_hook(thing, target.plan.points):
                    found[file].append((f"{file}:{name}", about(thing)))
    return found


def _used(target: Target) -> Iterator[Row]:
    """Yield the hooks of a pipeline by the names that it gives them, each as a call."""
    planned = {hook.name: hook for hook in target.plan.hooks}
    for name, node in target.loaded.pipeline.hooks.items():
        hook = planned.get(name)
        yield name, f"{node.use}({hook.written_args})" if hook else f"{node.use}, switched off"


def _can_be_hook(thing: Any, points: Points) -> bool:
    """Say whether a class has a method for a point, or some point offers all that a function takes.

    A network has methods for the points of modules: it is none unless it says at which modules.
    """
    from hookflow.hooks.describe import fitting_point
    from hookflow.hooks.inspect import methods, names_of

    if isinstance(thing, type):
        found = methods(thing, points)[0]
        return any(names_of(thing, "modules") or points[method.point].kind != "module" for method in found)
    return isfunction(thing) and not thing.__name__.startswith("_") and fitting_point(thing, points) is not None


def _one(name: str, target: Target | None, find: Find, width: int) -> Iterator[str]:
    from hookflow.graph.points import POINTS
    from hookflow.hooks.compile import looking_at
    from hookflow.hooks.describe import describe

    declared = target.loaded.pipeline.hooks if target else {}
    use = declared[name].use if name in declared else name
    with looking_at(use):
        hook = find(use, target.base if target else Path(), None)
        told = describe(hook, target.plan.points if target else POINTS)
    yield use if ":" in use else f"{use}  ({hook.__module__}:{hook.__qualname__})"
    yield from _wrap(told.about, width)
    yield ""
    yield from (f"wrong: {said}{f'; {hint}' * bool(hint)}\n" for said, hint in told.faults)
    yield from _methods(told)
    yield ""
    if stands := list(_stands(told)):
        yield from (f"{key:<8}  {said}" for key, said in stands)
        yield ""
    if name in DEFAULT_HOOKS and name == use:
        yield from _wrap(
            f"default: there unless the pipeline declares one, or says run.default_hooks = false, or "
            f"[hooks.{name}] enabled = false",
            width,
        )
        yield ""
    if told.arguments:
        yield "arguments"
        rows = [
            (_assigned(argument.name, argument.default), f"{argument.kind}: {argument.about}".rstrip(": "))
            for argument in told.arguments
        ]
        yield from _table(rows, max(len(left) for left, _ in rows) + 4, width)
        yield ""
    yield "in a pipeline"
    yield textwrap.indent(told.as_toml(name if name in declared else _table_name(use), use), "  ")


def _methods(told: Description) -> Iterator[str]:
    """Yield the methods as a table: what they take, and the slots that they read and write."""
    if not told.methods:
        yield f"a plain function: it fires where `points` says, e.g. {told.fits}" if told.fits else "a plain function"
        return
    rows = [("methods", "reads", "writes", "")]
    for method in told.methods:
        called = f"  {method.name}({', '.join(method.takes)})"
        reads, writes = (" ".join(slots.get(method.name, ())) for slots in (told.reads, told.writes))
        rows.append((called, reads, writes, "" if method.name in told.bound else told.elsewhere))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    shown = [column for column in range(4) if any(row[column] for row in rows[1:])]
    for row in rows:
        yield "  ".join(f"{row[column]:<{widths[column]}}" for column in shown).rstrip()


def _stands(told: Description) -> Iterator[Row]:
    """Yield how the class wants to stand among others."""
    if told.phase != "normal":
        yield "phase", told.phase
    if told.ranks != "all":
        yield "ranks", told.ranks
    for key in ("after", "before", "requires", "modules", "parameters"):
        if names := getattr(told, key):
            yield key, ", ".join(names)


def _assigned(name: str, default: str | None) -> str:
    if default is None:
        return f"{name}  (required)"
    return f"{name} = {default}" if default else name


def _table_name(use: str) -> str:
    """Return a name for a hook's table: the short name, or that of the class or function."""
    name = use.rpartition(":")[2].rpartition(".")[2]
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def _table(rows: Sequence[Row], left: int, width: int) -> Iterator[str]:
    for name, said in rows:
        first, *rest = _wrap(said, width - left) or [""]
        yield f"  {name:<{left - 2}}{first}".rstrip()
        yield from (f"{'':<{left}}{line}" for line in rest)


def _wrap(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, min(max(width, 30), 100), break_on_hyphens=False)
