"""Runs beside one another: curves over each other, what differs, and where the time of an iteration went."""

from collections.abc import Sequence
from functools import partial

from textual.strip import Strip

from hookflow.graph.plan import Binding
from hookflow.graph.render.loop import Row, rows
from hookflow.monitor.charts import Axis, Curve, chart, heights
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
from hookflow.monitor.costs import cost
from hookflow.monitor.durations import ITERATION
from hookflow.monitor.health import Pace
from hookflow.monitor.panels.graph import Column, Table
from hookflow.monitor.style import CONDITION_STYLES, SIDES, Part, beside, boxed, cells, empty, row, scrolled
from hookflow.monitor.view import Action, Page, Scene
from hookflow.numbers import aligned, factor, ms, number, signed
from hookflow.text import GLYPHS, fit_name

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
        return empty("compare", scene.listing or "nothing has been recorded yet", width, height)
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
    bests = {f"best {name}": [each and number(each.value) for each in values] for name, values in best if any(values)}
    tables = {name: values for name, values in bests.items() if len({*values}) > 1}
    tables |= unequal(changed_keys(results)) | unequal([side.environment for side in sides])
    wide = min(max(map(len, tables), default=0), max(width * 2 // 5, 12))
    rows: list[Strip] = []
    for key, values in tables.items():
        parts: list[Part] = [(f" {fit_name(key, wide)} ", "")]
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
    bars = width - wide - cells_wide - 5 - max(len(each.change) for each in spent)
    shown = [*spent[: max(room - 1, 0)], *spent[-1:]] if len(spent) > room else spent
    for each in shown:
        whole = each.name == WHOLE
        name = fit_name(each.name, wide + 2 * whole)
        parts: list[Part] = [(f" {name}", "strong") if whole else f"   {name}"]
        style = _style(each.delta)
        for at, ns in enumerate(each.ns):
            parts.append(f"{'–' if ns is None else ms(ns):>7} ")
            if at and (each_has or at == len(sides) - 1):
                delta = each.deltas[at - 1] if each_has else each.delta
                known = not each_has or (ns, each.ns[0]) != (None, None)
                parts.append((f"{signed(delta) if known else '–':>7} ", _style(delta)))
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
            glyph = GLYPHS.get(status, "")
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

CHANGED = 1.5
"""How many times as long, or as short, a row takes in the last run that is worth a colour."""


def loop(scene: Scene, width: int, height: int) -> list[Strip]:
    """Return the rows of the first run's plan, and the medians of all runs."""
    sides, inner = scene.compared, width - 2
    shown = rows(sides[0].plan, lanes=width // 24 if width >= 76 else 0)
    table = Table(shown, inner, lambda each: each.name)
    columns = [Column(f"{letter}   ", 8, partial(_p50, side)) for letter, side in zip(LETTERS, sides, strict=False)]
    columns = columns[-max((table.room - 4) // 9, 1) :]
    columns.append(Column(f"{LETTERS[len(sides) - 1]} vs A", 7, partial(_change, sides[0], sides[-1])))
    room = (table.room - sum(each.width + 1 for each in columns)) // len(sides) - 2
    last = max(side.state.it for side in sides) + 1
    first = min(scene.view.scroll, max(len(shown) - (height - 3), 0))
    over = "".join(f"{f'{letter} over the run':<{room + 2}}" for letter in LETTERS[: len(sides)])
    body = [table.head(columns, over * (room >= LEAST))]
    for each in shown[first : first + height - 3]:
        pasts = [_past(side, each, last, room) for side in sides] if room >= LEAST else []
        parts: list[Part] = [part for past, style in zip(pasts, SIDES, strict=False) for part in ((past, style), "  ")]
        body.append(table.line(each, " ", columns, parts, ""))
    below = len(shown) - first - (height - 3)
    hint = f"↓ {below} more   medians of the last attempts" if below > 0 else "medians of the last attempts"
    return boxed("the graph: " + " ".join(LETTERS[: len(sides)]), body, width, height, True, hint)


def _ns(side: Side, each: Row) -> float | None:
    binding = each.binding and _there(side, each.binding)
    if each.binding and not binding:
        return None
    here = Row(each.kind, each.name, each.within, binding)
    return cost(side.state, side.plan, Pace.of(side.state), here, whole=True).ns


def _there(side: Side, binding: Binding) -> Binding | None:
    """Return what is in a run what a binding is in the first."""
    names = (binding.hook, binding.method, binding.half)
    return next((each for each in side.plan.at(binding.point) if (each.hook, each.method, each.half) == names), None)


LEAST = 14
"""The cells that the history of a row has at least, where there is room for it."""


def _past(side: Side, each: Row, last: int, room: int) -> str:
    """Return the history of a row in a run, on an axis to the end of the longest."""
    binding = each.binding and _there(side, each.binding)
    if (each.binding and not binding) or (each.kind == "round" and each.name != ITERATION):
        return " " * room
    return heights(side.state.histories.of(binding or each.name).means(last, room))


def _p50(side: Side, each: Row) -> Part:
    ns = _ns(side, each)
    return aligned(ns) if ns is not None else ("–" if each.binding else "", "faint")


def _change(first: Side, last: Side, each: Row) -> Part:
    before, after = _ns(first, each), _ns(last, each)
    if not before or not after:
        return ""
    times = after / before
    style = "warn" if times >= CHANGED else "good" if times <= 1 / CHANGED else "dim"
    return (factor(times), style)
