"""Curves and heat drawn with characters: axes, braille, shades."""

import math
import sys
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Literal, NamedTuple

from textual.strip import Strip

from hookflow.monitor.durations import compute_median_of_means
from hookflow.monitor.style import SPARK_BLOCKS, Part, row
from hookflow.numbers import format_span, number_of_4_digits

Unit = Literal["it", "epoch", "time"]
"""Units of the x-axis: iterations, epochs, or seconds of training."""

# Axes


@dataclass(frozen=True, slots=True)
class Axis:
    """The x-axis, from the first value that it shows to the last.

    Where it is `log` both are above zero.
    """

    first: float
    last: float
    unit: Unit = "it"
    log: bool = False

    @classmethod
    def of(cls, its: Sequence[float], it: float, total: int) -> "Axis":
        """Return the axis for values at iterations `its`.

        The run is at iteration `it` of `total`. The axis ends at the run's iteration, rounded up by
        a tenth at most, so that it holds still for a while. It begins at 0, unless that would leave
        a fifth of it empty.
        """
        step = _round_step(it / 25)
        rounded = math.ceil(it / step) * step
        last = max(min(rounded, max(it, total)), 1)
        begin = min(its, default=0) // step * step
        has_empty_start = begin > last / 5 and len(set(its)) > 1
        return cls(begin if has_empty_start else 0, last)

    def place(self, x: float) -> float:
        """Return 0 to 1 from left to right."""
        if self.last == self.first:
            return x - self.first
        if self.log:
            return math.log(max(x, self.first) / self.first) / math.log(self.last / self.first)
        return (x - self.first) / (self.last - self.first)

    def at(self, place: float) -> float:
        """Return the value at a place from 0 to 1."""
        if self.log:
            return float(self.first * (self.last / self.first) ** place)
        return self.first + (self.last - self.first) * place

    def label(self, x: float) -> str:
        """Return a value with its unit."""
        if self.unit == "it":
            return f"it {x:.0f}"
        if self.unit == "time":
            return format_span(x)
        decimals = 1
        if self.last - self.first < 20:
            decimals = 2
        return f"epoch {x:.{decimals}f}"

    def tick(self, x: float) -> str:
        """Return a round value without its unit."""
        if self.unit == "time":
            return format_span(x)
        return f"{x:.6g}"


def _round_step(least: float) -> int:
    """Return the least of 1, 2, 5, 10, 20 … that is not below `least`."""
    step = 1
    if least > 0.0:
        step = 10 ** max(math.floor(math.log10(least)), 0)
    for digit in (1, 2, 5):
        if step * digit >= least:
            return step * digit
    return step * 10


_MAX_FLOAT = sys.float_info.max
_MIN_FLOAT = sys.float_info.min


@dataclass(frozen=True, slots=True)
class Scale:
    """The y-axis: where values lie on a chart; `log` only when all are above zero."""

    low: float
    high: float
    log: bool

    @classmethod
    def of(cls, values: Sequence[float], log: bool) -> "Scale":
        """Return the scale from the least to the greatest value.

        It has a margin where they are the same.
        """
        low = min(values)
        high = max(values)
        is_above_zero = low >= _MIN_FLOAT
        is_flat = high - low < 1e-12 * max(abs(high), 1e-12)
        if is_flat:
            if is_above_zero:
                margin = low / 10
            else:
                margin = max(-low / 10, 1.0)
            low = max(low - margin, -_MAX_FLOAT)
            high = min(high + margin, _MAX_FLOAT)
        return cls(low, high, log and is_above_zero)

    def place(self, value: float) -> float:
        """Return 0 to 1 from bottom to top."""
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        # Halves are subtracted, since the span itself may overflow.
        return (value / 2 - self.low / 2) / (self.high / 2 - self.low / 2)

    def at(self, place: float) -> float:
        """Return the value at a place from 0 to 1."""
        if self.log:
            return float(self.low ** (1 - place) * self.high**place)
        return self.low * (1 - place) + self.high * place


