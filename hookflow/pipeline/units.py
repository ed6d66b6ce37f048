"""Amounts of training, as a pipeline file writes them: 100, "100it", "2ep", "30s", "10m", "2h", "10%"."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

Unit = Literal["", "it", "ep", "s", "%"]
"""Iterations, epochs, seconds, hundredths of the run; "" counts what the point counts."""

LONGEST = 100
"""Characters of an amount; Python reads no integer of any length."""

_SECONDS = {"m": 60, "h": 3600}
_WRITTEN = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(it|ep|s|m|h|%)\s*$")
PATTERN = r"^\s*(\d+(\.0+)?\s*(it|ep)|\d+(\.\d+)?\s*(s|m|h|%))\s*$"
"""The form of an amount with a unit, for an editor; that it must be above zero is not in it."""


@dataclass(frozen=True, slots=True)
class Amount:
    """A number, exactly as written, and its unit; minutes and hours are seconds."""

    value: Fraction
    unit: Unit


def parse_amount(written: object) -> Amount:
    """Read an amount. Raises ValueError, in words for the user, when it is none."""
    if isinstance(written, bool) or not isinstance(written, int | str):
        shown = str(written).lower() if isinstance(written, bool) else repr(written)
        raise ValueError(f'{shown} is no amount; write 100, "100it", "2ep", "30s", "10m" or "10%"')
    if isinstance(written, str) and len(written) > LONGEST:
        raise ValueError(f"a text of {len(written):,} characters is no amount")
    if isinstance(written, int):
        amount = Amount(Fraction(written), "")
    elif match := _WRITTEN.match(written):
        value, unit = Fraction(match[1]), match[2]
        value, unit = (value * _SECONDS[unit], "s") if unit in _SECONDS else (value, unit)
        amount = Amount(value, unit)  # type: ignore[arg-type]  # the pattern admits only units
    else:
        raise ValueError(f'"{written}" is no amount; write 100, "100it", "2ep", "30s", "10m" or "10%"')
    if amount.value <= 0:
        raise ValueError(f"{written!r} must be above zero")
    if amount.unit in ("it", "ep") and amount.value.denominator != 1:
        raise ValueError(f'"{written}" must be an integer')
    return amount
