"""Pipelines and runs beside each other as one page of HTML, with the parts of the report of a run."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hookflow.cli.output import brief, with_deltas
from hookflow.cli.report import CHARTS, FEWEST, MOST, POINTS, lines_of, points
from hookflow.cli.report_html import curves, escaped, page, pre, scrolled, table
from hookflow.cli.show import at_time
from hookflow.graph.plan import Difference
from hookflow.monitor.compare import LETTERS, WHOLE, Side, changed_keys, metrics_of, results, times, unequal
from hookflow.monitor.health import judge
from hookflow.monitor.series import Series, in_order
from hookflow.numbers import ms, number, signed, span
from hookflow.service.pipelines import Target, difference_lines, written


@dataclass(frozen=True, slots=True)
class Column:
    """A run on the page: its letter among all that are compared, and its log."""

    letter: str
    side: Side

    @property
    def head(self) -> str:
        return f"{self.letter} {self.side.short}"


def as_html(opened: Sequence[Target], results: Sequence[Difference], sides: Sequence[Side | None]) -> str:
    """Draw the page: `results` are the differences of all but the first, `sides` the runs, None for a file."""
    runs = [Column(letter, side) for letter, side in zip(LETTERS, sides, strict=False) if side]
    report = _report(runs)
    named = [f"{letter} {target.name}" for letter, target in zip(LETTERS, opened, strict=False)]
    title = " · ".join(target.name for target in opened)
    names = "".join(f'<p class="{name[0].lower()}"><b>{escaped(name)}</b></p>' for name in named)
    sections = {
        "Runs": table(_runs(runs), right=(3, 4, 5)),
        "Curves": curves(report),
        "What differs": _differences(opened, results, runs, named),
        "Metrics": table([*_metrics(runs)], right=range(2, 3 * len(runs))) if runs else "",
        "Where the time went": _times(runs),
    }
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


def _differences(
    opened: Sequence[Target], results: Sequence[Difference], runs: Sequence[Column], named: Sequence[str]
) -> str:
    """Return the keys and the environment as tables, and the hooks, edges and orders as the command prints them."""
    parts = []
    if any(result.keys for result in results):
        keys = unequal(changed_keys(results))
        rows = [(key, *map(written, values)) for key, values in keys.items()]
        parts.append(f"<h3>Keys</h3>{table([('key', *named), *rows])}")
    if environment := unequal([column.side.environment for column in runs]):
        rows = [(key, *map(brief, values)) for key, values in environment.items()]
        parts.append(f"<h3>Environment</h3>{table([('', *(column.head for column in runs)), *rows])}")
    for other, result in zip(opened[1:], results, strict=True):
        if rest := replace(result, keys=()):
            parts.append(f"<h3>Hooks and their order</h3>{pre(chr(10).join(difference_lines(opened[0], other, rest)))}")
    return "".join(parts)


def _metrics(runs: Sequence[Column]) -> Iterator[tuple[str, ...]]:
    """Yield the last and the best value of each metric, and the difference of those from the first run."""
    yield "metric", "", *_heads(runs)
    for name, both in results([column.side.state for column in runs]).items():
        for kind, values in both.items():
            if any(value is not None for value in values):
                first, *others = values
                deltas = ["" if first is None or value is None else signed(value - first, number) for value in others]
                cells = ["-" if value is None else number(value) for value in values]
                yield name, kind, *with_deltas(cells, deltas)


def _heads(runs: Sequence[Column]) -> tuple[str, ...]:
    return with_deltas([column.head for column in runs], [f"Δ to {runs[0].letter}"] * (len(runs) - 1))


def _times(runs: Sequence[Column]) -> str:
    """Return what an iteration of each run is made of, with bars of the largest difference."""
    rows = times([column.side for column in runs]) if runs else []
    if not rows:
        return ""
    most = max((abs(row.delta) for row in rows if row.name != WHOLE), default=0.0) or 1.0
    head = "".join(f'<th scope="col" class="right">{escaped(cell)}</th>' for cell in _heads(runs))
    body = []
    for row in rows:
        spent = ["-" if ns is None else ms(ns) for ns in row.ns]
        cells = with_deltas(spent, [*map(signed, row.deltas)])
        shown = "".join(f'<td class="right">{escaped(cell)}</td>' for cell in cells)
        width = 0.0 if row.name == WHOLE else 100 * abs(row.delta) / most
        style = "slower" if row.delta > 0 else "quicker"
        bar = f'<span class="bar"><i class="{style}" style="width:{width:.1f}%"></i></span>{escaped(row.change)}'
        body.append(f'<tr><th scope="row">{escaped(row.name)}</th>{shown}<td>{bar}</td></tr>')
    note = "Over the last attempt of each run. Hooks that fire elsewhere are shared out over the iterations."
    table_of_times = scrolled(f'<th scope="col">ms an iteration</th>{head}<th></th>', body)
    return f'<p class="dim">{note}</p>{table_of_times}'