MIN_FOR_PERCENTILES = 10
"""Values from which on there are outliers among them."""


def without_outliers(values: Sequence[float]) -> list[float]:
    """Return the values from the 1st to the 99th percentile, both values that occur.

    It returns all where there are few.
    """
    if len(values) < MIN_FOR_PERCENTILES:
        return [*values]
    ordered = sorted(values)
    last = len(ordered) - 1
    return ordered[math.ceil(0.01 * last) : math.floor(0.99 * last) + 1]


def format_ticks(values: Sequence[float], width: int) -> list[str]:
    """Return the values of one axis, all with the same number of decimals.

    They have three digits of what tells them apart. There are fewer where `width` characters do not
    hold them; where none tells them apart, or all are below a thousandth, each has four digits.
    """
    if max(map(abs, values)) < 1e-3:
        return [number_of_4_digits(value) for value in values]
    ordered = sorted(set(values))
    steps = [after - before for before, after in pairwise(ordered)]
    if steps:
        most_decimals = max(2 - math.floor(math.log10(min(steps))), 0)
        for decimals in range(most_decimals, -1, -1):
            labels = [f"{value:.{decimals}f}" for value in values]
            if max(map(len, labels)) <= width and len(set(labels)) == len(ordered):
                return labels
    return [number_of_4_digits(value) for value in values]


# Dots: a cell of braille is two of them wide, and four high

_BRAILLE_BITS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))

DotRows = list[list[int]]
"""Rows of cells from the top; each cell is the sum of its dots' bits."""


def _clamp(place: float) -> float:
    return min(max(place, 0.0), 1.0)


def draw(points: Iterable[tuple[float, float]], width: int, height: int) -> DotRows:
    """Return the dots of a line through `points` (x and y from 0 to 1, x rising).

    Where points share a column of dots, the line goes through their mean.
    """
    cells = [[0] * width for _ in range(height)]
    last_column = 2 * width - 1
    last_row = 4 * height - 1
    columns: dict[int, list[float]] = {}
    for x, y in points:
        column = round(_clamp(x) * last_column)
        columns.setdefault(column, []).append(_clamp(y))
    before: tuple[int, float] | None = None
    for column, heights_there in sorted(columns.items()):
        mean = sum(heights_there) / len(heights_there)
        here = (column, (1 - mean) * last_row)
        if before is None:
            _set_dot(cells, column, round(here[1]))
        else:
            _draw_segment(cells, before, here)
        before = here
    return cells


