"""Scalars and metrics over the iterations: the training as a line, validations and checkpoints as marks."""

from __future__ import annotations

import math
from functools import partial
from itertools import pairwise
from statistics import fmean

from textual.strip import Strip

from hookflow.monitor.charts import Iterations, Scale, draw, ticks
from hookflow.monitor.series import Series
from hookflow.monitor.state import RunState
from hookflow.monitor.style import SPARKS, Part, beside, boxed, cells, row, spread
from hookflow.monitor.view import Page, Scene, base, charts, flip
from hookflow.numbers import number
from hookflow.text import fit

Point = tuple[int, float]
"""An iteration and a value."""

LABEL = 7
"""Cells for the numbers at the left of a chart."""


def metrics(scene: Scene, width: int, height: int) -> list[Strip]:
    """Return a box with one chart, or with several beside each other where there is room."""
    names = charts(scene.state)
    inner, focused = width - 2, scene.view.focus == 3
    hint = f"[ ] next of {len(names)}  l {'linear' if scene.view.log else 'log'}" if len(names) > 1 else ""
    if not names or height < 7 or inner < 2 * LABEL:
        lines = [row(inner, (" no scalars yet" if not names else "", "dim")), *strips(scene, inner, height - 2)]
        return boxed("[3] metrics", lines[bool(names) :], width, height, focused, hint)
    count = max(min(inner // 34, len(names), 4), 1)
    first = scene.view.metric % len(names)
    shown = [names[(first + place) % len(names)] for place in range(count)]
    widths = [inner // count] * (count - 1) + [inner - (count - 1) * (inner // count)]
    blocks = [chart(scene, name, wide, height - 2) for name, wide in zip(shown, widths, strict=True)]
    return boxed("[3] metrics", beside(*blocks), width, height, focused, hint)


def strips(scene: Scene, width: int, height: int) -> list[Strip]:
    """Return the last values, as many as fit on one row, for screens without room for a chart."""
    parts: list[Part] = []
    left = width
    for place, name in enumerate(charts(scene.state)):
        series, marks, last = _data(scene.state, name)
        words: list[Part] = [(f" {name}", "dim")]
        if not place:
            words.append((f" {_curve(_line(series) or marks, width // 4, scene.view.log)}", "train"))
        words += [(f" {number(last)}", "train" if math.isfinite(last) else "error")] if last is not None else []
        words += [(" val", "dim"), (f" {number(marks[-1][1])}", "val")] if marks else []
        words.append("  ")
        left -= cells(*words)
        if left < 0:
            break
        parts += words
    return [row(width, *parts)][:height]


def _curve(points: list[Point], width: int, log: bool) -> str:
    """Return the curve of the whole run on one row: a character for the mean of each stretch."""
    values = [value for _, value in points if math.isfinite(value)]
    width = min(width, len(values))
    means = [fmean(values[at * len(values) // width : (at + 1) * len(values) // width]) for at in range(width)]
    scale = Scale.of(means, log) if means else None
    return "".join(SPARKS[round(scale.place(mean) * 7)] for mean in means) if scale else ""


def chart(scene: Scene, name: str, width: int, height: int) -> list[Strip]:
    """Return a chart of exactly this size: heading, lines, the axis with the checkpoints, iterations."""
    series, marks, last = _data(scene.state, name)
    line = _line(series)
    lines = [(it, value) for it, value in line + marks if math.isfinite(value)]
    span = Iterations.of([it for it, _ in lines], scene.state.it, scene.state.total_iters)
    room, rows = width - LABEL - 2, height - 3
    body: list[list[Part]] = [[] for _ in range(rows)]
    labels: dict[int, str] = {}
    if lines:
        scale = Scale.of([value for _, value in lines], scene.view.log)
        body = _plot(line, marks, scale, span, room, rows)
        ticked = (0, rows // 2, rows - 1)
        labels = dict(zip(ticked, ticks([scale.at(1 - y / max(rows - 1, 1)) for y in ticked], LABEL), strict=True))
    plotted = [row(width, (f"{labels.get(y, ''):>{LABEL}} ", "dim"), *parts) for y, parts in enumerate(body)]
    heading: list[Part] = [" ", (fit(name, min(len(name), 16)), "strong"), (" log" if scene.view.log else "", "dim")]
    for words, with_best in ((True, True), (True, False), (False, False)):
        values: list[Part] = []
        if last is not None:
            style = "" if math.isfinite(last) else "error"
            values += [("⠤⠤", "train"), (" train" * words, "dim"), (f" {number(last)} ", style)]
        if marks:
            values += [(" ◇", "val"), (" val" * words, "dim"), f" {number(marks[-1][1])} "]
            if with_best and (best := scene.state.metrics.best.get(name)):
                values.append((f" best {number(best.value)} ", "dim"))
        if cells(*heading, *values) + 2 <= width:
            break
    return [spread(width, heading, values), *plotted, *_axis(scene, span, width, room)]


def _data(state: RunState, name: str) -> tuple[list[Series], list[Point], float | None]:
    """Return the training's values, the validations' values, and the training's newest, which may not be finite."""
    series = [series for scalar, series in state.scalars.items() if base(scalar) == name]
    return series, state.metrics.by_name.get(name, []), series[-1].last if series else None


def _line(series: list[Series]) -> list[Point]:
    return sorted(point for values in series for point in values)


def _plot(
    line: list[Point], marks: list[Point], scale: Scale, span: Iterations, width: int, height: int
) -> list[list[Part]]:
    """Return rows of styled cells: validations over the training's line, whose values are marked while they are few."""
    drawn = [(span.place(it), scale.place(value)) for it, value in line]
    real = [(span.place(it), scale.place(value)) for it, value in marks if math.isfinite(value)]
    train, val = draw(drawn, width, height), draw(real, width, height)
    spots = {_cell(point, width, height): ("•", "train") for point in drawn if len(drawn) <= width // 8}
    free = 0
    for point in real:  # of those that would crowd each other, the first is marked
        at = _cell(point, width, height)
        if at[1] >= free:
            spots[at], free = ("◇", "val"), at[1] + 3
    rows: list[list[Part]] = []
    for y in range(height):
        parts: list[tuple[str, str]] = []
        for x in range(width):
            dots, style = (train[y][x], "train") if train[y][x] else (val[y][x], "val")
            sign, style = spots.get((y, x), (chr(0x2800 + dots) if dots else " ", style))
            before, inked = parts.pop() if parts else ("", style)
            same = inked == style or sign == " "  # a row is few segments, and not one a cell
            parts += [(before + sign, inked)] if same else [(before, inked), (sign, style)]
        rows.append([*parts])
    return rows


def _cell(point: tuple[float, float], width: int, height: int) -> tuple[int, int]:
    return round((1 - point[1]) * (height - 1)), round(point[0] * (width - 1))


def _axis(scene: Scene, span: Iterations, width: int, room: int) -> list[Strip]:
    places = (span.place(saved["it"]) for saved in scene.state.checkpoints)
    saved = sorted({round(place * (room - 1)) for place in places if 0 <= place <= 1})
    while any(after - before < 3 for before, after in pairwise(saved)):  # they touch: every second one, from the newest
        saved = saved[::-2][::-1]
    axis: list[Part] = [("◆", "checkpoint") if x in saved else ("─", "rest") for x in range(room)]
    left, right = f"{'':>{LABEL}} {span.first}", f"it {span.last}"
    middle = "◆ checkpoint" if saved and room >= 32 else ""
    gap = max(width - 1 - len(left) - len(right) - len(middle), 0)
    line = f"{left}{' ' * (gap // 2)}{middle}{' ' * (gap - gap // 2)}{right}"
    return [row(width, f"{'':>{LABEL}} ", *axis), row(width, (line, "dim"))]


METRICS = Page("metrics", metrics, move=lambda scene, step: None, enter=partial(flip, "zoomed"))
