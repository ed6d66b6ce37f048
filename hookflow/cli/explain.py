"""The commands explain, points, hooks and schema: keys of a pipeline, points, and hooks."""

from __future__ import annotations

import ast
import json
import re
import shutil
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from inspect import isfunction
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hookflow.cli import complete
from hookflow.cli.options import NoImport, PipelineArgument, RunsFolder
from hookflow.cli.output import echo, echo_json, write_file
from hookflow.errors import Problem, UserError, Where, nearest, nearest_or_all
from hookflow.hooks.registry import BUILT_IN, HOOKS
from hookflow.pipeline.registry import COMPONENTS

if TYPE_CHECKING:
    from pydantic import BaseModel

    from hookflow.graph.plan import Binding, Plan
    from hookflow.graph.points import Point, Points
    from hookflow.hooks.describe import Argument, Description
    from hookflow.pipeline.json_schema import Declared
    from hookflow.service.pipelines import Target


def explain(
    what: Annotated[
        str,
        typer.Argument(
            metavar="WHAT",
            help="A key, a hook, `points`, `hooks`, or `schema`. Left out: the tables of a pipeline file.",
            show_default=False,
            autocompletion=complete.explained,
        ),
    ] = "",
    pipeline: PipelineArgument = None,
    no_import: NoImport = False,
    dir: RunsFolder = Path("runs"),  # noqa: A002  # the option's name
) -> None:
    """Explain a key of a pipeline file, a hook, or the points.

    - `explain run.precision` and `explain hooks.ema.args.decay` show a key: its sentence, type, default and an example.
      A `*` stands for any name.
    - `explain ema` shows a hook: its points, slots and arguments.
    - `explain points` lists the points where hooks can fire, and `explain hooks` the available hooks.
    - `explain schema` prints the JSON Schema of a pipeline file, for editors.

    With a pipeline or a run, its own points and hooks are among them. Hooks are imported for it, unless `--no-import`;
    hooks of a run are never imported.
    """
    if what == "points":
        points(pipeline, no_import, dir)
    elif what == "schema":
        schema()
    elif what == "hooks":
        hooks(None, pipeline, no_import, dir)
    elif ":" in what or what in HOOKS.names() or (pipeline and not _is_key(what)):
        hooks(what, pipeline, no_import, dir)
    else:
        try:
            _explain_key(what, pipeline, dir)
        except UserError as error:
            if "did you mean" in str(error) or not (hint := nearest(what, HOOKS.names())):
                raise
            raise UserError(Problem(f'"{what}" is neither a key nor a hook', Where("WHAT"), hint)) from None


def _is_key(what: str) -> bool:
    from hookflow.pipeline.json_schema import all_keys

    return not what or "." in what or any(key.split(".")[0] == what for key in all_keys())


def _explain_key(key: str, pipeline: str | None, runs: Path) -> None:
    from hookflow.hooks.registry import HOOKS
    from hookflow.pipeline.json_schema import find_key

    match key.split("."):
        case ["hooks", hook, "args", name] if hook != "*":
            result = _argument(key, hook, name, pipeline, runs)
        case ["hooks", hook, "args"] if pipeline or hook in HOOKS.names():
            result = replace(find_key(key), example=_example(hook, _described(hook, pipeline, runs).arguments))
        case _:
            result = find_key(key)
    echo("\n".join(_page(result, min(shutil.get_terminal_size().columns, 100))))


def _page(declared: Declared, width: int) -> Iterator[str]:
    from hookflow.pipeline.json_schema import find_key

    if declared.key:
        yield declared.key
    yield from textwrap.wrap(declared.about, width)
    yield ""
    if declared.key:
        kind = f"{declared.type}, required" if declared.required else declared.type
        facts = {"type": kind, "default": declared.default, "example": declared.example}
        for name, text in facts.items():
            for k, line in enumerate(text.split("\n") if text else []):
                yield f"  {name if k == 0 else '':<8} {line}"
    if declared.keys:
        yield "" if declared.key else "The tables and keys of a pipeline file:"
        rows = [find_key(f"{declared.key}.{name}".lstrip(".")) for name in declared.keys]
        names = [f"{row.key}{'  (required)' * row.required}" for row in rows]
        left = max(map(len, names)) + 4
        for name, row in zip(names, rows, strict=True):
            lines = textwrap.wrap(f"{row.type}: {row.about}", max(width - left, 30), break_on_hyphens=False)
            yield f"  {name:<{left - 2}}{lines[0]}"
            yield from (f"{'':<{left}}{line}" for line in lines[1:])