def _set_dot(cells: DotRows, column: int, row_of_dots: int) -> None:
    cells[row_of_dots // 4][column // 2] |= _BRAILLE_BITS[column % 2][row_of_dots % 4]


def _draw_segment(cells: DotRows, start: tuple[int, float], end: tuple[int, float]) -> None:
    """Draw from one column of dots to a later one, each with its row.

    The dot at the start is there already.
    """
    left, top = start
    slope = (end[1] - top) / (end[0] - left)
    previous = round(top)
    for column in range(left + 1, end[0] + 1):
        current = round(top + slope * (column - left))
        if current == previous:
            _set_dot(cells, column, current)
        elif current > previous:
            for dot in range(previous + 1, current + 1):
                _set_dot(cells, column, dot)
        else:
            for dot in range(current, previous):
                _set_dot(cells, column, dot)
        previous = current


def _draw_hatch(band: Iterable[tuple[float, float, float]], width: int, height: int) -> DotRows:
    """Return every second dot between the least and the greatest values."""
    cells = [[0] * width for _ in range(height)]
    last_column = 2 * width - 1
    last_row = 4 * height - 1
    for x, low, high in band:
        column = round(_clamp(x) * last_column)
        bottom = round((1 - _clamp(low)) * last_row)
        top = round((1 - _clamp(high)) * last_row)
        first = top + (top + column) % 2
        for dot in range(first, bottom + 1, 2):
            _set_dot(cells, column, dot)
    return cells


# Curves


class Curve(NamedTuple):
    """A line of a chart: its points are (x, y, least, greatest), x rising in the unit of the axis.

    The band from the least to the greatest is hatched. A y that is not finite breaks the line.
    `sign` marks the points, those at the places in `signed` or as many as do not crowd; without one
    a few points are dots.
    """

    style: str
    points: Sequence[tuple[float, float, float, float]]
    sign: str = ""
    signed: Collection[int] = ()


class Mark(NamedTuple):
    """A sign on the x-axis; the name of its style explains it in the legend."""

    x: float
    sign: str
    style: str


Cells = dict[int, tuple[str, str]]
"""The cells of a row that are not blank: a character, and the name of its style."""


@dataclass(frozen=True, slots=True)
class PlotArea:
    """The cells between the axes, and how values become places in them."""

    axis: Axis
    scale: Scale
    width: int
    height: int

    def column(self, x: float) -> int:
        """Return the cell of a value of the x-axis; what lies beyond an end is at it."""
        return round(_clamp(self.axis.place(x)) * (2 * self.width - 1)) // 2

    def row(self, y: float) -> int:
        """Return the row of a finite value."""
        return round((1 - _clamp(self.scale.place(y))) * (4 * self.height - 1)) // 4


def plot(curves: Sequence[Curve], axis: Axis, scale: Scale, width: int, height: int) -> list[Cells]:
    """Return the curves over one another, the first one on top.

    Values that are not finite are ✗ at the edge.
    """
    area = PlotArea(axis, scale, width, height)
    rows: list[Cells] = [{} for _ in range(height)]
    for curve in reversed(curves):
        _draw_band(rows, curve, area)
    for curve in reversed(curves):
        _draw_line(rows, curve, area)
    for curve in curves:
        _draw_signs(rows, curve, area)
    return rows


def _draw_dots(rows: list[Cells], dots: DotRows, style: str) -> None:
    """Put the dots over what is there."""
    for cells, line in zip(rows, dots, strict=True):
        for x, bits in enumerate(line):
            if bits:
                cells[x] = (chr(0x2800 + bits), style)


def _draw_band(rows: list[Cells], curve: Curve, area: PlotArea) -> None:
    band = []
    for x, _, low, high in curve.points:
        if low < high:
            band.append(
                (
                    area.axis.place(x),
                    _bounded_place(area.scale, low),
                    _bounded_place(area.scale, high),
                )
            )
    if band:
        _draw_dots(rows, _draw_hatch(band, area.width, area.height), "faint")


def _bounded_place(scale: Scale, value: float) -> float:
    """Return the place of a value, which may lie beyond the scale where outliers are left out."""
    return scale.place(min(max(value, scale.low), scale.high))


def _draw_line(rows: list[Cells], curve: Curve, area: PlotArea) -> None:
    """Draw a line through each stretch of finite values."""
    for is_finite, points in groupby(curve.points, lambda point: math.isfinite(point[1])):
        if is_finite:
            places = [(area.axis.place(x), _bounded_place(area.scale, y)) for x, y, *_ in points]
            _draw_dots(rows, draw(places, area.width, area.height), curve.style)


def _draw_signs(rows: list[Cells], curve: Curve, area: PlotArea) -> None:
    """Mark points.

    Those are marked that are not finite or are `signed`, and otherwise as many as do not crowd.
    """
    has_few_points = len(curve.points) <= area.width // 8
    sign = curve.sign or "•"
    gap = 1
    if curve.sign:
        gap = 3
    free_from = 0
    for place, (x, y, *_) in enumerate(curve.points):
        column = area.column(x)
        if not math.isfinite(y):
            if y == math.inf:
                edge = 0
            else:
                edge = -1
            rows[edge][column] = ("✗", "error")
            continue
        if curve.signed:
            is_marked = place in curve.signed
        else:
            is_marked = column >= free_from and (curve.sign != "" or has_few_points)
        if is_marked:
            rows[area.row(y)][column] = (sign, curve.style)
            free_from = column + gap


# Charts

LABEL_WIDTH = 7
"""Cells for the numbers at the left of a chart; more where a number takes more."""

ROWS_BETWEEN_TICKS = 3
"""Rows without a number between two of the y-axis, at least."""


def render_chart(
    curves: Sequence[Curve],
    axis: Axis,
    width: int,
    height: int,
    *,
    log: bool = False,
    outliers: bool = True,
    marks: Sequence[Mark] = (),
    cursor: float | None = None,
) -> list[Strip]:
    """Return curves over one another with both axes, and the marks on the x-axis.

    They are `height` rows of `width` cells. The scale is logarithmic on demand, where all values
    are above zero; without `outliers` it covers the 1st to the 99th percentile of the means. At
    `cursor` there is a vertical line.
    """
    num_rows = max(height - 2, 1)
    scale = _scale_of(curves, log, outliers)
    labels = _y_labels(scale, num_rows)
    label_width = max([LABEL_WIDTH, *map(len, labels.values())])
    room = max(width - label_width - 2, 1)
    rows: list[Cells] = [{} for _ in range(num_rows)]
    if scale is not None:
        rows = plot(curves, axis, scale, room, num_rows)
    below: Cells = dict.fromkeys(range(room), ("─", "rest"))
    below |= place_marks(axis, marks, room)
    if cursor is not None and 0 <= axis.place(cursor) <= 1:
        column = round(axis.place(cursor) * (room - 1))
        rows = [{column: ("│", "dim")} | cells for cells in rows]
        below[column] = ("┴", "focus")
    strips = []
    for y, cells in enumerate(rows):
        label = labels.get(y, "")
        strips.append(row(width, (f"{label:>{label_width}} ", "dim"), *make_parts(cells)))
    indent = " " * (label_width + 1)
    strips.append(row(width, indent, *make_parts(below)))
    strips.append(row(width, indent, (x_labels(axis, room), "dim")))
    return strips[len(strips) - max(height, 0) :]


def _scale_of(curves: Sequence[Curve], log: bool, outliers: bool) -> Scale | None:
    """Return the scale of all that is finite; None where nothing is."""
    values = []
    for curve in curves:
        for _, mean, low, high in curve.points:
            seen = (mean, low, high) if outliers else (mean,)
            values += [value for value in seen if math.isfinite(value)]
    if not values:
        return None
    if not outliers:
        values = without_outliers(values)
    return Scale.of(values, log)


def _y_labels(scale: Scale | None, num_rows: int) -> dict[int, str]:
    """Return the numbers of the y-axis by their rows.

    They are at both ends, and at even distances between them.
    """
    if scale is None:
        return {}
    last = num_rows - 1
    parts = 1
    for count in (2, 3, 4):
        if last // count > ROWS_BETWEEN_TICKS or count == 2:
            parts = count
    rows = sorted({last * part // parts for part in range(parts + 1)})
    values = [scale.at(1 - y / max(last, 1)) for y in rows]
    return dict(zip(rows, format_ticks(values, LABEL_WIDTH), strict=True))


TIME_STEPS = (
    1,
    2,
    5,
    10,
    15,
    30,
    60,
    120,
    300,
    600,
    900,
    1800,
    3600,
    7200,
    10800,
    21600,
    43200,
    86400,
)
"""Round lengths of time in seconds."""

CELLS_BETWEEN_TICKS = 10
"""Cells from one number of the x-axis to the next, at least."""


def x_labels(axis: Axis, width: int) -> str:
    """Return the numbers below an x-axis.

    These are its ends with their unit, and as many round values as do not crowd.
    """
    left = axis.label(axis.first)
    right = axis.label(axis.last)
    if len(left) + len(right) + 1 > width:
        return left[:width]
    line = left
    last_start = width - len(right)
    for value in _round_values(axis, max(width // CELLS_BETWEEN_TICKS, 1)):
        text = axis.tick(value)
        start = round(axis.place(value) * (width - 1)) - len(text) // 2
        has_room = start >= len(line) + 3 and start + len(text) + 3 <= last_start
        if has_room:
            line = f"{line:<{start}}{text}"
    return f"{line:<{last_start}}{right}"


def _round_values(axis: Axis, count: int) -> list[float]:
    """Return round values of an axis, about so many."""
    length = axis.last - axis.first
    if length <= 0:
        return []
    if axis.log:
        lowest = math.ceil(math.log10(axis.first))
        highest = math.floor(math.log10(axis.last))
        return [10.0**power for power in range(lowest, highest + 1)]
    least = length / count
    if axis.unit == "time":
        at = bisect_left(TIME_STEPS, least)
        step: float = TIME_STEPS[at] if at < len(TIME_STEPS) else _round_step(least / 86400) * 86400
    else:
        step = _round_step(least)
    first = math.ceil(axis.first / step)
    last = math.floor(axis.last / step)
    return [step * place for place in range(first, last + 1)]


def render_legend(marks: Iterable[Mark]) -> str:
    """Return what the marks mean, each sign once."""
    words = [f"{mark.sign} {mark.style}" for mark in marks]
    return "  ".join(dict.fromkeys(words))


TROUBLE_SIGNS = "▲✗"
"""Marks of which none is left out."""


def place_marks(axis: Axis, marks: Iterable[Mark], width: int) -> Cells:
    """Return the marks by their cells, later ones over earlier ones.

    The signs of troubles are all there. Every second of other marks that would touch their like is
    left out.
    """
    columns_of: dict[tuple[str, str], set[int]] = {}
    for mark in marks:
        place = axis.place(mark.x)
        if 0 <= place <= 1:
            columns = columns_of.setdefault((mark.sign, mark.style), set())
            columns.add(round(place * (width - 1)))
    cells: Cells = {}
    for (sign, style), columns in columns_of.items():
        kept = sorted(columns)
        if sign not in TROUBLE_SIGNS:
            kept = _thin_columns(kept)
        for column in kept:
            cells[column] = (sign, style)
    return cells


def _thin_columns(columns: list[int]) -> list[int]:
    """Return the columns without every second, as often as some are less than three cells apart.

    The last one stays.
    """
    while any(after - before < 3 for before, after in pairwise(columns)):
        columns = columns[::-2][::-1]
    return columns


def make_parts(cells: Mapping[int, tuple[str, str]]) -> list[Part]:
    """Return a row of cells as few pieces of text."""
    parts: list[Part] = []
    text = ""
    style = ""
    end = 0
    for x, (sign, sign_style) in sorted(cells.items()):
        gap = " " * (x - end)
        if sign_style == style:
            text += gap + sign
        else:
            if text:
                parts.append((text, style))
            text = gap + sign
            style = sign_style
        end = x + 1
    if text:
        parts.append((text, style))
    return parts


# Rows of bars and shades


def render_bars(means: Sequence[float | None]) -> str:
    """Return the means as a row of bars, of which three eighths are as usual."""
    eighths = 3 / (compute_median_of_means(means) or 1.0)
    bars = SPARK_BLOCKS[0] + SPARK_BLOCKS
    row_of_bars = ""
    for mean in means:
        row_of_bars += " " if mean is None else bars[min(round(mean * eighths), 8)]
    return row_of_bars


HEAT_SHADES = (
    ("░", "heat1"),
    ("▒", "heat1"),
    ("▒", "heat2"),
    ("▓", "heat2"),
    ("▓", "heat3"),
    ("█", "heat4"),
)


def render_heat(values: Sequence[float | None], scale: Scale) -> list[Part]:
    """Return values as one row of shades; None is blank, and what is not finite ✗."""
    cells: Cells = {}
    for x, value in enumerate(values):
        if value is None:
            continue
        if math.isfinite(value):
            shade = int(_clamp(scale.place(value)) * len(HEAT_SHADES))
            cells[x] = HEAT_SHADES[min(shade, len(HEAT_SHADES) - 1)]
        else:
            cells[x] = ("✗", "error")
    return make_parts(cells)
