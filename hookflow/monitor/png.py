"""Reads the PNG files that a run writes: 8 bits a channel, grey, RGB or RGBA, not interlaced, filtered by rows."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.color import Color

from hookflow.monitor.style import GROUND

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

CHANNELS = {0: 1, 2: 3, 6: 4}
"""How many channels a colour type of PNG has."""

NONE, SUB, UP = range(3)
"""The filters of a row that a run uses: none, the difference from the left, and from above."""

LARGEST = 1 << 26
"""Pixels of an image that is looked at, at most."""


@dataclass(frozen=True, slots=True, eq=False)
class Pixels:
    """An image: height × width × RGB, 8 bits each."""

    rgb: NDArray[np.uint8]


def read_image(path: Path) -> Pixels | str:
    """Return an image, or why there is none."""
    try:
        return decode_png(path.read_bytes())
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    except (ValueError, struct.error, zlib.error) as error:
        return f"cannot be shown: {error}"


def decode_png(data: bytes) -> Pixels:
    """Return the image that a PNG file holds, before the dashboard's ground. Raises ValueError for another kind."""
    import numpy as np

    if not data.startswith(b"\x89PNG\r\n\x1a\n"):
        raise ValueError("not a PNG file")
    chunks = _chunks(data)
    width, height, depth, colour, _, _, interlaced = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    if depth != 8 or interlaced or colour not in CHANNELS or not 0 < width * height <= LARGEST:
        raise ValueError("unsupported PNG format")
    lines = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, -1)
    pixels = _unfiltered(lines[:, 0], lines[:, 1:].reshape(height, width, CHANNELS[colour]))
    if colour == 0:
        return Pixels(np.repeat(pixels, 3, axis=2))
    return Pixels(pixels if colour == 2 else _over_ground(pixels))


def _chunks(data: bytes) -> dict[bytes, bytes]:
    """Return the parts of the file by their kind; those of one kind are joined."""
    found: dict[bytes, bytes] = {b"IHDR": b"", b"IDAT": b""}
    at = 8
    while at + 8 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, at)
        found[kind] = found.get(kind, b"") + data[at + 8 : at + 8 + length]
        at += length + 12
    return found


def _unfiltered(filters: NDArray[np.uint8], rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
    import numpy as np

    pixels = rows.copy()
    for y, kind in enumerate(filters):
        if kind == SUB:
            pixels[y] = np.cumsum(rows[y], axis=0, dtype=np.uint8)
        elif kind == UP and y:
            pixels[y] += pixels[y - 1]
        elif kind not in (NONE, UP):
            raise ValueError("unsupported PNG format")
    return pixels


def _over_ground(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return what is seen of an image with transparency before the dashboard's ground."""
    import numpy as np

    ground = np.array(Color.parse(GROUND).get_truecolor())
    alpha = pixels[:, :, 3:] / 255
    seen: NDArray[Any] = pixels[:, :, :3] * alpha + ground * (1 - alpha)
    return seen.round().astype(np.uint8)
