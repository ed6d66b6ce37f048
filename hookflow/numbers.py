"""Numbers as they are read: by people, with the same digits everywhere and no plural of one; and by readers of JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any


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


def strict_json(value: Any, instead: Callable[[float], str | None] = lambda number: None, **form: Any) -> str:
    """Return a value as JSON, which has no NaN and no infinity: `instead` gives what stands for those, by default null.

    `form` are arguments of `json.dumps`.
    """
    try:
        return json.dumps(value, allow_nan=False, **form)
    except ValueError:
        return json.dumps(_finite(value, instead), **form)


def _finite(value: Any, instead: Callable[[float], str | None]) -> Any:
    match value:
        case float() if not math.isfinite(value):
            return instead(value)
        case Mapping():
            return {key: _finite(item, instead) for key, item in value.items()}
        case list() | tuple():
            return [_finite(item, instead) for item in value]
    return value
