"""Runs beside one another: curves over each other, what differs, and where the time of an iteration went."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from textual.strip import Strip

from hookflow.monitor.charts import Axis, Curve, chart
from hookflow.monitor.compare import (
    LETTERS,
    WHOLE,
    Side,
    Spent,
    changed_keys,
    metrics_of,
    names_of,
    plan_difference,
    points_of,
    times,
    unequal,
)
from hookflow.monitor.health import GLYPHS
from hookflow.monitor.panels.compare_graph import loop
from hookflow.monitor.style import CONDITION_STYLES, SIDES, Part, beside, boxed, cells, row, scrolled
from hookflow.monitor.view import Action, Page, Scene
from hookflow.numbers import ms, number, signed
from hookflow.text import fit

CHART = 10
"""Rows of the chart where the page is scrolled."""

SIGNS = 6
"""Letters on a curve."""


def curves(sides: Sequence[Side], name: str, width: int, height: int) -> list[Strip]:
    """Return the curves of a metric or a scalar over one another, on each of them some letters of its run."""
    drawn = []
    for at, side in enumerate(sides):
        points = [(it, value, value, value) for it, value in points_of(side.state, name)]
        shift = (at + 1) / (len(sides) + 1)
        signed = {min(int((k + shift) / SIGNS * len(points)), len(points) - 1) for k in range(SIGNS)}
        drawn.append(Curve(SIDES[at], points, LETTERS[at], signed))
    its = [it for curve in drawn for it, *_ in curve.points] or [0]
    return chart(drawn, Axis.of([min(its), max(its)], max(its), 0), width, height)


def page(scene: Scene, width: int, height: int) -> list[Strip]:
    """Return the page: beside each other where there is room, else one below the other and scrolled."""
    sides, names = scene.compared, names_of(scene.compared)
    if not names or scene.listing:
        return boxed(
            "compare", [row(width - 2, f" {scene.listing or 'nothing has been recorded yet'}")], width, height, True
        )
    if scene.view.runs.graph:
        return loop(scene, width, height)
    name = names[scene.view.runs.metric % len(names)]
    title = f"{name}: {' '.join(LETTERS[: len(sides)])}"
    spent = times(sides)
    if width >= 100 and height >= 26:
        left, low = width * 3 // 5, min(len(spent) + 3, height // 2)
        high = height - low
        drawn = boxed(title, curves(sides, name, left - 2, high - 2), left, high, True, "[ ] next")
        differs = boxed(f"what differs, {_named(sides)}", _differences(sides, width - left - 2), width - left, high)
        rows = beside(drawn, differs)
        return [*rows, *boxed(TIMES, _time_rows(spent, sides, width - 2, low - 3), width, low, hint="by |Δ|")]
    inner = width - 2
    lines = [
        *curves(sides, name, inner, CHART),
        row(inner, (f" what differs, {_named(sides)}", "title")),
        *_differences(sides, inner),
        row(inner),
        row(inner, (f" {TIMES}", "title")),
        *_time_rows(spent, sides, inner, len(spent)),
    ]
    return scrolled(title, lines, width, height, scene.view.scroll)


TIMES = "where the time went, ms an iteration"


def _named(sides: Sequence[Side]) -> str:
    return " → ".join(LETTERS[: len(sides)])


def _differences(sides: Sequence[Side], width: int) -> list[Strip]:
    """Return what differs in results, keys, hooks, order and environment, a row each."""
    states, results = [side.state for side in sides], [plan_difference(sides[0], side) for side in sides[1:]]
    best = ((name, [state.metrics.best.get(name) for state in states]) for name in metrics_of(states))
    tables = {f"best {name}": [each and number(each.value) for each in values] for name, values in best if any(values)}
    tables |= unequal(changed_keys(results)) | unequal([side.environment for side in sides])
    wide = min(max(map(len, tables), default=0), max(width * 2 // 5, 12))
    rows: list[Strip] = []
    for key, values in tables.items():
        parts: list[Part] = [(f" {fit(key, wide)} ", "")]
        for at, value in enumerate(values):
            parts += [(" → ", "dim")] * bool(at) + [(_written(value), SIDES[at])]
        rows.append(row(width, *parts))
    for letter, result in zip(LETTERS[1:], results, strict=False):
        rows += [row(width, (" + ", "good"), f"[hooks.{name}] in {letter}") for name in result.hooks_added]
        rows += [row(width, (" − ", "warn"), f"[hooks.{name}] not in {letter}") for name in result.hooks_removed]
        rows += [row(width, f" order at {turned.point} in {letter}") for turned in result.order]
    return rows or [row(width, (" nothing: one pipeline, one environment", "dim"))]


def _written(value: object) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, list) else "" if value is None else str(value)
    return text or "–"


def _time_rows(spent: Sequence[Spent], sides: Sequence[Side], width: int, room: int) -> list[Strip]:
    """Return the table: what takes time, its ms in each run, the difference, and a bar of that."""
    if not spent:
        return [row(width, (" no iteration has been recorded", "dim"))]
    each_has = len(sides) > 2 and width >= EACH * len(sides) + 40  # a difference of its own
    cells_wide = EACH * len(sides) - 8 if each_has else 8 * len(sides) + 8
    wide = min(max((len(each.name) for each in spent), default=9), max(width - cells_wide - 6, 12))
    heads: list[Part] = [" " * (wide + 3)]
    for at, (letter, style) in enumerate(zip(LETTERS[: len(sides)], SIDES, strict=False)):
        heads += [(f"{letter:>7}", style), " "]
        heads += [(f"{'Δ to A':>7} ", "dim")] * (at > 0 and (each_has or at == len(sides) - 1))
    lines = [row(width, *heads)]
    most = max((abs(each.delta) for each in spent if each.name != WHOLE), default=0.0) or 1.0
    bars = width - wide - cells_wide - 16
    shown = [*spent[: max(room - 1, 0)], *spent[-1:]] if len(spent) > room else spent
    for each in shown:
        whole = each.name == WHOLE
        parts: list[Part] = [f"   {fit(each.name, wide)}" if not whole else (f" {fit(each.name, wide + 2)}", "strong")]
        style = _style(each.delta)
        for at, ns in enumerate(each.ns):
            parts.append(f"{'–' if ns is None else ms(ns):>7} ")
            if at and (each_has or at == len(sides) - 1):
                delta = each.deltas[at - 1] if each_has else each.delta
                parts.append((f"{signed(delta):>7} ", _style(delta)))
        length = 0 if whole or bars < 4 else round(bars * abs(each.delta) / most)
        parts += [(f" {'━' * length}", style), (f" {each.change}", "dim")]
        lines.append(row(width, *parts))
    return lines


EACH = 16
"""Cells of a run's time and its difference."""


