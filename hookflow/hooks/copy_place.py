"""The place that a checkpoint is copied to: a template with names in braces."""

import math
from collections.abc import Mapping
from string import Formatter
from typing import Any

PLACE_NAMES = ("run", "id", "name", "it", "ep")
"""The names that the braces of a template take, beside metrics."""


def format_place(template: str, values: Mapping[str, Any]) -> str:
    """Return a place to copy to; a metric that is not known yet is nan.

    Raises ValueError for a wrong format.
    """
    wanted = set()
    for _, name, _, _ in Formatter().parse(template):
        if name is not None:
            wanted.add(name)
    unknown = dict.fromkeys(wanted, math.nan)
    return Formatter().vformat(template, (), {**unknown, **values})
