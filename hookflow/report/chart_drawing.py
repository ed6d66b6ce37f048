"""Charts as paths of SVG, 1,000 units wide and 100 high; the template of the page draws them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from hookflow.monitor.charts import Axis, Scale
from hookflow.numbers import number
from hookflow.report.curves import Curve, CurveLine, CurveMark, CurveSheet, Point

MAX_DOTTED_POINTS = 40
"""Points of a line that are marked, if there are no more."""

VERTICAL_MARGIN = 0.04
"""The share of the height that is free above the curves, and below them."""

NUM_TICKS, NUM_GRID_LINES, NUM_LOG_GRID_LINES = 7, 5, 6
"""Labels below a chart, and beside it in a linear and a logarithmic scale, at most."""

MARK_CLASSES = {"◆": "checkpoint", "▲": "warning", "✗": "error", "↻": "resumed"}
"""The classes of marks by their signs; the words explain the signs, too."""


@dataclass(frozen=True, slots=True)
class PlacedLabel:
    """A text at a place in percent: from the top, or from the left."""

    place: str
    text: str
    style: str = ""
    title: str = ""


@dataclass(frozen=True, slots=True)
class DrawnPath:
    """A path with its classes."""

    style: str
    path: str


@dataclass(frozen=True, slots=True)
class ScaleDrawing:
    """The lines of a chart in one scale; `kind` is linear or log."""

    kind: str
    labels: Sequence[PlacedLabel]
    paths: Sequence[DrawnPath]


@dataclass(frozen=True, slots=True)
class LineKey:
    """The legend above a chart for a line: its label, and its newest value."""

    style: str
    label: str
    value: str


@dataclass(frozen=True, slots=True)
class ChartDrawing:
    """A chart: without `scales` it cannot be drawn; with two of them, the second is logarithmic."""

    name: str
    keys: Sequence[LineKey]
    best: str
    scales: Sequence[ScaleDrawing]
    marks: Sequence[PlacedLabel]
    ticks: Sequence[PlacedLabel]


def draw_charts(sheet: CurveSheet) -> list[ChartDrawing]:
    """Return the drawing of each chart."""
    axis = Axis(sheet.first, sheet.last)
    marks = [_place_mark(mark, axis) for mark in sheet.marks]
    ticks = []
    for it in round_values(axis.first, axis.last, NUM_TICKS):
        ticks.append(PlacedLabel(_format_percent(axis.place(it)), f"{it:,.0f}"))
    charts = []
    for curve in sheet.curves:
        keys = [_line_key(line) for line in curve.lines]
        scales = [_draw_scale(curve, scale, axis) for scale in _make_scales(curve)]
        charts.append(ChartDrawing(curve.name, keys, _best_text(curve), scales, marks, ticks))
    return charts


def _format_percent(share: float) -> str:
    return f"{100 * share:.2f}%"


def _place_mark(mark: CurveMark, axis: Axis) -> PlacedLabel:
    style = MARK_CLASSES[mark.sign]
    return PlacedLabel(
        _format_percent(axis.place(mark.it)), mark.sign, style, f"{mark.it:,}: {mark.text}"
    )


def _line_key(line: CurveLine) -> LineKey:
    value = "none"
    if line.points:
        value = number(line.points[-1][1])
    return LineKey(line.style, line.label, value)


def _best_text(curve: Curve) -> str:
    """Return where the best value is, with its number first; empty where there is none."""
    if curve.best is None:
        return ""
    it, value = curve.best
    return f"{number(value)} at {it:,}"


def _make_scales(curve: Curve) -> list[Scale]:
    """Return the linear scale, and the logarithmic one of values above 0.

    There are none where the curve cannot be drawn.
    """
    finite = []
    for line in curve.lines:
        for _, *values in line.points:
            finite += [value for value in values if math.isfinite(value)]
    if not finite or not math.isfinite(2 * max(finite) - 2 * min(finite)):
        return []
    scales = [_with_margin(Scale.of(finite, False))]
    log_scale = Scale.of(finite, True)
    if log_scale.log:
        scales.append(_with_margin(log_scale))
    return scales


def _with_margin(scale: Scale) -> Scale:
    return Scale(scale.at(-VERTICAL_MARGIN), scale.at(1 + VERTICAL_MARGIN), scale.log)


@dataclass(frozen=True, slots=True)
class _ChartCanvas:
    """Where values lie on a drawing."""

    axis: Axis
    scale: Scale

    def at(self, it: float, value: float) -> str:
        """Return the coordinates of a value."""
        x = 1000 * self.axis.place(it)
        y = 100 - 100 * self.scale.place(value)
        return f"{x:.4g} {y:.4g}"

    def grid(self, values: Sequence[float]) -> str:
        """Return a line across the drawing at each value."""
        return "".join(f"M{self.at(self.axis.first, value)}H1000" for value in values)

    def band(self, points: Sequence[Point]) -> str:
        """Return the area between the least and the greatest values."""
        upper = [self.at(it, values[-1]) for it, *values in points]
        lower = [self.at(it, values[min(1, len(values) - 1)]) for it, *values in points]
        outline = "L".join(upper + lower[::-1])
        return f"M{outline}Z"

    def line(self, points: Sequence[Point]) -> str:
        """Return the line through the means."""
        means = "L".join(self.at(point[0], point[1]) for point in points)
        return f"M{means}h0"

    def dots(self, points: Sequence[Point]) -> str:
        """Return a dot at each mean."""
        return "".join(f"M{self.at(point[0], point[1])}h0" for point in points)


def _draw_scale(curve: Curve, scale: Scale, axis: Axis) -> ScaleDrawing:
    canvas = _ChartCanvas(axis, scale)
    values = round_values(scale.low, scale.high, NUM_GRID_LINES)
    if scale.log:
        values = log_values(scale.low, scale.high)
    labels = [
        PlacedLabel(_format_percent(1 - scale.place(value)), f"{value:.6g}") for value in values
    ]
    paths = [DrawnPath("grid", canvas.grid(values))]
    for line in reversed(curve.lines):
        paths += _draw_line(line, canvas)
    if curve.best is not None:
        it, best = curve.best
        paths.append(DrawnPath("dots best", canvas.dots([[it, best]])))
    return ScaleDrawing("log" if scale.log else "linear", labels, paths)


def _draw_line(line: CurveLine, canvas: _ChartCanvas) -> list[DrawnPath]:
    """Return the band, the line and the dots, each in the stretches where values are finite."""
    stretches = []
    for is_finite, part in groupby(line.points, lambda point: math.isfinite(point[1])):
        if is_finite:
            stretches.append([*part])
    paths = [
        DrawnPath(f"band {line.style}", "".join(canvas.band(part) for part in stretches)),
        DrawnPath(f"line {line.style}", "".join(canvas.line(part) for part in stretches)),
    ]
    if len(line.points) <= MAX_DOTTED_POINTS:
        paths.append(
            DrawnPath(f"dots {line.style}", "".join(canvas.dots(part) for part in stretches))
        )
    return paths


def round_values(low: float, high: float, count: int) -> list[float]:
    """Return at most so many round values from `low` to `high`."""
    extent = high - low
    decade = 10.0 ** math.floor(math.log10(extent / count))
    step = 10 * decade
    for digit in (5, 2, 1):
        if extent / (digit * decade) < count:
            step = digit * decade
    first = math.ceil(low / step)
    last = math.floor(high / step)
    return [step * k for k in range(first, last + 1)]


def log_values(low: float, high: float) -> list[float]:
    """Return a few round values from `low` to `high`, evenly apart by their logarithms."""
    values = _list_decade_values(low, high, (1, 2, 5))
    if len(values) > NUM_LOG_GRID_LINES:
        values = _list_decade_values(low, high, (1,))
    if len(values) > NUM_LOG_GRID_LINES:
        values = values[:: math.ceil(len(values) / NUM_GRID_LINES)]
    return values


def _list_decade_values(low: float, high: float, digits: Sequence[int]) -> list[float]:
    values = []
    for decade in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1):
        for digit in digits:
            value = digit * 10.0**decade
            if low <= value <= high:
                values.append(value)
    return values
