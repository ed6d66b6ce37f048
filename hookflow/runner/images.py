"""What may be logged as an image: tensors, arrays, PIL's images, matplotlib's figures.

An image has one channel (grey), three (RGB) or four (RGBA), first or last; without channels it is grey. Its values are
uint8, floating in 0…1 (what is outside is clipped, NaN is 0), or booleans.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hookflow.png import COLOUR_TYPES


def copied(image: Any, called: str) -> Tensor:
    """Return a copy of an image, height × width × channels; that of a tensor stays on its device.

    Where both the first and the last dimension may be channels, they come first in a tensor, and last in anything else.
    Raises TypeError when `called` was given something else than an image.
    """
    first = isinstance(image, Tensor)
    given: Tensor = image.detach() if first else _of_array(image, called)
    sizes = tuple(given.shape)
    if given.ndim == 2:
        given = given.unsqueeze(2)
    elif given.ndim == 3 and sizes[0] in COLOUR_TYPES and (first or sizes[2] not in COLOUR_TYPES):
        given = given.permute(1, 2, 0)
    if given.ndim != 3 or given.shape[2] not in COLOUR_TYPES or not given.numel():
        several = "; log the images of a batch one by one, or make a grid of them" if given.ndim == 4 else ""
        raise TypeError(f"{called} needs height × width × 1, 3 or 4 channels, last or first, not {sizes}{several}")
    if not (given.is_floating_point() or given.dtype in (torch.uint8, torch.bool)):
        raise TypeError(f"{called} needs uint8, floating (0…1) or boolean values, not {given.dtype}")
    return given.clone(memory_format=torch.contiguous_format) if first else given.contiguous()


def _of_array(image: Any, called: str) -> Tensor:
    if hasattr(image, "convert") and getattr(image, "mode", "RGB") not in ("L", "RGB", "RGBA"):
        image = image.convert("RGB")  # PIL's: a palette, CMYK, one bit
    try:
        return torch.from_numpy(np.array(image, order="C"))
    except TypeError:
        shown = f"{type(image).__name__} ({image!r:.40})"
        raise TypeError(f"{called} needs a tensor, an array or a PIL image, not a {shown}") from None


def drawn(figure: Any, called: str) -> Tensor:
    """Return what a figure of matplotlib looks like. Raises TypeError when it is something else.

    It is drawn here and now, by whoever calls: matplotlib knows no threads, and the caller may change the figure next.
    """
    if not hasattr(figure, "set_canvas"):
        raise TypeError(f"{called} needs a figure of matplotlib, not a {type(figure).__name__} ({figure!r:.40})")
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    before = figure.canvas
    try:
        canvas: Any = FigureCanvasAgg(figure)  # which makes itself the figure's own
        canvas.draw()
        return torch.from_numpy(np.array(canvas.buffer_rgba()))
    finally:
        figure.set_canvas(before)


def pixels(image: Tensor) -> NDArray[np.uint8]:
    """Return a copied image in the host's memory, as uint8; this waits for its device."""
    host = image.cpu()
    if host.is_floating_point():
        host = host.float().nan_to_num_(0.0, 1.0, 0.0).clamp_(0, 1).mul_(255).round_()
    elif host.dtype == torch.bool:
        host = host * 255
    array: NDArray[np.uint8] = host.to(torch.uint8).numpy()
    return array