def _described(hook: str, pipeline: str | None, runs: Path) -> Description:
    """Return what a hook is: a built-in one, or one of a pipeline. Raises UserError when there is no such hook."""
    from hookflow.graph.points import POINTS
    from hookflow.hooks.compile import find_hook
    from hookflow.hooks.describe import describe
    from hookflow.hooks.registry import HOOKS
    from hookflow.service.pipelines import open_target

    target = open_target(pipeline, runs=runs) if pipeline else None
    uses = {name: node.use for name, node in target.loaded.pipeline.hooks.items()} if target else {}
    known = {**{name: name for name in HOOKS.names()}, **uses}
    if hook not in known:
        hint = nearest(hook, known) or "a hook of a pipeline of yours: name the pipeline, too"
        raise UserError(Problem(f'"{hook}" is none of the hooks known here', hint=hint))
    return describe(find_hook(known[hook], target.base if target else Path(), None), POINTS)


def _example(hook: str, arguments: Sequence[Argument]) -> str:
    """Return how these arguments are written, with values: those that must be given, or else the first; or nothing."""
    provided = [argument for argument in arguments if argument.default is None] or arguments[:1]
    written = ", ".join(f"{item.name} = {item.default or item.example}" for item in provided)
    return f"[hooks.{hook}]\nargs = {{ {written} }}" if provided else ""


def _argument(key: str, hook: str, name: str, pipeline: str | None, runs: Path) -> Declared:
    """Return what is declared of a hook's argument. Raises UserError when there is no such hook, or argument."""
    from hookflow.pipeline.json_schema import Declared

    by_name = {argument.name: argument for argument in _described(hook, pipeline, runs).arguments}
    if name not in by_name:
        hint = nearest_or_all(name, by_name, "it takes")
        raise UserError(Problem(f'the hook "{hook}" has no argument "{name}"', hint=hint))
    result = by_name[name]
    return Declared(
        key=key,
        about=_sentence(result.about),
        type=result.kind,
        required=result.default is None,
        default=result.default or "",
        example=_example(hook, [result]),
    )


def _sentence(text: str) -> str:
    """Return a phrase as a sentence; one that begins with a name in quotes or code keeps that as it is."""
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'}" if text else ""


MARKS = {
    "standard": "",
    "step": " ·",
    "module": " ○",
    "state": " ○",
    "parameter": " ◇",
    "global": " ●",
    "optimizer": " ●",
    "comm": " ●",
    "log": "",
    "own": " +",
}
"""The suffix of a point by its kind."""

LEGEND = """\
· a step of one iteration   + the pipeline's own   PyTorch's hooks:
○ on what `modules` picks   ◇ on what `parameters` picks
● on everything: every module, optimizer or model
Every point offers run; what it offers beside that stands in brackets."""


def points(
    pipeline: PipelineArgument = None,
    no_import: NoImport = False,
    dir: RunsFolder = Path("runs"),  # noqa: A002  # the option's name
) -> None:
    """List the points where hooks can fire, as explain points does."""
    from hookflow.graph.points import POINTS

    plan = None
    if pipeline is not None:
        from hookflow.service.pipelines import open_target, warn_unknown

        plan = open_target(pipeline, imports=not no_import, runs=dir).plan
        warn_unknown(plan)
    every = plan.points if plan else POINTS
    echo("\n".join(_lines(every, plan, shutil.get_terminal_size().columns)))
    pairs = ", ".join(f"around_{pair}" for pair in every.pairs)
    echo(f"\n{LEGEND}")
    echo(textwrap.fill(f"A generator that yields once can stand around a pair: {pairs}.", 80))


def _lines(points: Points, plan: Plan | None, width: int) -> Iterator[str]:
    labels = {point.name: f"{'  ' * point.depth}{point.name}{MARKS[point.kind]}" for point in points}
    left = max(map(len, labels.values())) + 2
    right = max(width - left, 30)
    for point in points:
        in_one = f"{point.about}  {_offers(point)}"
        sentences = [in_one] if len(in_one) <= right else [point.about, _offers(point)]
        lines = [part for text in sentences for part in textwrap.wrap(text, right)]
        if plan:
            hooks = " → ".join(map(_name, plan.at(point.name)))
            lines += textwrap.wrap(hooks, right, initial_indent="▸ ", subsequent_indent="  ")
        for label, line in zip_longest([labels[point.name]], lines or [""], fillvalue=""):
            yield f"{label:<{left}}{line}".rstrip()


