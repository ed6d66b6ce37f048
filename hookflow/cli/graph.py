"""`hookflow graph`: draw which hooks fire where, in what order, and why."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hookflow.cli.options import Overrides, PipelineFile

if TYPE_CHECKING:
    from hookflow.graph.plan import Plan


class Format(StrEnum):
    """How a plan is drawn."""

    text = "text"
    mermaid = "mermaid"
    dot = "dot"
    json = "json"


def graph(
    pipeline: PipelineFile,
    format_: Annotated[Format, typer.Option("--format", "-f", help="How to draw it.")] = Format.text,
    point: Annotated[
        str | None, typer.Option(metavar="POINT", help="Draw this point alone, e.g. after_train_iter.")
    ] = None,
    set_: Overrides = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write to a file, not to the terminal.")] = None,
) -> None:
    """Draw which hooks fire at which points, in what order, and why."""
    from hookflow.hooks.compile import compile_pipeline
    from hookflow.pipeline.load import load

    plan = compile_pipeline(load(pipeline, set_ or ()))
    drawing = _drawn(plan if point is None else _only(plan, point), format_)
    if out is None:
        print(drawing)
    else:
        _write(out, drawing + "\n")


def _drawn(plan: Plan, format_: Format) -> str:
    match format_:
        case Format.text:
            from hookflow.graph.render.text import as_text

            return as_text(plan, width=max(80, shutil.get_terminal_size().columns))
        case Format.mermaid:
            from hookflow.graph.render.mermaid import as_mermaid

            return as_mermaid(plan)
        case Format.dot:
            from hookflow.graph.render.dot import as_dot

            return as_dot(plan)
        case Format.json:
            return json.dumps(plan.to_json(), indent=1)


def _only(plan: Plan, point: str) -> Plan:
    """Return what the plan says of one point. Raises UserError when there is no such point, or nothing fires there."""
    from hookflow.errors import Problem, UserError, nearest

    bindings = plan.at(point)
    if point not in plan.points:
        hint = nearest(point, plan.points.names)
        raise UserError(Problem(f'there is no point "{point}"', hint=hint))
    if not bindings:
        bound = dict.fromkeys(binding.point for binding in plan.bindings)
        raise UserError(Problem(f"no hook fires at {point}", hint=f"hooks fire at {', '.join(bound)}"))
    there = {binding.hook for binding in bindings}
    hooks = tuple(hook for hook in plan.hooks if hook.name in there)
    return replace(plan, hooks=hooks, bindings=bindings, edges=plan.edges_at(point))


def _write(path: Path, text: str) -> None:
    from hookflow.errors import Problem, UserError, Where

    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise UserError(Problem(f"cannot be written: {error.strerror}", Where(str(path)))) from None
