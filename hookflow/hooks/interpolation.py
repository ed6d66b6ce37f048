"""Between two values of a schedule."""

from __future__ import annotations

import math
from typing import Literal

Ease = Literal["cosine", "linear"]
"""The way from one value to the next."""


def eased(way: float, shape: Ease) -> float:
    """Return the share of the difference that is made when so much of the way is done, each from 0 to 1."""
    return way if shape == "linear" else (1 - math.cos(math.pi * way)) / 2
