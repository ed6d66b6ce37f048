"""Scalars and metrics over the iterations: the training as a line, validations and checkpoints as marks."""

from __future__ import annotations

import math
from functools import partial

from textual.strip import Strip

from hookflow.monitor.charts import LABEL, Axis, Curve, Mark, Scale, chart, draw
from hookflow.monitor.series import Progress, Series
from hookflow.monitor.state import RunState
from hookflow.monitor.style import Part, beside, boxed, cells, row, spread
from hookflow.monitor.view import Page, Scene, base, charts, flip
from hookflow.numbers import number
from hookflow.text import fit

Lines = list[tuple[str, Series]]
"""The series of one name, by style: "train" for the values of the training, "val" for those of validations."""

SIGNS = {"train": "⠤⠤", "val": "◇"}


def gathered(state: RunState) -> dict[str, Lines]:
    """Return what can be drawn, by name."""
    result: dict[str, Lines] = {}
    for scalar, series in state.scalars.items():
        result.setdefault(base(scalar), []).append(("train", series))
    for name, series in state.metrics.series.items():
        result.setdefault(name, []).append(("val", series))
    return result


def ends(*known: Series) -> list[int]:
    """Return the iterations of the first and the last values."""
    return [it for series in known for it in (*series.its[:1], *series.its[-1:])]


def edges(axis: Axis, progress: Progress, columns: int) -> list[float]:
    """Return the iterations between which the columns of a chart lie."""
    bounds = [progress.it(axis.first + (axis.last - axis.first) * k / columns) for k in range(columns + 1)]
    return [bounds[0] - 1, *bounds[1:]]  # a stretch is what comes after its first edge


def curves(lines: Lines, axis: Axis, progress: Progress, columns: int, smooth: float = 0.0) -> list[Curve]:
    """Return the lines in so many columns, with the extremes of each; those of the training are smoothed."""
    bounds, result = edges(axis, progress, columns), []
    for style, series in lines:
        seen = series.stretches(bounds)
        drawn = series.smoothed(smooth).stretches(bounds) if smooth and style == "train" else seen
        pairs = [(each, line) for each, line in zip(seen, drawn, strict=True) if each and line]
        points = [(progress.at(each.it), line.mean, each.low, each.high) for each, line in pairs]
        result.append(Curve(style, points, "◇" * (style == "val")))
    return result


def marks(state: RunState, progress: Progress) -> list[Mark]:
    """Return the checkpoints and the troubles of the training."""
    signs = [Mark(progress.at(saved["it"]), "◆", "checkpoint") for saved in state.checkpoints]
    troubles = [entry for entry in state.journal if entry.trouble and entry.it]
    troubles.sort(key=lambda entry: entry.kind, reverse=True)
    return signs + [Mark(progress.at(entry.it or 0), entry.glyph, entry.kind) for entry in troubles]


def values(lines: Lines, at: float = math.inf, *, words: bool = True, extremes: bool = False) -> list[Part]:
    """Return the newest values up to an iteration."""
    parts: list[Part] = []
    for style, series in lines:
        if newest := series.at(at):
            value = series.last if at == math.inf else newest.mean
            parts += [(f"  {SIGNS[style]}", style), (f" {style}" * words, "dim")]
            parts.append((f" {number(value)}", "strong" if math.isfinite(value) else "error"))
            if extremes:
                parts.append((f" {number(newest.low)}…{number(newest.high)}" * (newest.low < newest.high), "dim"))
                parts.append((f" @ {newest.it}", "dim"))
    return parts


def metrics(scene: Scene, width: int, height: int) -> list[Strip]:
    """Return a box with one chart, or with several beside each other where there is room."""
    names = charts(scene.state)
    inner, focused = width - 2, scene.focus == 3
    hint = f"[ ] next of {len(names)}  l {'linear' if scene.view.log else 'log'}" if len(names) > 1 else ""
    if not names or height < 7 or inner < 2 * LABEL:
        lines = [row(inner, (" no scalars yet" if not names else "", "dim")), *strips(scene, inner, height - 2)]
        return boxed("[3] metrics", lines[bool(names) :], width, height, focused, hint)
    count = max(min(inner // 34, len(names), 4), 1)
    first = scene.view.metric % len(names)
    shown = [names[(first + place) % len(names)] for place in range(count)]
    widths = [inner // count] * (count - 1) + [inner - (count - 1) * (inner // count)]
    known = gathered(scene.state)
    blocks = [_chart(scene, name, known[name], wide, height - 2) for name, wide in zip(shown, widths, strict=True)]
    return boxed("[3] metrics", beside(*blocks), width, height, focused, hint)


def strips(scene: Scene, width: int, height: int) -> list[Strip]:
    """Return the last values, as many as fit on one row, for screens without room for a chart."""
    parts: list[Part] = []
    left, known = width, gathered(scene.state)
    for place, name in enumerate(charts(scene.state)):
        curve = sparkline(known[name][0][1], width // 4, scene.view.log) if not place else ""
        words: list[Part] = [(f" {name}", "dim"), (f" {curve}" * bool(curve), "train")]
        for style, series in known[name]:
            words.append((" val" * (style == "val"), "dim"))
            words.append((f" {number(series.last)}", style if math.isfinite(series.last) else "error"))
        words.append("  ")
        left -= cells(*words)
        if left < 0:
            break
        parts += words
    return [row(width, *parts)][:height]


def sparkline(series: Series, width: int, log: bool = False) -> str:
    """Return the means of the whole run as a line on one row."""
    if not series.its or width < 1:
        return ""
    first, last = series.its[0], series.its[-1]
    bounds = [first - 1 + (last - first + 1) * k / (2 * width) for k in range(2 * width + 1)]
    means = [(k, each.mean) for k, each in enumerate(series.stretches(bounds)) if each and math.isfinite(each.mean)]
    scale = Scale.of([mean for _, mean in means] or [0.0], log)
    (line,) = draw([(k / (2 * width - 1), scale.place(mean)) for k, mean in means], width, 1)
    return "".join(chr(0x2800 + dots) if dots else " " for dots in line)


def _chart(scene: Scene, name: str, lines: Lines, width: int, height: int) -> list[Strip]:
    """Return a chart of exactly this size, with the newest values in its heading."""
    axis = Axis.of(ends(*(series for _, series in lines)), scene.state.it, scene.state.total_iters)
    drawn = curves(lines, axis, Progress(), max(2 * (width - LABEL - 2), 1))
    heading: list[Part] = [" ", (fit(name, min(len(name), 16)), "strong"), (" log" if scene.view.log else "", "dim")]
    newest = values(lines)
    newest = newest if cells(*heading, *newest) + 2 <= width else values(lines, words=False)
    signs = marks(scene.state, Progress())
    return [
        spread(width, heading, [*newest, " "]),
        *chart(drawn, axis, width, height - 1, log=scene.view.log, marks=signs),
    ]


METRICS = Page("metrics", metrics, move=None, enter=partial(flip, "zoomed"))
