"""Pipelines and runs beside one another as a page of HTML."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hookflow.graph.plan import PlanDifference
from hookflow.monitor.compare import (
    RUN_LETTERS,
    ComparedRun,
    changed_keys,
    find_differences,
    list_metrics,
)
from hookflow.monitor.health import judge
from hookflow.monitor.series import Series, in_order
from hookflow.numbers import format_ms, format_span
from hookflow.report.curves import (
    MAX_CHARTS,
    Curve,
    CurveLine,
    CurveSheet,
    compute_points_per_line,
    group_series_by_name,
    last_iteration,
    sample_points,
)
from hookflow.report.pages import render_page
from hookflow.service.code_comparison import CodeComparison
from hookflow.service.differences import difference_lines, format_value
from hookflow.service.pipelines import Target
from hookflow.service.run_facts import Row, format_date

Tables = Mapping[str, Sequence[Sequence[str]]]
"""Tables of runs by their titles, the headings in the first row."""


@dataclass(frozen=True, slots=True)
class _RunColumn:
    """A run on the page: its letter among all that are compared."""

    letter: str
    compared: ComparedRun

    @property
    def heading(self) -> str:
        return f"{self.letter} {self.compared.short}"


def render_comparison(
    targets: Sequence[Target],
    differences: Sequence[PlanDifference],
    codes: Sequence[CodeComparison],
    runs: Sequence[ComparedRun | None],
    tables: Tables,
) -> str:
    """Return the page.

    `differences` and `codes` are those of all targets but the first. A run is None for a file.
    """
    columns = []
    for letter, compared in zip(RUN_LETTERS, runs, strict=False):
        if compared is not None:
            columns.append(_RunColumn(letter, compared))
    named = [(letter, target.name) for letter, target in zip(RUN_LETTERS, targets, strict=False)]
    headings = [f"{letter} {name}" for letter, name in named]
    values = {
        "title": " · ".join(target.name for target in targets),
        "named": named,
        "runs": _run_rows(columns),
        "keys": _key_rows(differences, headings),
        "differences": _difference_texts(targets, differences),
        "codes": _code_texts(targets, codes),
        "tables": tables,
        "made": format_date(time.time()),
        "command": "hookflow compare",
    }
    return render_page("comparison.html", _make_curve_sheet(columns), values)


def _make_curve_sheet(columns: Sequence[_RunColumn]) -> CurveSheet:
    """Return the charts: each metric and scalar of all runs over one another."""
    lines: dict[tuple[str, str], list[tuple[_RunColumn, Series]]] = {}
    for column in columns:
        for name, by_split in group_series_by_name(column.compared.state).items():
            for split, series in by_split:
                lines.setdefault((name, split), []).append((column, series))
    states = [column.compared.state for column in columns]
    names = in_order(dict.fromkeys(name for name, _ in lines), list_metrics(states))
    ordered = sorted(lines, key=lambda key: (names.index(key[0]), key[1] == "train"))
    shown = ordered[:MAX_CHARTS]
    max_points = compute_points_per_line(sum(len(lines[key]) for key in shown))
    curves = []
    for key in shown:
        of_runs = []
        for column, series in lines[key]:
            points = sample_points(series, max_points)
            of_runs.append(CurveLine(column.letter.lower(), column.heading, points))
        curves.append(Curve(", ".join(key), of_runs))
    left_out = [", ".join(key) for key in ordered[MAX_CHARTS:]]
    lengths = {state.epoch_lengths for state in states}
    per_epoch = 0
    if len(lengths) == 1:
        shared = lengths.pop()
        if not shared.changes:
            per_epoch = shared.at(0)
    return CurveSheet(0, last_iteration(curves), per_epoch, curves, left_out)


def _run_rows(columns: Sequence[_RunColumn]) -> list[Row]:
    """Return how each run is; the first row has the headings."""
    rows: list[Row] = [
        ("", "run", "how it is", "iteration", "time", "ms an iteration", "tags and note")
    ]
    for column in columns:
        run = column.compared.run
        state = column.compared.state
        health = judge(run, state, time.time())
        iterations = state.first.attempt.sums["iters"]
        mean = "-"
        if iterations:
            mean = format_ms(state.iterating / iterations)
        tags, note = run.read_notes()
        remarks = [f"#{tag}" for tag in tags]
        remarks.append(note)
        name = f"{run.path.parent.name} {run.id}"
        condition = f"{health.glyph} {health.condition}"
        elapsed = format_span(state.elapsed)
        rows.append(
            (column.letter, name, condition, f"{state.it:,}", elapsed, mean, " ".join(remarks))
        )
    return rows


def _key_rows(differences: Sequence[PlanDifference], headings: Sequence[str]) -> list[Row]:
    """Return the keys that differ with their values; the first row has the headings."""
    rows: list[Row] = [("key", *headings)]
    if any(difference.keys for difference in differences):
        for key, values in find_differences(changed_keys(differences)).items():
            rows.append((key, *(format_value(value) for value in values)))
    return rows


def _difference_texts(
    targets: Sequence[Target], differences: Sequence[PlanDifference]
) -> list[str]:
    """Return the hooks, edges and orders that differ, as the command prints them."""
    first, *others = targets
    texts = []
    for other, difference in zip(others, differences, strict=True):
        without_keys = replace(difference, keys=())
        if without_keys:
            texts.append("\n".join(difference_lines(first, other, without_keys)))
    return texts


def _code_texts(
    targets: Sequence[Target], codes: Sequence[CodeComparison]
) -> list[tuple[str, str]]:
    """Return the files that differ with their lines, and whose code is not known.

    Each has a heading.
    """
    first, *others = targets
    texts = []
    for other, code in zip(others, codes, strict=True):
        lines = [*code.lines()]
        if lines:
            texts.append((f"Code of {first.name} and {other.name}", "\n".join(lines)))
    return texts
