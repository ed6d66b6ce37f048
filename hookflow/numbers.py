"""Numbers as people read them: a metric has the same digits wherever it is shown, and one thing is no plural."""

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


def counted(count: int, thing: str) -> str:
    """Return how many things there are: "1 edge", "2 edges", "1,000 batches"."""
    return f"{count:,} {plural(count, thing)}"


def plural(count: float, thing: str) -> str:
    """Return what so many of a thing are called."""
    return thing if count == 1 else thing + ("es" if thing.endswith(("tch", "ss")) else "s")