def _offers(point: Point) -> str:
    return f"[{', '.join(point.offers[1:])}]" if point.offers[1:] else ""


def _name(binding: Binding) -> str:
    half = "" if binding.half == "whole" else f"{binding.half} "
    trigger = f" ({binding.trigger})" if str(binding.trigger) else ""
    return f"{half}{binding.hook}{trigger}"


def schema(
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write to a file, not to the terminal.")] = None,
) -> None:
    """Print the JSON Schema of a pipeline file, as explain schema does."""
    if out is None:
        echo_json(schema_of_pipelines())
    else:
        write_file(out, json.dumps(schema_of_pipelines(), indent=1) + "\n")


def schema_of_pipelines() -> dict[str, Any]:
    """Return the schema, with what the points and the built-in hooks say of themselves."""
    from hookflow.graph.points import POINTS
    from hookflow.hooks.registry import BUILT_IN
    from hookflow.pipeline.json_schema import json_schema
    from hookflow.pipeline.use import refer

    points = {point.name: point.about for point in POINTS}
    pairs = {f"around_{pair}": f"from before_{pair} to {closing}" for pair, closing in POINTS.pairs.items()}
    hooks = {name: arguments(refer(use, Path(), None)) for name, use in BUILT_IN.items()}
    return json_schema(hooks, {**points, **pairs})


def arguments(hook: Any) -> type[BaseModel]:
    """Return the arguments of a hook's class as the fields of a model."""
    import inspect
    import typing

    from pydantic import ConfigDict, create_model

    from hookflow.hooks.inspect import about

    hints = typing.get_type_hints(hook.__init__, include_extras=True)
    fields: dict[str, Any] = {
        name: (hints.get(name, Any), ... if parameter.default is parameter.empty else parameter.default)
        for name, parameter in inspect.signature(hook).parameters.items()
    }
    return create_model(hook.__name__, __config__=ConfigDict(extra="forbid"), __doc__=about(hook), **fields)


Row = tuple[str, str]
"""A name and its description."""

Find = Callable[[str, Path, Any], Any]
"""Finds a hook by its `use`, relative to a folder."""

DEFINES = (ast.ClassDef, ast.FunctionDef)
"""Syntax nodes that define a hook."""


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
    pipeline: PipelineArgument = None,
    no_import: NoImport = False,
    dir: RunsFolder = Path("runs"),  # noqa: A002  # the option's name
) -> None:
    """List the available hooks, or describe one, as explain does."""
    target = None
    if pipeline is not None:
        from hookflow.service.pipelines import open_target

        target = open_target(pipeline, imports=not no_import, runs=dir)
    width = shutil.get_terminal_size().columns
    find = _finder(imports=not no_import and (target is None or target.imports))
    echo("\n".join(_list(target, find, width) if name is None else _detailed(name, target, find, width)))


def _finder(*, imports: bool) -> Find:
    """Return the function that finds a hook: with or without an import."""
    from hookflow.hooks.compile import find_hook
    from hookflow.hooks.not_imported import find_without_import

    return find_hook if imports else find_without_import


