"""`hookflow points`: where hooks can fire, and what they are offered there."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator
from itertools import zip_longest
from typing import TYPE_CHECKING

from hookflow.cli.options import NoImport, PipelineOption
from hookflow.cli.output import echo

if TYPE_CHECKING:
    from hookflow.graph.plan import Binding, Plan
    from hookflow.graph.points import Point, Points

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
