"""Pictures drawn with half blocks: each cell shows two pixels, one above the other."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from rich.color import Color
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from hookflow.events.reading import read_regular
from hookflow.monitor.style import parse_ground_colour
from hookflow.png import decode_png

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class PixelImage:
    """An image: height × width × RGB, 8 bits each."""

    rgb: NDArray[np.uint8]


def read_image(path: Path) -> PixelImage | str:
    """Return what is seen of an image before the dashboard's ground, or why there is none.

    The image is grey, RGB or RGBA.
    """
    import numpy as np

    try:
        pixels = decode_png(read_regular(path))
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    except ValueError as error:
        return f"cannot be shown: {error}"
    channels = pixels.shape[2]
    if channels == 1:
        return PixelImage(np.repeat(pixels, 3, axis=2))
    if channels == 3:
        return PixelImage(pixels)
    colours = pixels[:, :, :3]
    alpha = pixels[:, :, 3:] / 255
    ground = np.array(parse_ground_colour())
    seen: NDArray[Any] = colours * alpha + ground * (1 - alpha)
    return PixelImage(seen.round().astype(np.uint8))


def half_blocks(image: PixelImage, width: int, height: int) -> tuple[Strip, ...]:
    """Return the image as large as it may be in so many cells, its proportions kept.

    A large one is shown in means.
    """
    import numpy as np

    tall, wide = image.rgb.shape[:2]
    factor = min(width / wide, 2 * height / tall)
    if factor >= 1:
        factor = int(factor)  # the pixels of a small one stay squares of one size
    new_width = max(round(wide * factor), 1)
    new_height = max(round(tall * factor), 1)
    pixels = _resize_image(image.rgb, new_width, new_height)
    if len(pixels) % 2:
        ground = np.full_like(pixels[:1], parse_ground_colour())
        pixels = np.concatenate([pixels, ground])
    upper_rows = pixels[::2].tolist()
    lower_rows = pixels[1::2].tolist()
    rows = zip(upper_rows, lower_rows, strict=True)
    return tuple(_strip_of(upper, lower) for upper, lower in rows)


def _strip_of(upper: Sequence[Sequence[int]], lower: Sequence[Sequence[int]]) -> Strip:
    """Return two rows of pixels as one row of cells."""
    segments = []
    for (above, below), alike in groupby(zip(upper, lower, strict=True)):
        count = len([*alike])
        style = Style(color=Color.from_rgb(*above), bgcolor=Color.from_rgb(*below))
        segments.append(Segment("▀" * count, style))
    return Strip(segments)


def _resize_image(pixels: NDArray[np.uint8], width: int, height: int) -> NDArray[np.uint8]:
    """Return the image in another size.

    Each new pixel is the mean of the old ones that it covers.
    """
    import numpy as np

    result = pixels.astype(np.float32)
    for axis, size in ((0, height), (1, width)):
        before = result.shape[axis]
        starts = np.arange(size) * before // size
        if size < before:
            counts = np.diff(starts, append=before)
            if axis == 0:
                counts = counts[:, None]
            result = np.add.reduceat(result, starts, axis=axis) / counts[:, None]
        else:
            result = result.take(starts, axis=axis)
    return result.round().astype(np.uint8)