def _list(target: Target | None, find: Find, width: int) -> Iterator[str]:
    sections: dict[str, list[Row]] = {"built in": [(name, _built_in(name, find)) for name in BUILT_IN]}
    if offers := HOOKS.offered():
        sections["from installed packages"] = [
            (offered.name, f"{offered.package}: {HOOKS.clash(offered) or _hook_sentence(offered.use, find)}")
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
    yield "hookflow explain NAME describes one of them."


def _built_in(name: str, find: Find) -> str:
    from hookflow.pipeline.load import DEFAULT_HOOKS

    return f"{_hook_sentence(BUILT_IN[name], find)}{' (default)' * (name in DEFAULT_HOOKS)}"


def _hook_sentence(use: str, find: Find) -> str:
    from hookflow.hooks.compile import looking_at
    from hookflow.hooks.inspect import about

    try:
        with looking_at(use):
            return about(find(use, Path(), None))
    except UserError as error:  # a broken hook does not hide the others
        return "; ".join(problem.message for problem in error.problems)


def _own(target: Target, find: Find) -> dict[str, list[Row]]:
    """Return what each file that the pipeline takes hooks from offers, as one would write it."""
    from hookflow.hooks.compile import looking_at
    from hookflow.hooks.inspect import about
    from hookflow.hooks.not_imported import NotImported
    from hookflow.pipeline.use import parse_file

    uses = (hook.use.rpartition(":")[0] for hook in target.loaded.pipeline.hooks.values())
    result: dict[str, list[Row]] = {}
    for file in dict.fromkeys(file for file in uses if file.endswith(".py")):
        try:
            defined = [node.name for node in parse_file(target.base / file).body if isinstance(node, DEFINES)]
        except (OSError, SyntaxError):  # of a run that was moved, say
            continue
        result[file] = []
        for name in defined:
            with looking_at(f"what is in {file}"), suppress(UserError):
                thing = find(f"{file}:{name}", target.base, None)
                if thing is NotImported or _can_be_hook(thing, target.plan.points):
                    result[file].append((f"{file}:{name}", about(thing)))
    return result


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
        result = methods(thing, points)[0]
        return any(names_of(thing, "modules") or points[method.point].kind != "module" for method in result)
    return isfunction(thing) and not thing.__name__.startswith("_") and fitting_point(thing, points) is not None


def _detailed(name: str, target: Target | None, find: Find, width: int) -> Iterator[str]:
    from hookflow.graph.points import POINTS
    from hookflow.hooks.compile import looking_at
    from hookflow.hooks.describe import describe
    from hookflow.hooks.inspect import about
    from hookflow.hooks.not_imported import NotImported
    from hookflow.pipeline.load import DEFAULT_HOOKS

    declared = target.loaded.pipeline.hooks if target else {}
    use = declared[name].use if name in declared else name
    with looking_at(use):
        hook = find(use, target.base if target else Path(), None)
        if hook is NotImported:
            yield from (use, about(hook))
            return
        description = describe(hook, target.plan.points if target else POINTS)
    yield use if ":" in use else f"{use}  ({hook.__module__}:{hook.__qualname__})"
    yield from _wrap(description.about, width)
    yield ""
    yield from (f"wrong: {message}{f'; {hint}' * bool(hint)}\n" for message, hint in description.faults)
    yield from _methods(description)
    yield ""
    if stands := list(_stands(description)):
        yield from (f"{key:<8}  {message}" for key, message in stands)
        yield ""
    if name in DEFAULT_HOOKS and name == use:
        yield from _wrap(
            f"default: there unless the pipeline declares one, or says run.default_hooks = false, or "
            f"[hooks.{name}] enabled = false",
            width,
        )
        yield ""
    if description.arguments:
        yield "arguments"
        rows = [
            (_assigned(argument.name, argument.default), f"{argument.kind}: {argument.about}".rstrip(": "))
            for argument in description.arguments
        ]
        yield from _table(rows, max(len(left) for left, _ in rows) + 4, width)
        yield ""
    yield "in a pipeline"
    yield textwrap.indent(description.as_toml(name if name in declared else _table_name(use), use), "  ")


def _methods(description: Description) -> Iterator[str]:
    """Yield the methods as a table: what they take, and the slots that they read and write."""
    if not description.methods:
        yield (
            f"a plain function: it fires where `points` says, e.g. {description.fits}"
            if description.fits
            else "a plain function"
        )
        return
    rows = [("methods", "reads", "writes", "")]
    for method in description.methods:
        called = f"  {method.name}({', '.join(method.takes)})"
        reads, writes = (" ".join(slots.get(method.name, ())) for slots in (description.reads, description.writes))
        rows.append((called, reads, writes, "" if method.name in description.bound else description.elsewhere))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    shown = [column for column in range(4) if any(row[column] for row in rows[1:])]
    for row in rows:
        yield "  ".join(f"{row[column]:<{widths[column]}}" for column in shown).rstrip()


def _stands(description: Description) -> Iterator[Row]:
    """Yield how the class wants to stand among others."""
    if description.phase != "normal":
        yield "phase", description.phase
    if description.ranks != "all":
        yield "ranks", description.ranks
    for key in ("after", "before", "requires", "modules", "parameters"):
        if names := getattr(description, key):
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
    for name, message in rows:
        first, *rest = _wrap(message, width - left) or [""]
        yield f"  {name:<{left - 2}}{first}".rstrip()
        yield from (f"{'':<{left}}{line}" for line in rest)


def _wrap(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, min(max(width, 30), 100), break_on_hyphens=False)
