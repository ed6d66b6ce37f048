"""PNG files, written with zlib alone: a dependency would be one function of it, and readers are everywhere."""

from __future__ import annotations

import struct
import zlib

import numpy as np
from numpy.typing import NDArray

COLOUR_TYPES = {1: 0, 3: 2, 4: 6}
"""What PNG calls pixels of so many channels: grey, RGB, RGBA."""


def encode_png(pixels: NDArray[np.uint8]) -> bytes:
    """Return pixels of shape height × width × channels as a PNG file; 1, 3 and 4 channels are grey, RGB and RGBA.

    Of the filters None, Sub and Up each row has the one with the smallest sum of absolute differences, which is what
    the specification recommends.
    """
    height, width, channels = pixels.shape
    rows = pixels.reshape(height, width * channels)
    left, above = np.zeros_like(rows), np.zeros_like(rows)
    left[:, channels:] = rows[:, :-channels]
    above[1:] = rows[:-1]
    filtered = np.stack([rows, rows - left, rows - above])  # modulo 256, as PNG wants it
    chosen = np.abs(filtered.view(np.int8).astype(np.int16)).sum(axis=2).argmin(axis=0)
    lines = np.column_stack([chosen.astype(np.uint8), filtered[chosen, np.arange(height)]])
    header = struct.pack(">IIBBBBB", width, height, 8, COLOUR_TYPES[channels], 0, 0, 0)
    chunks = (b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes())), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
