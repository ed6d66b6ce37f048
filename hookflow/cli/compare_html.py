"""Pipelines and runs beside each other as one page of HTML, with the parts of the report of a run."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hookflow.cli.report import CHARTS, FEWEST, MOST, POINTS, lines_of, points
from hookflow.cli.report_html import curves, escaped, page, pre, table
from hookflow.cli.show import at_time
from hookflow.graph.plan import Difference
from hookflow.monitor.compare import LETTERS, Side, changed_keys, metrics_of, unequal
from hookflow.monitor.health import judge
from hookflow.monitor.series import Series, in_order
from hookflow.numbers import ms, span
from hookflow.service.pipelines import Target, difference_lines, written

Tables = Mapping[str, Sequence[Sequence[str]]]
"""Tables of runs by their titles, the headings in the first row."""


@dataclass(frozen=True, slots=True)
class Column:
    """A run on the page: its letter among all that are compared, and its log."""

    letter: str
    side: Side

    @property
    def head(self) -> str:
        return f"{self.letter} {self.side.short}"


def as_html(
    opened: Sequence[Target], results: Sequence[Difference], sides: Sequence[Side | None], of_runs: Tables
) -> str:
    """Draw the page: `results` are the differences of all but the first, `sides` the runs, None for a file."""
    runs = [Column(letter, side) for letter, side in zip(LETTERS, sides, strict=False) if side]
    report = _report(runs)
    named = [f"{letter} {target.name}" for letter, target in zip(LETTERS, opened, strict=False)]
    title = " · ".join(target.name for target in opened)
    names = "".join(f'<p class="{name[0].lower()}"><b>{escaped(name)}</b></p>' for name in named)
    sections = {
        "Runs": table(_runs(runs), right=(3, 4, 5)),
        "Curves": curves(report),
        "What differs": _differences(opened, results, named),
    }
    for title, rows in of_runs.items():
        sections[title] = table(rows, right=() if title == "Environment" else range(1, 3 * len(runs)))
    return page(title, f"<h1>Compared</h1>{names}", sections, report)


def _report(runs: Sequence[Column]) -> dict[str, Any]:
    """Return what the charts need: each metric and scalar of all runs over one another."""
    states = [column.side.state for column in runs]
    lines: dict[tuple[str, str], list[tuple[Column, Series]]] = {}
    for column in runs:
        for name, parts in lines_of(column.side.state).items():
            for split, series in parts:
                lines.setdefault((name, split), []).append((column, series))
    names = in_order(dict.fromkeys(name for name, _ in lines), dict.fromkeys(metrics_of(states)))
    order = sorted(lines, key=lambda key: (names.index(key[0]), key[1] == "train"))
    shown, left_out = order[:CHARTS], order[CHARTS:]
    most = min(max(POINTS // (sum(len(lines[key]) for key in shown) or 1), FEWEST), MOST)
    drawn: list[dict[str, Any]] = []
    last = 1.0
    for key in shown:
        over = [(column, points(series, most)) for column, series in lines[key]]
        last = max([last, *(line[-1][0] for _, line in over if line)])
        named = [{"style": each.letter.lower(), "label": each.head, "points": line} for each, line in over]
        drawn.append({"name": ", ".join(key), "lines": named, "best": None})
    lengths = {state.run.get("iters_per_epoch", 0) for state in states}
    return {
        "x": [0, last],
        "per_epoch": lengths.pop() if len(lengths) == 1 else 0,
        "curves": drawn,
        "left_out": [*map(", ".join, left_out)],
        "marks": [],
        "made": at_time(time.time()),
        "command": "hookflow compare",
    }


def _runs(runs: Sequence[Column]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("", "run", "how it is", "iteration", "time", "ms an iteration", "tags and note")]
    for column in runs:
        run, state = column.side.run, column.side.state
        health, (tags, note) = judge(run, state, time.time()), run.noted()
        count = state.first.attempt.sums["iters"]
        each = ms(state.iterating / count) if count else "-"
        remarks = " ".join([*(f"#{tag}" for tag in tags), note])
        name = f"{run.path.parent.name} {run.id}"
        how = f"{health.glyph} {health.condition}"
        rows.append((column.letter, name, how, f"{state.it:,}", span(state.elapsed), each, remarks))
    return rows


def _differences(opened: Sequence[Target], results: Sequence[Difference], named: Sequence[str]) -> str:
    """Return the keys as a table, and the hooks, edges and orders as the command prints them."""
    parts = []
    if any(result.keys for result in results):
        keys = unequal(changed_keys(results))
        rows = [(key, *map(written, values)) for key, values in keys.items()]
        parts.append(f"<h3>Keys</h3>{table([('key', *named), *rows])}")
    for other, result in zip(opened[1:], results, strict=True):
        if rest := replace(result, keys=()):
            parts.append(f"<h3>Hooks and their order</h3>{pre(chr(10).join(difference_lines(opened[0], other, rest)))}")
    return "".join(parts)
