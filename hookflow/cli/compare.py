"""`hookflow compare`: what differs between pipelines and runs, and what came of it."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from hookflow.cli import options
from hookflow.cli.output import columns, echo, echo_json, format_briefly, format_cell, with_deltas
from hookflow.errors import Problem, UserError, Where
from hookflow.numbers import format_ms, format_signed, number

if TYPE_CHECKING:
    from textual.strip import Strip

    from hookflow.graph.plan import PlanDifference
    from hookflow.monitor.compare import ComparedRun, TimeRow
    from hookflow.service.code_comparison import CodeComparison
    from hookflow.service.pipelines import Target

MAX_TIMES = 12
"""Rows of a table of times, besides that of the whole iteration."""

MIN_DIFFERENCE = 1e4
"""ns of an iteration; hooks and phases that differ by less are left out."""

BAR_WIDTH = 12
"""Cells of the longest bar."""

CURVE_HEIGHT = 12
"""Rows of a curve."""

PAGE_FORMAT = "html: a page that opens without a network."
DIFF_FORMAT = "diff: all lines of pipelines and code that differ, as diff -u."

Row = tuple[str, ...]


def compare(
    targets: Annotated[
        list[str],
        options.argument(
            "A B…",
            "Pipeline files or runs: ids, names or folders.",
            options.complete_files_and_runs,
        ),
    ],
    format_: Annotated[
        Literal["text", "diff", "json", "html"],
        typer.Option("--format", "-f", help=f"{DIFF_FORMAT} {PAGE_FORMAT}"),
    ] = "text",
    dir: options.RunsFolder = Path("runs"),  # noqa: A002  # the option's name
) -> None:
    """Compare pipelines, or runs: all with the first.

    Pipelines differ in keys, hooks and where they fire, edges, and the order of the hooks that both
    have. Of runs also the environment, the metrics, their curves, and the time of each hook are
    shown. A run is compared by the pipeline and the plan that it was started with.

    The code is compared, too: of a run what it has recorded last, of a file what it names on the
    disk.

    Exits with 0 if the pipelines and the code are the same, with 1 if they differ.

    Example: `hookflow compare pipelines/cifar.toml cifar` compares the file with its newest run.

    Example: `hookflow compare A B --format html > compared.html`

    Example: `hookflow compare A B --format diff` prints every line of the pipelines and of the code
    that differs.
    """
    from hookflow.monitor.compare import RUN_LETTERS

    if not 2 <= len(targets) <= len(RUN_LETTERS):
        message = (
            f"compares 2 to {len(RUN_LETTERS)} pipelines or runs, and there are {len(targets)}"
        )
        raise UserError(Problem(message, Where("compare"), "hookflow compare A B"))
    comparison = TargetComparison.read(targets, dir)
    if format_ == "json":
        echo_json(_comparison_data(comparison))
    elif format_ == "html":
        _print_page(comparison)
    elif format_ == "diff":
        _print_unified(comparison)
    else:
        _print_comparison(comparison)
    raise typer.Exit(int(comparison.has_differences))


@dataclass(frozen=True, slots=True)
class TargetComparison:
    """The targets, and what differs between the first and each other; a run is None for a file."""

    targets: Sequence[Target]
    differences: Sequence[PlanDifference]
    codes: Sequence[CodeComparison]
    runs: Sequence[ComparedRun | None]

    @classmethod
    def read(cls, names: Sequence[str], folder: Path) -> TargetComparison:
        """Open the pipelines and runs with these names, and compare them."""
        from hookflow.graph.plan import difference
        from hookflow.monitor.compare import ComparedRun
        from hookflow.service.code import compare_targets
        from hookflow.service.pipelines import open_target

        targets = [open_target(name, runs=folder) for name in names]
        first, *others = targets
        differences = []
        codes = []
        for other in others:
            are_files = first.run is None and other.run is None
            before = (first.loaded.public, first.plan)
            after = (other.loaded.public, other.plan)
            differences.append(difference(before, after, sweep=are_files))
            codes.append(compare_targets(first, other))
        runs: list[ComparedRun | None] = []
        for target in targets:
            if target.run is None:
                runs.append(None)
                continue
            run = ComparedRun(target.run)
            run.live.read_all()
            runs.append(run)
        return cls(targets, differences, codes, runs)

    @property
    def has_differences(self) -> bool:
        return any(self.differences) or any(self.codes)

    @property
    def known_runs(self) -> list[ComparedRun]:
        """The runs among the targets."""
        return [run for run in self.runs if run is not None]

    @property
    def run_headings(self) -> list[str]:
        """The letters of the runs among all targets, with the ends of their ids."""
        from hookflow.monitor.compare import RUN_LETTERS

        headings = []
        for letter, run in zip(RUN_LETTERS, self.runs, strict=False):
            if run is not None:
                headings.append(f"{letter} {run.short}")
        return headings


def _comparison_data(comparison: TargetComparison) -> dict[str, Any]:
    first, *others = comparison.targets
    differences = []
    for other, difference, code in zip(
        others, comparison.differences, comparison.codes, strict=True
    ):
        data: dict[str, Any] = {"with": other.name, **asdict(difference)}
        data["code"] = [change.to_json() for change in code.changes]
        data["code_unknown"] = code.unknown
        data["weights"] = code.weights
        differences.append(data)
    return {"first": first.name, "differences": differences, **_run_data(comparison.known_runs)}


def _run_data(runs: Sequence[ComparedRun]) -> dict[str, Any]:
    """Return what runs have beyond their pipelines; lists are in the order of `runs`."""
    from hookflow.monitor.compare import (
        compute_one_time_costs,
        compute_times,
        find_differences,
        results,
    )

    parents = [compared.run.parent() for compared in runs]
    return {
        "runs": [compared.run.id for compared in runs],
        "parents": [parent and parent._asdict() for parent in parents],
        "environment": find_differences([compared.environment for compared in runs]),
        "metrics": results([compared.state for compared in runs]),
        "ns_per_iteration": {row.name: row.ns for row in compute_times(runs)},
        "ns_once": {row.name: row.ns for row in compute_one_time_costs(runs)},
    }


def _print_page(comparison: TargetComparison) -> None:
    from hookflow.report.comparison import render_comparison

    runs = comparison.known_runs
    tables: dict[str, list[Row]] = {}
    if runs:
        tables = run_tables(comparison.run_headings, runs)
    page = render_comparison(
        comparison.targets, comparison.differences, comparison.codes, comparison.runs, tables
    )
    echo(page.removesuffix("\n"))


def _print_comparison(comparison: TargetComparison) -> None:
    from hookflow.service.differences import difference_lines

    first, *others = comparison.targets
    for other, difference, code in zip(
        others, comparison.differences, comparison.codes, strict=True
    ):
        echo("\n".join(difference_lines(first, other, difference, code)))
        if len(others) > 1:
            echo("")
    runs = comparison.known_runs
    if len(runs) > 1:
        _print_forks(runs)
        headings = comparison.run_headings
        for rows in run_tables(headings, runs).values():
            if len(rows) > 1:
                echo("\n" + "\n".join(columns(rows)))
        _print_curves(runs)


def _print_unified(comparison: TargetComparison) -> None:
    from hookflow.service.differences import unified_lines

    first, *others = comparison.targets
    for other, code in zip(others, comparison.codes, strict=True):
        for line in unified_lines(first, other, code):
            echo(line)


def _print_forks(runs: Sequence[ComparedRun]) -> None:
    """Print which runs were forked, and from which."""
    from hookflow.monitor.compare import RUN_LETTERS

    letters = {compared.run.id: letter for letter, compared in zip(RUN_LETTERS, runs, strict=False)}
    for letter, compared in zip(RUN_LETTERS, runs, strict=False):
        parent = compared.run.parent()
        if parent is not None:
            origin = letters.get(parent.run, parent.run)
            echo(
                f"{letter} is a fork of {origin}, from its {parent.checkpoint} (iteration"
                f" {parent.it:,})"
            )


def run_tables(headings: Sequence[str], runs: Sequence[ComparedRun]) -> dict[str, list[Row]]:
    """Return tables of what came of runs, and of their environments, by title.

    The versions of packages come last. The first row has the headings.
    """
    from hookflow.monitor.compare import compute_one_time_costs, compute_times

    changes = [f"Δ to {headings[0][0]}"] * (len(headings) - 1)
    with_changes = with_deltas(headings, changes)
    once = [_time_row(row, "") for row in compute_one_time_costs(runs)[:MAX_TIMES]]
    return {
        "Metrics": [("metric", "", *with_changes), *_metric_rows(runs)],
        "Where the time went": [
            ("ms an iteration", *with_changes, ""),
            *_time_rows(compute_times(runs)),
        ],
        "Before and after the training": [("ms, once", *with_changes, ""), *once],
        "Environment": [("environment", *headings), *_compare_environments(runs)],
    }


def _metric_rows(runs: Sequence[ComparedRun]) -> list[Row]:
    from hookflow.monitor.compare import results

    rows = []
    for name, by_kind in results([compared.state for compared in runs]).items():
        for kind, values in by_kind.items():
            first, *others = values
            cells = [format_cell(value, number) for value in values]
            changes = [_format_change(first, other) for other in others]
            rows.append((name, kind, *with_deltas(cells, changes)))
    return rows


def _format_change(first: float | None, other: float | None) -> str:
    if first is None or other is None:
        return ""
    return format_signed(other - first, number)


def _time_rows(times: Sequence[TimeRow]) -> list[Row]:
    """Return the largest differences, and the whole iteration at the end."""
    from hookflow.monitor.compare import ITERATION_ROW

    parts = [row for row in times if row.name != ITERATION_ROW and abs(row.delta) >= MIN_DIFFERENCE]
    longest = max((abs(row.delta) for row in parts), default=1.0)
    rows = []
    for row in parts[:MAX_TIMES]:
        bar = "━" * round(BAR_WIDTH * abs(row.delta) / longest)
        rows.append(_time_row(row, bar))
    rows += [_time_row(row, "") for row in times if row.name == ITERATION_ROW]
    return rows


def _time_row(row: TimeRow, bar: str) -> Row:
    cells = [format_cell(ns, format_ms) for ns in row.ns]
    changes = [format_signed(delta) for delta in row.deltas]
    return row.name, *with_deltas(cells, changes), f"{bar} {row.change}".strip()


def _compare_environments(runs: Sequence[ComparedRun]) -> list[Row]:
    """Return what differs in the code and the machine, then in packages."""
    from hookflow.monitor.compare import find_differences

    differing = find_differences([compared.environment for compared in runs])
    rows = []
    for key in sorted(differing, key=_is_version):
        values = [format_briefly(value) for value in differing[key]]
        rows.append((key, *values))
    return rows


VERSION_KEYS = ("python", "torch", "hookflow", "cuda")
"""The keys of an environment that are versions, beside those of `packages`."""


def _is_version(key: str) -> bool:
    return key in VERSION_KEYS or key.startswith("packages.")


def _print_curves(runs: Sequence[ComparedRun]) -> None:
    """Print the curves of the first metric and of the loss, in colours on a terminal."""
    from hookflow.monitor.compare import list_metrics, names_of
    from hookflow.monitor.run_curves import draw_run_curves
    from hookflow.service.differences import MAX_LINE_WIDTH

    first_metric = list_metrics([compared.state for compared in runs])[:1]
    known = names_of(runs)
    width = min(shutil.get_terminal_size().columns, MAX_LINE_WIDTH)
    for name in dict.fromkeys([*first_metric, "loss"]):
        if name in known:
            echo(f"\n{name}")
            _print_strips(draw_run_curves(runs, name, width, CURVE_HEIGHT))


def _print_strips(strips: Iterable[Strip]) -> None:
    from rich.console import Console
    from rich.text import Text

    if not sys.stdout.isatty():
        for strip in strips:
            echo(strip.text.rstrip())
        return
    console = Console(no_color="NO_COLOR" in os.environ, highlight=False)
    for strip in strips:
        line = Text()
        for segment in strip:
            style = ""
            if segment.style and segment.style.color:
                style = segment.style.color.name
            line.append(segment.text, style)
        console.print(line)
