"""Curves, heat and pictures drawn with characters: axes, braille, shades, half blocks."""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from rich.color import Color
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from hookflow.events.reading import read_regular
from hookflow.monitor.durations import usual
from hookflow.monitor.style import SPARKS, Part, ground_colour, row
from hookflow.numbers import number, span
from hookflow.png import decode_png

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


Unit = Literal["it", "epoch", "time"]
"""Units of the x-axis: iterations, epochs, or seconds of training."""


@dataclass(frozen=True, slots=True)
class Axis:
    """The x-axis, from the first value that it shows to the last."""

    first: float
    last: float
    unit: Unit = "it"

    @classmethod
    def of(cls, its: Sequence[float], it: float, total: int) -> Axis:
        """Return the axis for values at iterations `its`, of a run that is at iteration `it` of `total`.

        It ends at the run's iteration, rounded up by a tenth at most, so that it holds still for a while. It begins at
        0, unless that would leave a fifth of it empty.
        """
        unit = 10 ** max(math.floor(math.log10(it / 25)), 0) if it else 1
        step = next(unit * digit for digit in (1, 2, 5, 10) if unit * digit >= it / 25)
        last = max(min(math.ceil(it / step) * step, max(it, total)), 1)
        begin = min(its, default=0) // step * step
        return cls(begin if begin > last / 5 and len(set(its)) > 1 else 0, last)

    def place(self, x: float) -> float:
        """Return 0 to 1 from left to right."""
        return (x - self.first) / ((self.last - self.first) or 1)

    def label(self, x: float) -> str:
        if self.unit == "it":
            return f"it {x:.0f}"
        return span(x) if self.unit == "time" else f"epoch {x:.{2 if self.last - self.first < 20 else 1}f}"


_MAX = sys.float_info.max


@dataclass(frozen=True, slots=True)
class Scale:
    """The y-axis: where values lie on a chart; `log` only when all are above zero."""

    low: float
    high: float
    log: bool

    @classmethod
    def of(cls, values: Sequence[float], log: bool) -> Scale:
        low, high = min(values), max(values)
        log = log and low >= sys.float_info.min
        if high - low < 1e-12 * max(abs(high), 1e-12):
            margin = low / 10 if low >= sys.float_info.min else max(-low / 10, 1.0)
            low, high = max(low - margin, -_MAX), min(high + margin, _MAX)
        return cls(low, high, log)

    def place(self, value: float) -> float:
        """Return 0 to 1 from bottom to top."""
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value / 2 - self.low / 2) / (self.high / 2 - self.low / 2)  # the span itself may overflow

    def at(self, place: float) -> float:
        if self.log:
            return float(self.low ** (1 - place) * self.high**place)
        return self.low * (1 - place) + self.high * place


def ticks(values: Sequence[float], width: int) -> list[str]:
    """Return the values of one axis, all with the same number of decimals: three digits of what tells them apart.

    There are fewer where `width` characters do not hold them; where none tells them apart, each is a `number`.
    """
    ordered = sorted(set(values))
    step = min((after - before for before, after in pairwise(ordered)), default=math.inf)
    for decimals in range(max(2 - math.floor(math.log10(step)), 0) if step < math.inf else -1, -1, -1):
        written = [f"{value:.{decimals}f}" for value in values]
        if max(map(len, written)) <= width and len(set(written)) == len(ordered):
            return written
    return [number(value) for value in values]


_BITS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))


