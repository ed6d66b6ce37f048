"""PNG files as a run writes and shows them: 8 bits a channel, not interlaced.

NumPy is imported where it is needed.
"""

import struct
import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
HEADER = ">IIBBBBB"
"""Width, height, bits a channel, colour type, compression, filter method, interlacing."""

COLOUR_TYPES = {1: 0, 3: 2, 4: 6}
"""The color types of PNG by number of channels: grey, RGB, RGBA."""

SUB_FILTER = 1
"""The filter of every row: the difference from the pixel on the left."""

MAX_PIXELS = 1 << 26
"""Pixels of an image that is read, at most."""


def encode_png(pixels: "NDArray[np.uint8]") -> bytes:
    """Return pixels of shape height × width × channels as a PNG file.

    1, 3 and 4 channels are grey, RGB and RGBA.
    """
    import numpy as np

    height, width, channels = pixels.shape
    left_edge = np.zeros((height, 1, channels), np.uint8)
    differences = np.diff(pixels, axis=1, prepend=left_edge)  # modulo 256, as PNG wants
    lines = np.column_stack(
        [np.full(height, SUB_FILTER, np.uint8), differences.reshape(height, -1)]
    )
    header = struct.pack(HEADER, width, height, 8, COLOUR_TYPES[channels], 0, 0, 0)
    compressed = zlib.compress(lines.tobytes())
    return (
        PNG_SIGNATURE + _chunk(b"IHDR", header) + _chunk(b"IDAT", compressed) + _chunk(b"IEND", b"")
    )


def _chunk(kind: bytes, data: bytes) -> bytes:
    length = struct.pack(">I", len(data))
    checksum = struct.pack(">I", zlib.crc32(kind + data))
    return length + kind + data + checksum


def decode_png(data: bytes) -> "NDArray[np.uint8]":
    """Return the pixels of a file that `encode_png` could have written.

    Raises ValueError for any other.
    """
    import numpy as np

    if not data.startswith(PNG_SIGNATURE):
        raise ValueError("not a PNG file")
    chunks = {b"IHDR": b"", b"IDAT": b""}
    at = len(PNG_SIGNATURE)
    while at + 8 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, at)
        # Chunks of one kind are joined, since the pixels may be in several.
        chunks[kind] = chunks.get(kind, b"") + data[at + 8 : at + 8 + length]
        at += length + 12
    try:
        width, height, depth, colour, _, _, interlaced = struct.unpack(HEADER, chunks[b"IHDR"])
        channels = {colour: channels for channels, colour in COLOUR_TYPES.items()}.get(colour)
        if depth != 8 or interlaced or channels is None or not 0 < width * height <= MAX_PIXELS:
            raise ValueError("unsupported PNG format")
        whole = height * (1 + width * channels)
        # A file cannot unpack to more than its header has promised.
        unpacked = zlib.decompressobj().decompress(chunks[b"IDAT"], whole)
    except (struct.error, zlib.error) as error:
        raise ValueError(str(error)) from None
    if len(unpacked) < whole:
        raise ValueError("the file ends too early")
    lines = np.frombuffer(unpacked, np.uint8).reshape(height, -1)
    if (lines[:, 0] != SUB_FILTER).any():
        raise ValueError("unsupported PNG format")
    return np.cumsum(lines[:, 1:].reshape(height, width, channels), axis=1, dtype=np.uint8)
