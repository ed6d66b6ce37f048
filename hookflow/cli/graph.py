"""`hookflow graph`: draw the hooks of each point in their order, with the reasons."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, get_args

import typer

from hookflow.cli import options
from hookflow.cli.output import as_json, echo, write_file
from hookflow.errors import Problem, UserError, Where, nearest_or_all
from hookflow.graph.plan import Edge, Plan
from hookflow.numbers import counted, duration, percent

if TYPE_CHECKING:
    from hookflow.events.rundir import RunDir
    from hookflow.monitor.costs import Cost


def part_of(plan: Plan, points: Collection[str] = (), hook: str | None = None) -> Plan:
    """Return what the plan says of some points, or of a hook and its edges to others; of all where none is given."""

    def kept(edge: Edge) -> bool:
        return hook in (None, edge.first, edge.then) and (not points or edge.point in points)

    edges = tuple(filter(kept, plan.edges))
    shown = {id_ for edge in edges for id_ in (edge.first_id, edge.then_id)}
    of_hook = (binding for binding in plan.bindings if hook in (None, binding.hook) or binding.id in shown)
    bindings = tuple(binding for binding in of_hook if not points or binding.point in points)
    there = {binding.hook for binding in bindings}
    return replace(
        plan,
        hooks=tuple(planned for planned in plan.hooks if planned.name in there),
        bindings=bindings,
        edges=edges,
        given_way=tuple(passed for passed in plan.given_way if kept(passed.edge)),
    )


Format = Literal["text", "mermaid", "dot", "svg", "html", "json"]
"""How a plan is drawn."""

BY_SUFFIX: dict[str, Format] = {f".{format_}": format_ for format_ in get_args(Format)}
BY_SUFFIX |= {".txt": "text", ".mmd": "mermaid", ".gv": "dot"}


def graph(
    target: options.PipelineOrRun,
    format_: Annotated[
        Format | None, typer.Option("--format", "-f", help="Output format; by the suffix of --out, else text.")
    ] = None,
    point: Annotated[
        list[str] | None,
        typer.Option(
            metavar="POINT",
            help="Draw only this point, e.g. after_train_iter. Repeatable.",
            autocompletion=options.points,
        ),
    ] = None,
    hook: Annotated[
        str | None,
        typer.Option(
            metavar="HOOK", help="Draw only this hook and those that it has edges with.", autocompletion=options.hooks
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write to a file, not to the terminal.")] = None,
    set_: options.Overrides = None,
    without: options.Without = None,
    only: options.Only = None,
    shuffle: options.Shuffle = None,
    no_import: options.NoImport = False,
    dir: options.RunsFolder = Path("runs"),  # noqa: A002  # the option's name
) -> None:
    """Draw which hooks fire at which points, in what order, and why.

    For a run, draw the plan recorded at its start, with the hooks that have been switched off since; text, svg and html
    have what each hook took.
    """
    from hookflow.graph.render.svg import as_html, as_svg
    from hookflow.graph.render.text import as_dot, as_mermaid, as_text
    from hookflow.service.pipelines import open_target, warn_unknown

    chosen = format_ or (BY_SUFFIX.get(out.suffix.lower()) if out else "text")
    if chosen is None:
        hint = f"name a format with --format, or end the file's name in one of {', '.join(BY_SUFFIX)}"
        raise UserError(Problem("the name of the file does not say in which format to draw", Where(str(out)), hint))
    changes = {"without": without or (), "only": only or ()}
    opened = open_target(target, overrides=set_ or (), **changes, shuffle=shuffle, imports=not no_import, runs=dir)
    plan = opened.plan if opened.run is None else replace(opened.plan, off=_switched_off(opened.run))
    warn_unknown(plan)
    colour = out is None and sys.stdout.isatty() and "NO_COLOR" not in os.environ
    part, title = _narrowed(plan, list(dict.fromkeys(point or ())), hook)
    if chosen == "json":
        drawing = as_json(part.to_json())
    elif chosen == "text":
        width = max(40, shutil.get_terminal_size().columns)
        times = _times(opened.run, part)
        drawing = as_text(part, title, width, colour, times)
    elif chosen in ("mermaid", "dot"):
        drawing = {"mermaid": as_mermaid, "dot": as_dot}[chosen](part, title)
    else:
        times = _times(opened.run, part, _in_words)
        drawing = {"svg": as_svg, "html": as_html}[chosen](part, title, times)
    if out is None:
        echo(drawing, coloured=colour)
    else:
        write_file(out, drawing + "\n")


def _times(run: RunDir | None, plan: Plan, written: Callable[[Cost, bool], str] | None = None) -> dict[int, str]:
    """Return what the bindings took in the last attempt of a run, as `written`, else in columns."""
    if run is None:
        return {}
    from hookflow.monitor.costs import in_columns, of_bindings
    from hookflow.monitor.feed import Live

    live = Live(run, kept=True)
    live.read_all()
    return of_bindings(live.state, plan, written or in_columns)


def _in_words(cost: Cost, has_device: bool) -> str:
    device = f", {duration(cost.device)} on the device" if has_device and cost.device else ""
    share = "" if cost.share is None else f", {percent(cost.share)} % of iterations"
    return f"{cost.count:,} × {duration(cost.ns or 0.0)}{device}{share}"


def _switched_off(run: RunDir) -> tuple[tuple[str, int], ...]:
    """Return the hooks of a run that a command or an error has switched off, and the iterations done then."""
    from hookflow.monitor.summary import read_overview

    return tuple(read_overview(run, time.time()).state.disabled.items())


def _narrowed(plan: Plan, points: Sequence[str], hook: str | None) -> tuple[Plan, str]:
    from hookflow.graph.render.text import title_of
    from hookflow.service.pipelines import no_point

    names = [planned.name for planned in plan.hooks]
    if hook is not None and hook not in names:
        hint = nearest_or_all(hook, names, "it has")
        raise UserError(Problem(f'there is no hook "{hook}" in this pipeline', hint=hint))
    if unknown := [point for point in points if point not in plan.points]:
        raise UserError(no_point(plan.points, unknown[0]))
    bound = list(dict.fromkeys(binding.point for binding in plan.bindings if hook in (None, binding.hook)))
    fires, fire = ("no hook fires", "hooks fire") if hook is None else (f"{hook} does not fire", "it fires")
    if unbound := [point for point in points if point not in bound]:
        raise UserError(Problem(f"{fires} at {unbound[0]}", hint=f"{fire} at {', '.join(bound)}"))
    plan = part_of(plan, points, hook)
    if hook is None:
        return plan, title_of(plan)
    where = " and ".join(points) or counted(len(bound), "point")
    return plan, title_of(plan, f"{hook} at {where}, with the hooks that it has edges with")