def _style(delta: float) -> str:
    return "warn" if delta > 0 else "good" if delta < 0 else "dim"


def head(scene: Scene, width: int) -> list[Strip]:
    """Return a row for the runs: their letters, how they are, and their best value; the first is the baseline."""
    for brief in (False, True):
        parts: list[Part] = [" "]
        for letter, style, side in zip(LETTERS, SIDES, scene.compared, strict=False):
            seen = next((each.values for each in scene.rows if each.id == side.run.id), {})
            status, metric = str(seen.get("status", "")), seen.get("metric")
            best = seen.get(f"best.{metric}")
            glyph = GLYPHS.get(status, "")  # type: ignore[call-overload]
            parts += [(letter, style), " ", (side.run.id[-4:], "strong"), " "]
            parts.append((glyph if brief else f"{glyph} {status}", CONDITION_STYLES.get(status, "warn")))
            parts += [f" {metric} {number(best)}" if isinstance(best, float) and not brief else "", "   "]
        if cells(*parts) <= width:
            break
    return [row(width, *parts), row(width)]


def _turn(step: int, scene: Scene) -> None:
    scene.view.runs.metric = (scene.view.runs.metric + step) % max(len(names_of(scene.compared)), 1)


def _turn_graph(scene: Scene) -> None:
    scene.view.runs.graph, scene.view.scroll = not scene.view.runs.graph, 0


COMPARE = Page(
    "compare",
    page,
    about="curves of runs over each other, what differs, where the time went",
    enter=lambda scene: scene.view.open("runs"),
    above="runs",
    actions=(
        Action("curve-before", "[", "the curves of the metric before, and of the next", partial(_turn, -1)),
        Action("curve-after", "]", "the curves of the metric before, and of the next", partial(_turn, 1)),
        Action("compare-graph", "g", "the loop with the times of each run beside each other; and back", _turn_graph),
    ),
    hints=lambda scene: [("curve-before curve-after", "metric"), ("compare-graph", "graph"), ("up down", "scroll")],
    head=head,
)
