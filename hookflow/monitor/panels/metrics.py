"""Scalars and metrics over the iterations: the training as a line, validations and checkpoints as marks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from rich.cells import cell_len
from textual.strip import Strip

from hookflow.monitor.braille import draw, text
from hookflow.monitor.paint import Part, beside, boxed, fit, row, spread
from hookflow.monitor.state import RunState
from hookflow.monitor.view import Scene, base, charts
from hookflow.monitor.words import many, number

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
        told = [(f" {name}", "dim")]
        told += [(f" {number(last)}", "train")] if (last := _last(scene.state, name)) is not None else []
        told += [(f" ◇{number(marks[-1][1])}", "val")] if marks else []
        told += [("  ", "")]
        left -= sum(cell_len(text) for text, _ in told)
        if left < 0:
            break
        parts += told
    return [row(width, *parts)][:height]


@dataclass(frozen=True, slots=True)
class Scale:
    """Where values lie on a chart; `log` only when all are above zero."""

    low: float
    high: float
    log: bool

    @classmethod
    def of(cls, values: list[float], log: bool) -> Scale:
        low, high = min(values), max(values)
        log = log and low > 0
        if high - low < 1e-12 * max(abs(high), 1e-12):
            low, high = (low * 0.9, high * 1.1) if low > 0 else (low - 1.0, high + 1.0)
        return cls(low, high, log)

    def place(self, value: float) -> float:
        """Return 0 to 1 from bottom to top."""
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def at(self, place: float) -> float:
        """Return the value at a place."""
        if self.log:
            return float(self.low * (self.high / self.low) ** place)
        return self.low + place * (self.high - self.low)


def chart(scene: Scene, name: str, width: int, height: int) -> list[Strip]:
    """Return a chart of exactly this size: heading, lines, the axis with the checkpoints, iterations."""
    line, marks = _data(scene.state, name)
    end = _extent(scene.state.it, scene.state.total_iters)
    values = [value for _, value in line + marks if math.isfinite(value)]
    room, rows = width - LABEL - 2, height - 3
    body: list[list[Part]] = [[] for _ in range(rows)]
    labels: dict[int, str] = {}
    if values:
        scale = Scale.of(values, scene.view.log)
        body = _plot(line, marks, scale, end, room, rows)
        labels = {y: number(scale.at(1 - y / max(rows - 1, 1))) for y in (0, rows // 2, rows - 1)}
    plotted = [row(width, (f"{labels.get(y, ''):>{LABEL}} ", "dim"), *parts) for y, parts in enumerate(body)]
    return [_heading(scene, name, width), *plotted, *_axis(scene, end, width, room)]


def _extent(it: int, total: int) -> int:
    """Return where the axis ends: at the end of the run, or at a half, a quarter, … of it while that is far off.

    So the line grows to the right, and what is drawn moves only when it has filled the axis.
    """
    end = max(total, 1)
    while end < it:
        end *= 2
    while end >= 2 * it and end >= 128:
        end = (end + 1) // 2
    return end


def _heading(scene: Scene, name: str, width: int) -> Strip:
    _, marks = _data(scene.state, name)
    left: list[Part] = [" ", (fit(name, min(len(name), 16)), "strong"), (" log" if scene.view.log else "", "dim")]
    right: list[Part] = []
    if (last := _last(scene.state, name)) is not None:
        right += [("⠤⠤", "train"), (f" {number(last)} ", "" if math.isfinite(last) else "error")]
    if marks:
        right += [(" ◇", "val"), (f" {number(marks[-1][1])} ", "")]
        if (best := scene.state.best.get(name)) and width >= 40:
            right += [(f" best {number(best.value)} ", "dim")]
    return spread(width, left, right)


def _data(state: RunState, name: str) -> tuple[list[tuple[int, float]], list[tuple[int, float]]]:
    """Return the training's values and the validations' values."""
    line = [point for scalar, series in state.scalars.items() if base(scalar) == name for point in series]
    return sorted(line), state.metrics.get(name, [])


def _last(state: RunState, name: str) -> float | None:
    """Return the training's newest value, which may not be finite; None when there is none."""
    newest = [series.last for scalar, series in state.scalars.items() if base(scalar) == name]
    return newest[-1] if newest else None


def _plot(
    line: list[tuple[int, float]], marks: list[tuple[int, float]], scale: Scale, end: int, width: int, height: int
) -> list[list[Part]]:
    """Return rows of styled cells: validations over the training's line."""
    train = draw([(it / end, scale.place(value)) for it, value in line], width, height)
    real = [(it / end, scale.place(value)) for it, value in marks if math.isfinite(value)]
    val = draw(real, width, height)
    signs = _signs(real, width, height)
    rows: list[list[Part]] = []
    for y in range(height):
        parts: list[Part] = []
        for x in range(width):
            if (y, x) in signs:
                parts.append(("◇", "val"))
            elif train[y][x]:
                parts.append((text([train[y][x]]), "train"))
            else:
                parts.append((text([val[y][x]]), "val"))
        rows.append(_merged(parts))
    return rows


def _signs(points: list[tuple[float, float]], width: int, height: int) -> set[tuple[int, int]]:
    """Return the cells to mark, row and column; of marks that would crowd each other only the first."""
    signs: set[tuple[int, int]] = set()
    free = 0
    for x, y in points:
        column = round(x * (width - 1))
        if column >= free:
            signs.add((round((1 - y) * (height - 1)), column))
            free = column + 3
    return signs


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


def _axis(scene: Scene, end: int, width: int, room: int) -> list[Strip]:
    """Return the axis with a mark for each checkpoint, and the iterations it spans."""
    saved = _apart({round(it / end * (room - 1)) for it, _, _ in scene.state.checkpoints if it <= end})
    axis: list[Part] = [("◆", "checkpoint") if x in saved else ("─", "rest") for x in range(room)]
    left = f"{'':>{LABEL}} 0"
    right = f"it {many(end)}"
    middle = "◆ checkpoint" if saved and room >= 32 else ""
    gap = room - 1 - len(right) - len(middle)
    parts: list[Part] = [
        (left, "dim"),
        (" " * (gap // 2), ""),
        (middle, "dim"),
        (" " * (gap - gap // 2) + right, "dim"),
    ]
    return [row(width, (f"{'':>{LABEL}} ", ""), *axis), row(width, *parts)]
