"""An image by formula: an evening by a lake, so that there is something to fit without any file."""

from __future__ import annotations

import torch
from torch import Tensor


def landscape(height: int, width: int) -> Tensor:
    """Return the image, float32 (height, width, 3) from 0 to 1: the same at any size, but for the detail."""
    y, x = torch.meshgrid(
        (torch.arange(height) + 0.5) / height, (torch.arange(width) + 0.5) / width * (width / height), indexing="ij"
    )
    x = x * 1.5 / (width / height)  # from 0 to 1.5, whatever the shape
    soft = 1.2 / height
    """How much of the height an edge takes: about a pixel, so that none of them is jagged."""
    shore = 0.62
    mirrored = torch.where(y > shore, 2 * shore - y + 0.02 * (110 * y + 4 * x).sin() * (y - shore), y)
    image = _sky(x, mirrored)
    for peaks, height_, colour in (
        ((3.1, 0.4, 0.14), 0.50, (0.36, 0.30, 0.46)),
        ((5.3, 1.9, 0.09), 0.59, (0.20, 0.22, 0.33)),
    ):
        image = _over(image, mirrored - _ridge(x, *peaks) - height_, colour, soft)
    water = (y - shore) / (1 - shore)
    image = torch.where((y > shore)[..., None], image * (0.82 - 0.35 * water.clamp(min=0))[..., None], image)
    bank = y - 0.93 + 0.05 * (4 * x + 0.5).sin()
    image = _over(image, bank, (0.10, 0.12, 0.09), soft)
    for place, size in ((0.18, 0.34), (0.30, 0.24), (1.33, 0.42)):
        image = _over(image, _tree(x - place, y, size), (0.06, 0.10, 0.08), soft)
    return image.clamp(0, 1)


def _sky(x: Tensor, y: Tensor) -> Tensor:
    """Return dusk: dark blue above, orange below, with a sun, its glow, and bands of cloud."""
    high, low = torch.tensor((0.16, 0.24, 0.48)), torch.tensor((0.98, 0.62, 0.36))
    sky = high + (low - high) * (y / 0.62).clamp(0, 1)[..., None] ** 1.3
    away = ((x - 0.98) ** 2 + (y - 0.36) ** 2).sqrt()
    sky = sky + (0.45 * (-7 * away).exp())[..., None] * torch.tensor((1.0, 0.75, 0.4))
    clouds = ((9 * y + 0.6 * (5 * x).sin()) * 3.1).sin() * (7 * x + 5 * y).sin()
    sky = sky + 0.07 * (clouds.clamp(min=0.2) - 0.2)[..., None] * torch.tensor((1.0, 0.7, 0.8))
    return _over(sky, 0.075 - away, (1.0, 0.95, 0.75), 0.01)


def _ridge(x: Tensor, waves: float, shift: float, height: float) -> Tensor:
    """Return the outline of mountains: a few waves, each half as high and about twice as short as the one before."""
    octaves = (height / 2**k * (1 - (waves * 2.3**k * x + shift * (k + 1)).sin().abs()) for k in range(4))
    return -sum(octaves, torch.zeros_like(x))


def _tree(x: Tensor, y: Tensor, size: float) -> Tensor:
    """Return how far inside a fir of this height a point is, which stands on the bank at `x` = 0."""
    up = (0.95 - y) / size
    """From 0 at its foot to 1 at its tip."""
    boughs = 0.16 * size * (1 - up) * (1 + 0.35 * (up * 7 % 1))
    return torch.where((up > 0) & (up < 1), boughs - x.abs(), -torch.ones_like(x))


def _over(image: Tensor, inside: Tensor, colour: tuple[float, float, float], soft: float) -> Tensor:
    """Lay a colour over the image wherever `inside` is above zero, with an edge as wide as `soft`."""
    share = (inside / soft + 0.5).clamp(0, 1)[..., None]
    return image * (1 - share) + torch.tensor(colour) * share
