"""The commands explain, points and schema: the keys of a pipeline, and the points."""

from __future__ import annotations

import json
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hookflow.cli import complete
from hookflow.cli.options import NoImport, PipelineOption
from hookflow.cli.output import echo, echo_json, write_file
from hookflow.errors import nearest_or_all

if TYPE_CHECKING:
    from pydantic import BaseModel

    from hookflow.graph.plan import Binding, Plan
    from hookflow.graph.points import Point, Points
    from hookflow.hooks.describe import Argument, Description
    from hookflow.pipeline.json_schema import Declared


def explain(
    key: Annotated[
        str,
        typer.Argument(
            metavar="KEY",
            help="A key with its tables before it; a `*` stands for any name. Left out: the tables.",
            show_default=False,
            autocompletion=complete.schema_keys,
        ),
    ] = "",
    pipeline: PipelineOption = None,
) -> None:
    """Say what a key of a pipeline file is for.

    Shown are its sentence, its type, its default and an example; of a table, its keys. `hooks.ema.args.decay` is an
    argument of a hook: a built-in one, or with `--pipeline` one of that pipeline.

    Example: `hookflow explain run.precision`
    """
    from hookflow.hooks.registry import HOOKS
    from hookflow.pipeline.json_schema import find_key

    match key.split("."):
        case ["hooks", hook, "args", name] if hook != "*":
            found = _argument(key, hook, name, pipeline)
        case ["hooks", hook, "args"] if pipeline or hook in HOOKS.names():
            found = replace(find_key(key), example=_example(hook, _told(hook, pipeline).arguments))
        case _:
            found = find_key(key)
    echo("\n".join(_page(found, min(shutil.get_terminal_size().columns, 100))))


def _page(found: Declared, width: int) -> Iterator[str]:
    from hookflow.pipeline.json_schema import find_key

    if found.key:
        yield found.key
    yield from textwrap.wrap(found.about, width)
    yield ""
    if found.key:
        kind = f"{found.type}, required" if found.required else found.type
        facts = {"type": kind, "default": found.default, "example": found.example}
        for name, text in facts.items():
            for k, line in enumerate(text.split("\n") if text else []):
                yield f"  {name if k == 0 else '':<8} {line}"
    if found.keys:
        yield "" if found.key else "The tables and keys of a pipeline file:"
        rows = [find_key(f"{found.key}.{name}".lstrip(".")) for name in found.keys]
        names = [f"{row.key}{'  (required)' * row.required}" for row in rows]
        left = max(map(len, names)) + 4
        for name, row in zip(names, rows, strict=True):
            lines = textwrap.wrap(f"{row.type}: {row.about}", max(width - left, 30), break_on_hyphens=False)
            yield f"  {name:<{left - 2}}{lines[0]}"
            yield from (f"{'':<{left}}{line}" for line in lines[1:])


def _told(hook: str, pipeline: str | None) -> Description:
    """Return what a hook is: a built-in one, or one of a pipeline. Raises UserError when there is no such hook."""
    from hookflow.cli.pipelines import open_target
    from hookflow.errors import Problem, UserError, nearest
    from hookflow.graph.points import POINTS
    from hookflow.hooks.compile import find_hook
    from hookflow.hooks.describe import describe
    from hookflow.hooks.registry import HOOKS

    target = open_target(pipeline) if pipeline else None
    uses = {name: node.use for name, node in target.loaded.pipeline.hooks.items()} if target else {}
    known = {**{name: name for name in HOOKS.names()}, **uses}
    if hook not in known:
        hint = nearest(hook, known) or "a hook of a pipeline of yours: --pipeline FILE"
        raise UserError(Problem(f'"{hook}" is none of the hooks known here', hint=hint))
    return describe(find_hook(known[hook], target.base if target else Path(), None), POINTS)


def _example(hook: str, arguments: Sequence[Argument]) -> str:
    """Return how these arguments are written, with values: those that must be given, or else the first; or nothing."""
    given = [one for one in arguments if one.default is None] or arguments[:1]
    written = ", ".join(f"{one.name} = {one.default or one.example}" for one in given)
    return f"[hooks.{hook}]\nargs = {{ {written} }}" if given else ""


def _argument(key: str, hook: str, name: str, pipeline: str | None) -> Declared:
    """Return what is declared of a hook's argument. Raises UserError when there is no such hook, or argument."""
    from hookflow.errors import Problem, UserError
    from hookflow.pipeline.json_schema import Declared

    by_name = {argument.name: argument for argument in _told(hook, pipeline).arguments}
    if name not in by_name:
        hint = nearest_or_all(name, by_name, "it takes")
        raise UserError(Problem(f'the hook "{hook}" has no argument "{name}"', hint=hint))
    found = by_name[name]
    return Declared(
        key=key,
        about=_sentence(found.about),
        type=found.kind,
        required=found.default is None,
        default=found.default or "",
        example=_example(hook, [found]),
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
"""What stands after a point's name for its kind."""

LEGEND = """\
· a step of one iteration   + the pipeline's own   PyTorch's hooks:
○ on what `modules` picks   ◇ on what `parameters` picks
● on everything: every module, optimizer or model
Every point offers run; what it offers beside that stands in brackets."""


def points(pipeline: PipelineOption = None, no_import: NoImport = False) -> None:
    """List the points where hooks can fire, nested as in the loop.

    With each stands what has happened there, and the arguments that a hook may take. With `--pipeline`, also that
    pipeline's own points, and the hooks at each in the order of firing.
    """
    from hookflow.graph.points import POINTS

    plan = None
    if pipeline is not None:
        from hookflow.cli.pipelines import open_target, warn_unknown

        plan = open_target(pipeline, imports=not no_import).plan
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
        said = [in_one] if len(in_one) <= right else [point.about, _offers(point)]
        lines = [part for text in said for part in textwrap.wrap(text, right)]
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
    """Print the JSON Schema of a pipeline file, for editors.

    With it they complete and check the file. A pipeline names it in its first line: #:schema ./schema.json
    """
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
