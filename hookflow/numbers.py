"""Numbers as people read them: a metric has the same digits wherever it is shown."""

from __future__ import annotations

import math


def number(value: float) -> str:
    """Return a metric with four significant digits or so, in seven characters at most (eight below zero)."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else str(value)
    if value == 0:
        return "0"
    if 1e-3 <= abs(value) < 1e5:
        digits = max(3 - math.floor(math.log10(abs(value))), 0)
        return f"{value:.{min(digits, 5 if abs(value) < 0.1 else 4)}f}"
    return f"{value:.2g}"