def draw(points: Iterable[tuple[float, float]], width: int, height: int) -> list[list[int]]:
    """Return the dots of a line through `points` (x and y from 0 to 1, x rising), as rows of cells from the top."""
    cells = [[0] * width for _ in range(height)]
    across, down = 2 * width - 1, 4 * height - 1
    columns: dict[int, list[float]] = {}
    for x, y in points:
        columns.setdefault(round(min(max(x, 0.0), 1.0) * across), []).append(min(max(y, 0.0), 1.0))
    before: tuple[int, float] | None = None
    for column, heights in sorted(columns.items()):
        y = (1 - sum(heights) / len(heights)) * down  # the mean of the points that share a column
        left, above = before or (column, y)
        slope = (y - above) / (column - left) if column > left else 0.0
        for x in range(left if before is None else left + 1, column + 1):
            start, stop = round(above + slope * (x - 1 - left)), round(above + slope * (x - left))
            step = 1 if stop >= start else -1
            for dot in range(start if start == stop else start + step, stop + step, step):
                cells[dot // 4][x // 2] |= _BITS[x % 2][dot % 4]
        before = (column, y)
    return cells


class Curve(NamedTuple):
    """A line of a chart: its points are (x, y, least, greatest), x rising in the unit of the axis.

    The band from the least to the greatest is hatched. A y that is not finite breaks the line. `sign` marks the
    points, those at the places in `signed` or as many as do not crowd; without one a few points are dots.
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


def plot(curves: Sequence[Curve], axis: Axis, scale: Scale, width: int, height: int) -> list[Cells]:
    """Return the curves over one another, the first one on top; values that are not finite are ✗ at the edge."""
    rows: list[Cells] = [{} for _ in range(height)]

    def ink(dots: list[list[int]], style: str) -> None:
        for y, line in enumerate(dots):
            rows[y].update((x, (chr(0x2800 + bits), style)) for x, bits in enumerate(line) if bits)

    for curve in curves[::-1]:
        band = [(axis.place(x), scale.place(low), scale.place(high)) for x, _, low, high in curve.points if low < high]
        ink(_hatch(band, width, height), "faint")
    for curve in curves[::-1]:
        for finite, points in groupby(curve.points, lambda point: math.isfinite(point[1])):
            if finite:
                ink(draw([(axis.place(x), scale.place(y)) for x, y, *_ in points], width, height), curve.style)
    for curve in curves:
        free, few = 0, len(curve.points) <= width // 8
        for place, (x, y, *_) in enumerate(curve.points):
            column = round(min(max(axis.place(x), 0.0), 1.0) * (2 * width - 1)) // 2
            if not math.isfinite(y):
                rows[0 if y == math.inf else -1][column] = ("✗", "error")
            elif place in curve.signed if curve.signed else column >= free and (curve.sign or few):
                rows[round((1 - scale.place(y)) * (4 * height - 1)) // 4][column] = (curve.sign or "•", curve.style)
                free = column + (3 if curve.sign else 1)
    return rows


def _hatch(band: Iterable[tuple[float, float, float]], width: int, height: int) -> list[list[int]]:
    """Return every second dot between the least and the greatest values, as rows of cells from the top."""
    cells = [[0] * width for _ in range(height)]
    for x, *bounds in band:
        column = round(min(max(x, 0.0), 1.0) * (2 * width - 1))
        bottom, top = (round((1 - min(max(y, 0.0), 1.0)) * (4 * height - 1)) for y in bounds)
        for dot in range(top + (top + column) % 2, bottom + 1, 2):
            cells[dot // 4][column // 2] |= _BITS[column % 2][dot % 4]
    return cells


LABEL = 7
"""Cells for the numbers at the left of a chart."""


def chart(
    curves: Sequence[Curve],
    axis: Axis,
    width: int,
    height: int,
    *,
    log: bool = False,
    marks: Sequence[Mark] = (),
    cursor: float | None = None,
) -> list[Strip]:
    """Return curves over one another with both axes, and the marks on the x-axis: `height` rows of `width` cells.

    The scale is logarithmic on demand, where all values are above zero. At `cursor` there is a vertical line.
    """
    room, rows = max(width - LABEL - 2, 1), max(height - 2, 1)
    marks = [mark for mark in marks if 0 <= axis.place(mark.x) <= 1]
    cells: list[Cells] = [{} for _ in range(rows)]
    labels: dict[int, str] = {}
    if values := [y for curve in curves for _, *ys in curve.points for y in ys if math.isfinite(y)]:
        scale = Scale.of(values, log)
        cells = plot(curves, axis, scale, room, rows)
        ticked = (0, rows // 2, rows - 1)
        labels = dict(zip(ticked, ticks([scale.at(1 - y / max(rows - 1, 1)) for y in ticked], LABEL), strict=True))
    below: Cells = dict.fromkeys(range(room), ("─", "rest")) | marks_on(axis, marks, room)
    if cursor is not None and 0 <= axis.place(cursor) <= 1:
        at = round(axis.place(cursor) * (room - 1))
        cells = [{at: ("│", "dim")} | line for line in cells]
        below[at] = ("┴", "focus")
    indent = f"{'':>{LABEL}} "
    left, right = indent + axis.label(axis.first), axis.label(axis.last)
    legend = "  ".join(dict.fromkeys(f"{sign} {style}" for _, sign, style in marks))
    legend = legend if len(left + right + legend) + 4 < width else ""
    gap = max(width - 1 - len(left + right + legend), 0)
    bounds = f"{left}{' ' * (gap // 2)}{legend}{' ' * (gap - gap // 2)}{right}"
    plotted = [row(width, (f"{labels.get(y, ''):>{LABEL}} ", "dim"), *parts_of(line)) for y, line in enumerate(cells)]
    return [*plotted, row(width, indent, *parts_of(below)), row(width, (bounds, "dim"))][-max(height, 0) :]


def marks_on(axis: Axis, marks: Iterable[Mark], width: int) -> Cells:
    """Return the marks by their cells, later ones over earlier ones; the signs of troubles are all there.

    Of others that would touch their like, every second is left out.
    """
    result: Cells = {}
    placed = [(round(axis.place(x) * (width - 1)), sign) for x, *sign in marks if 0 <= axis.place(x) <= 1]
    for sign, style in dict.fromkeys((sign, style) for _, (sign, style) in placed):
        columns = sorted({column for column, each in placed if each == [sign, style]})
        while sign not in "▲✗" and any(after - before < 3 for before, after in pairwise(columns)):
            columns = columns[::-2][::-1]
        result |= dict.fromkeys(columns, (sign, style))
    return result


def parts_of(cells: Cells) -> list[Part]:
    """Return a row of cells as few pieces of text."""
    parts: list[tuple[str, str]] = []
    end = 0
    for x, (sign, style) in sorted(cells.items()):
        before = parts.pop()[0] if parts and parts[-1][1] == style else ""
        parts.append((before + " " * (x - end) + sign, style))
        end = x + 1
    return [*parts]


def heights(means: Sequence[float | None]) -> str:
    """Return the means as a row of bars, of which three eighths are as usual."""
    scale, bars = 3 / (usual(means) or 1.0), SPARKS[0] + SPARKS
    return "".join([" " if mean is None else bars[min(round(mean * scale), 8)] for mean in means])


SHADES = (("░", "heat1"), ("▒", "heat1"), ("▒", "heat2"), ("▓", "heat2"), ("▓", "heat3"), ("█", "heat4"))


def heat(values: Sequence[float | None], scale: Scale) -> list[Part]:
    """Return values as one row of shades; None is blank, and what is not finite ✗."""
    cells: Cells = {}
    for x, value in enumerate(values):
        if value is not None:
            known = math.isfinite(value)
            cells[x] = SHADES[min(int(scale.place(value) * 6), 5)] if known else ("✗", "error")
    return parts_of(cells)


@dataclass(frozen=True, slots=True, eq=False)
class Pixels:
    """An image: height × width × RGB, 8 bits each."""

    rgb: NDArray[np.uint8]


def read_image(path: Path) -> Pixels | str:
    """Return what is seen of an image (grey, RGB or RGBA) before the dashboard's ground, or why there is none."""
    import numpy as np

    try:
        pixels = decode_png(read_regular(path))
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    except ValueError as error:
        return f"cannot be shown: {error}"
    if pixels.shape[2] == 1:
        return Pixels(np.repeat(pixels, 3, axis=2))
    if pixels.shape[2] == 3:
        return Pixels(pixels)
    alpha = pixels[:, :, 3:] / 255
    seen: NDArray[Any] = pixels[:, :, :3] * alpha + np.array(ground_colour()) * (1 - alpha)
    return Pixels(seen.round().astype(np.uint8))


@lru_cache(maxsize=16)  # the screen is painted several times a second
def half_blocks(image: Pixels, width: int, height: int) -> tuple[Strip, ...]:
    """Return the image as large as it may be in so many cells, its proportions kept; a large one is shown in means."""
    import numpy as np

    tall, wide = image.rgb.shape[:2]
    factor = min(width / wide, 2 * height / tall)
    factor = int(factor) if factor >= 1 else factor  # the pixels of a small one stay squares of one size
    pixels = _resized(image.rgb, max(round(wide * factor), 1), max(round(tall * factor), 1))
    if len(pixels) % 2:
        pixels = np.concatenate([pixels, np.full_like(pixels[:1], ground_colour())])
    lines = []
    for upper, lower in zip(pixels[::2].tolist(), pixels[1::2].tolist(), strict=True):
        segments = []
        for (above, below), same in groupby(zip(map(tuple, upper), map(tuple, lower), strict=True)):
            style = Style(color=Color.from_rgb(*above), bgcolor=Color.from_rgb(*below))
            segments.append(Segment("▀" * len([*same]), style))
        lines.append(Strip(segments))
    return tuple(lines)


def _resized(pixels: NDArray[np.uint8], width: int, height: int) -> NDArray[np.uint8]:
    """Return the image in another size: of each new pixel the mean of the old ones that it covers."""
    import numpy as np

    result = pixels.astype(np.float32)
    for axis, size in ((0, height), (1, width)):
        before = result.shape[axis]
        starts = np.arange(size) * before // size
        if size < before:
            counts = np.diff(starts, append=before).reshape((-1, 1, 1) if axis == 0 else (1, -1, 1))
            result = np.add.reduceat(result, starts, axis=axis) / counts
        else:
            result = result.take(starts, axis=axis)
    return result.round().astype(np.uint8)
