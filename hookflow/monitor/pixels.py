"""Images that a run has kept, as the dashboard draws them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.color import Color

from hookflow.events.regular_file import read_regular
from hookflow.monitor.style import GROUND
from hookflow.png import decode_png

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Pixels:
    """An image: height × width × RGB, 8 bits each."""

    rgb: NDArray[np.uint8]


def read_image(path: Path) -> Pixels | str:
    """Return an image, or why there is none."""
    try:
        return Pixels(_rgb(decode_png(read_regular(path))))
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    except ValueError as error:
        return f"cannot be shown: {error}"


def _rgb(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return what is seen of grey, RGB or RGBA before the dashboard's ground."""
    import numpy as np

    channels = pixels.shape[2]
    if channels == 1:
        return np.repeat(pixels, 3, axis=2)
    if channels == 3:
        return pixels
    ground = np.array(Color.parse(GROUND).get_truecolor())
    alpha = pixels[:, :, 3:] / 255
    seen: NDArray[Any] = pixels[:, :, :3] * alpha + ground * (1 - alpha)
    return seen.round().astype(np.uint8)
