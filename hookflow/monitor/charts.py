"""Curves and pictures drawn with characters: axes, braille, half blocks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.color import Color
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from hookflow.events.reading import read_regular
from hookflow.monitor.style import GROUND
from hookflow.numbers import number
from hookflow.png import decode_png

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Iterations:
    """The x-axis, from the first iteration that it shows to the last."""

    first: int
    last: int

    @classmethod
    def of(cls, its: Sequence[int], it: int, total: int) -> Iterations:
        """Return the axis for values at iterations `its`, of a run that is at iteration `it` of `total`.

        It ends at the run's iteration, rounded up by a tenth at most, so that it holds still for a while. It begins at
        0, unless that would leave a fifth of it empty.
        """
        unit = 10 ** max(math.floor(math.log10(it / 25)), 0) if it else 1
        step = next(unit * digit for digit in (1, 2, 5, 10) if unit * digit >= it / 25)
        last = max(min(math.ceil(it / step) * step, max(it, total)), 1)
        begin = min(its, default=0) // step * step
        return cls(begin if begin > last / 5 and len(set(its)) > 1 else 0, last)

    def place(self, it: int) -> float:
        """Return 0 to 1 from left to right."""
        return (it - self.first) / max(self.last - self.first, 1)


@dataclass(frozen=True, slots=True)
class Scale:
    """The y-axis: where values lie on a chart; `log` only when all are above zero."""

    low: float
    high: float
    log: bool

    @classmethod
    def of(cls, values: Sequence[float], log: bool) -> Scale:
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
    seen: NDArray[Any] = pixels[:, :, :3] * alpha + np.array(Color.parse(GROUND).get_truecolor()) * (1 - alpha)
    return Pixels(seen.round().astype(np.uint8))


@lru_cache(maxsize=8)  # the screen is painted several times a second
def half_blocks(image: Pixels, width: int, height: int) -> tuple[Strip, ...]:
    """Return the image as large as it may be in so many cells, its proportions kept; a large one is shown in means."""
    import numpy as np

    tall, wide = image.rgb.shape[:2]
    factor = min(width / wide, 2 * height / tall)
    factor = int(factor) if factor >= 1 else factor  # the pixels of a small one stay squares of one size
    pixels = _resized(image.rgb, max(round(wide * factor), 1), max(round(tall * factor), 1))
    if len(pixels) % 2:
        ground = np.full_like(pixels[:1], Color.parse(GROUND).get_truecolor())
        pixels = np.concatenate([pixels, ground])
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
