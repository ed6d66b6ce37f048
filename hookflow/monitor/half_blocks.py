"""Images in a terminal: each cell is two pixels, one above the other, drawn as ▀ in one colour before another."""

from __future__ import annotations

from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING

from rich.color import Color
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from hookflow.monitor.pixels import Pixels
from hookflow.monitor.style import GROUND

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Colour = tuple[int, int, int]


@lru_cache(maxsize=8)  # the screen is painted several times a second
def half_blocks(image: Pixels, width: int, height: int) -> tuple[Strip, ...]:
    """Return the image as large as it may be in so many cells, its proportions kept.

    A small one grows by a whole factor, so that its pixels stay squares of one size; of a large one, means are shown.
    """
    import numpy as np

    tall, wide = image.rgb.shape[:2]
    factor = min(width / wide, 2 * height / tall)
    factor = int(factor) if factor >= 1 else factor
    pixels = _resized(image.rgb, max(round(wide * factor), 1), max(round(tall * factor), 1))
    if len(pixels) % 2:
        ground = np.full_like(pixels[:1], Color.parse(GROUND).get_truecolor())
        pixels = np.concatenate([pixels, ground])
    return tuple(_strip(upper.tolist(), lower.tolist()) for upper, lower in zip(pixels[::2], pixels[1::2], strict=True))


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


def _strip(upper: list[list[int]], lower: list[list[int]]) -> Strip:
    pairs = groupby((tuple(above), tuple(below)) for above, below in zip(upper, lower, strict=True))
    return Strip([Segment("▀" * sum(1 for _ in same), _style(*pair)) for pair, same in pairs])


@lru_cache(maxsize=1 << 16)
def _style(above: Colour, below: Colour) -> Style:
    return Style(color=Color.from_rgb(*above), bgcolor=Color.from_rgb(*below))
