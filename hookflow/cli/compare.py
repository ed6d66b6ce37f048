"""`hookflow compare`: what differs between pipelines and runs, and what came of it."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from hookflow.cli import options
from hookflow.cli.output import brief, columns, echo, echo_json, with_deltas
from hookflow.errors import Problem, UserError, Where
from hookflow.numbers import ms, number, signed

if TYPE_CHECKING:
    from hookflow.monitor.compare import Side

TIMES, LEAST, BAR = 12, 1e4, 12
"""Rows of the table of times, where one with a difference of less ns an iteration is left out; cells of a bar."""


def compare(
    targets: Annotated[
        list[str], options.argument("A B…", "Pipeline files or runs: ids, names or folders.", options.files_and_runs)
    ],
    format_: Annotated[
        Literal["text", "json", "html"],
        typer.Option("--format", "-f", help="html: a page that opens without a network."),
    ] = "text",
    dir: options.RunsFolder = Path("runs"),  # noqa: A002  # the option's name
) -> None:
    """Compare pipelines, or runs: all with the first.

    Pipelines differ in keys, hooks and where they fire, edges, and the order of the hooks that both have. Of runs also
    the environment, the metrics, their curves, and the time of each hook are shown. A run is compared by the pipeline
    and the plan that it was started with.

    Exits with 0 if the pipelines are the same, with 1 if they differ.

    Example: `hookflow compare pipelines/cifar.toml cifar` compares the file with its newest run.

    Example: `hookflow compare A B --format html > compared.html`
    """
    from hookflow.graph.plan import difference
    from hookflow.monitor.compare import LETTERS, Side
    from hookflow.service.pipelines import difference_lines, open_target

    if not 2 <= len(targets) <= len(LETTERS):
        message = f"compares 2 to {len(LETTERS)} pipelines or runs, and there are {len(targets)}"
        raise UserError(Problem(message, Where("compare"), "hookflow compare A B"))
    first, *others = opened = [open_target(name, runs=dir) for name in targets]
    was = first.loaded.public, first.plan
    results = [difference(was, (each.loaded.public, each.plan), sweep=not (first.run or each.run)) for each in others]
    every = [None if each.run is None else Side(each.run) for each in opened]
    sides = [side for side in every if side]
    for side in sides:
        side.live.read_all()
    if format_ == "json":
        differences = [{"with": each.name, **asdict(result)} for each, result in zip(others, results, strict=True)]
        echo_json({"first": first.name, "differences": differences, **_runs_as_data(sides)})
    elif format_ == "html":
        from hookflow.cli.compare_html import as_html

        heads = [f"{letter} {side.short}" for letter, side in zip(LETTERS, every, strict=False) if side]
        echo(as_html(opened, results, every, tables(heads, sides) if sides else {}).removesuffix("\n"))
    else:
        for each, result in zip(others, results, strict=True):
            echo("\n".join(difference_lines(first, each, result)) + "\n" * (len(others) > 1))
        if len(sides) > 1:
            _print_runs(sides)
    raise typer.Exit(1 if any(results) else 0)


def _runs_as_data(sides: Sequence[Side]) -> dict[str, Any]:
    """Return what runs have beyond their pipelines; lists are in the order of `runs`."""
    from hookflow.monitor.compare import results, times, times_once, unequal

    return {
        "runs": [side.run.id for side in sides],
        "parents": [parent and parent._asdict() for parent in (side.run.parent() for side in sides)],
        "environment": unequal([side.environment for side in sides]),
        "metrics": results([side.state for side in sides]),
        "ns_per_iteration": {row.name: row.ns for row in times(sides)},
        "ns_once": {row.name: row.ns for row in times_once(sides)},
    }


def tables(heads: Sequence[str], sides: Sequence[Side]) -> dict[str, list[tuple[str, ...]]]:
    """Return tables of what differs between runs beyond their pipelines, and of what came of them, by title.

    The first row has the headings, in which `heads` are the runs.
    """
    from hookflow.monitor.compare import WHOLE, results, times, times_once, unequal

    with_changes = with_deltas(heads, [f"Δ to {heads[0][0]}"] * (len(heads) - 1))
    environment = unequal([side.environment for side in sides]).items()
    metrics: list[tuple[str, ...]] = []
    for name, both in results([side.state for side in sides]).items():
        for kind, (first, *others) in both.items():
            changes = ["" if None in (first, other) else signed(other - first, number) for other in others]  # type: ignore[operator]
            cells = ["-" if value is None else number(value) for value in (first, *others)]
            metrics.append((name, kind, *with_deltas(cells, changes)))
    spent: list[tuple[str, ...]] = []
    every = [row for row in times(sides) if abs(row.delta) >= LEAST or row.name == WHOLE]
    most = max((abs(row.delta) for row in every if row.name != WHOLE), default=0.0) or 1.0
    for row in [*every[:-1][:TIMES], *every[-1:]]:
        cells = ["-" if ns is None else ms(ns) for ns in row.ns]
        bar = "━" * round(BAR * abs(row.delta) / most) if row.name != WHOLE else ""
        spent.append((row.name, *with_deltas(cells, [*map(signed, row.deltas)]), f"{bar} {row.change}".strip()))
    once: list[tuple[str, ...]] = []
    for row in times_once(sides)[:TIMES]:
        cells = ["-" if ns is None else ms(ns) for ns in row.ns]
        once.append((row.name, *with_deltas(cells, [*map(signed, row.deltas)]), row.change))
    return {
        "Environment": [("environment", *heads), *((key, *map(brief, values)) for key, values in environment)],
        "Metrics": [("metric", "", *with_changes), *metrics],
        "Where the time went": [("ms an iteration", *with_changes, ""), *spent],
        "Before and after the training": [("ms, once", *with_changes, ""), *once],
    }


def _print_runs(sides: Sequence[Side]) -> None:
    """Print what differs between runs beyond their pipelines, and what came of them."""
    from hookflow.monitor.compare import LETTERS

    ids = [side.run.id for side in sides]
    for letter, side in zip(LETTERS, sides, strict=False):
        if parent := side.run.parent():
            of = dict(zip(ids, LETTERS, strict=False)).get(parent.run, parent.run)
            echo(f"{letter} is a fork of {of}, from its {parent.checkpoint} (iteration {parent.it:,})")
    heads = [f"{letter} {side.short}" for letter, side in zip(LETTERS, sides, strict=False)]
    for rows in tables(heads, sides).values():
        if len(rows) > 1:
            echo("\n" + "\n".join(columns(rows)))
    _print_curves(sides)


def _print_curves(sides: Sequence[Side]) -> None:
    """Print the curves of the first metric and of the loss over one another, in colours on a terminal."""
    from rich.console import Console
    from rich.text import Text

    from hookflow.monitor.compare import metrics_of, names_of
    from hookflow.monitor.panels.compare import curves
    from hookflow.service.pipelines import WIDTH

    names = dict.fromkeys([*metrics_of([side.state for side in sides])[:1], "loss"])
    console = Console(no_color="NO_COLOR" in os.environ, highlight=False)
    width = min(shutil.get_terminal_size().columns, WIDTH)
    for name in names:
        if name in names_of(sides):
            echo(f"\n{name}")
            for strip in curves(sides, name, width, 12):
                styled = ((segment.text, segment.style and segment.style.color) for segment in strip)
                parts = [(text, colour.name if colour else "") for text, colour in styled]
                if sys.stdout.isatty():
                    console.print(Text.assemble(*parts))
                else:
                    echo(strip.text.rstrip())
