"""Scalars and metrics over the iterations: the training as a line, validations and checkpoints as marks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import pairwise

from rich.cells import cell_len
from textual.strip import Strip

from hookflow.monitor.charts import Iterations, Scale, draw, text, ticks
from hookflow.monitor.state import RunState
from hookflow.monitor.style import Part, beside, boxed, row, spread
from hookflow.monitor.view import Scene, base, charts
from hookflow.numbers import number
from hookflow.text import fit

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
    parts: list[tuple[str, str]] = []
    left = width
    for name in charts(scene.state):
        _, marks = _data(scene.state, name)
        lines = [(f" {name}", "dim")]
        lines += [(f" {number(last)}", "train")] if (last := _last(scene.state, name)) is not None else []
        lines += [(" val", "dim"), (f" {number(marks[-1][1])}", "val")] if marks else []
        lines += [("  ", "")]
        left -= sum(cell_len(text) for text, _ in lines)
        if left < 0:
            break
        parts += lines
    return [row(width, *parts)][:height]


def chart(scene: Scene, name: str, width: int, height: int) -> list[Strip]:
    """Return a chart of exactly this size: heading, lines, the axis with the checkpoints, iterations."""
    line, marks = _data(scene.state, name)
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
    return [_heading(scene, name, width), *plotted, *_axis(scene, span, width, room)]


def _heading(scene: Scene, name: str, width: int) -> Strip:
    """Return the name and the newest values; with words and the best value where there is room."""
    left = [(" ", ""), (fit(name, min(len(name), 16)), "strong"), (" log" if scene.view.log else "", "dim")]
    for words, best in ((True, True), (True, False), (False, False)):
        right = _values(scene, name, words, best)
        if sum(cell_len(text) for text, _ in left + right) + 2 <= width:
            break
    return spread(width, left, right)


def _values(scene: Scene, name: str, words: bool, with_best: bool) -> list[tuple[str, str]]:
    _, marks = _data(scene.state, name)
    parts: list[tuple[str, str]] = []
    if (last := _last(scene.state, name)) is not None:
        style = "" if math.isfinite(last) else "error"
        parts += [("⠤⠤", "train"), (" train" * words, "dim"), (f" {number(last)} ", style)]
    if marks:
        parts += [(" ◇", "val"), (" val" * words, "dim"), (f" {number(marks[-1][1])} ", "")]
        if with_best and (best := scene.state.metrics.best.get(name)):
            parts.append((f" best {number(best.value)} ", "dim"))
    return parts


def _data(state: RunState, name: str) -> tuple[list[tuple[int, float]], list[tuple[int, float]]]:
    """Return the training's values and the validations' values."""
    line = [point for scalar, series in state.scalars.items() if base(scalar) == name for point in series]
    return sorted(line), state.metrics.by_name.get(name, [])


def _last(state: RunState, name: str) -> float | None:
    """Return the training's newest value, which may not be finite; None when there is none."""
    newest = [series.last for scalar, series in state.scalars.items() if base(scalar) == name]
    return newest[-1] if newest else None


def _plot(
    line: list[tuple[int, float]],
    marks: list[tuple[int, float]],
    scale: Scale,
    span: Iterations,
    width: int,
    height: int,
) -> list[list[Part]]:
    """Return rows of styled cells: validations over the training's line, whose values are marked while they are few."""
    drawn = [(span.place(it), scale.place(value)) for it, value in line]
    real = [(span.place(it), scale.place(value)) for it, value in marks if math.isfinite(value)]
    train, val = draw(drawn, width, height), draw(real, width, height)
    dots = _cells(drawn, width, height) if len(drawn) <= width // 8 else set()
    signs = _cells(_uncrowded(real, width), width, height)
    rows: list[list[Part]] = []
    for y in range(height):
        parts: list[Part] = []
        for x in range(width):
            if (y, x) in signs:
                parts.append(("◇", "val"))
            elif (y, x) in dots:
                parts.append(("•", "train"))
            elif train[y][x]:
                parts.append((text([train[y][x]]), "train"))
            else:
                parts.append((text([val[y][x]]), "val"))
        rows.append(_merged(parts))
    return rows


def _cells(points: Iterable[tuple[float, float]], width: int, height: int) -> set[tuple[int, int]]:
    """Return the cells that points lie in, row and column."""
    return {(round((1 - y) * (height - 1)), round(x * (width - 1))) for x, y in points}


def _uncrowded(points: Iterable[tuple[float, float]], width: int) -> Iterator[tuple[float, float]]:
    """Yield the points to mark; of those that would crowd each other only the first."""
    free = 0
    for x, y in points:
        column = round(x * (width - 1))
        if column >= free:
            yield x, y
            free = column + 3


def _merged(parts: list[Part]) -> list[Part]:
    """Join neighbours of one style, so that a row is a few segments and not one a cell."""
    merged: list[tuple[str, str]] = []
    for part in parts:
        content, style = (part, "") if isinstance(part, str) else part
        if merged and (merged[-1][1] == style or content == " "):
            merged[-1] = (merged[-1][0] + content, merged[-1][1])
        else:
            merged.append((content, style))
    return list(merged)


def _apart(columns: set[int]) -> set[int]:
    """Return columns of which none is beside another: when they crowd, every second one, or fourth, … of them."""
    kept = sorted(columns)
    while any(after - before < 3 for before, after in pairwise(kept)):
        kept = kept[::-2][::-1]  # the newest stays
    return set(kept)


def _axis(scene: Scene, span: Iterations, width: int, room: int) -> list[Strip]:
    """Return the axis with a mark for each checkpoint, and the iterations it spans."""
    places = (span.place(saved.it) for saved in scene.state.checkpoints)
    saved = _apart({round(place * (room - 1)) for place in places if 0 <= place <= 1})
    axis: list[Part] = [("◆", "checkpoint") if x in saved else ("─", "rest") for x in range(room)]
    left = f"{'':>{LABEL}} {span.first}"
    right = f"it {span.last}"
    middle = "◆ checkpoint" if saved and room >= 32 else ""
    gap = max(width - 1 - len(left) - len(right) - len(middle), 0)
    parts: list[Part] = [
        (left, "dim"),
        (" " * (gap // 2), ""),
        (middle, "dim"),
        (" " * (gap - gap // 2) + right, "dim"),
    ]
    return [row(width, (f"{'':>{LABEL}} ", ""), *axis), row(width, *parts)]
