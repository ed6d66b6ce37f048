"""Amounts of training, as a pipeline file writes them: 100, "100it", "2ep", "30s", "10m", "2h", "10%"."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

Unit = Literal["", "it", "ep", "s", "%"]
"""Iterations, epochs, seconds, hundredths of the run; "" counts what the point counts."""

LONGEST = 100
"""Characters of an amount; Python reads no integer of any length."""

SECONDS = {"s": 1, "m": 60, "h": 3600}
"""How many seconds a unit of time has."""

_KINDS: dict[Unit, tuple[str, tuple[str, ...]]] = {
    "": ("a number", ("100",)),
    "it": ("iterations", ('"100it"',)),
    "ep": ("epochs", ('"2ep"',)),
    "s": ("seconds", ('"30s"', '"10m"')),
    "%": ("a percentage", ('"10%"',)),
}
"""Each unit in words, with examples of amounts in it."""

_WRITTEN = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(it|ep|s|m|h|%)\s*$")
PATTERN = r"^\s*(\d+(\.0+)?\s*(it|ep)|\d+(\.\d+)?\s*(s|m|h|%))\s*$"
"""The form of an amount with a unit, for an editor; that it must be above zero is not in it."""


@dataclass(frozen=True, slots=True)
class Amount:
    """A number, exactly as written, and its unit; minutes and hours are seconds."""

    value: Fraction
    unit: Unit


def parse_amount(written: object, units: Iterable[Unit] = tuple(_KINDS)) -> Amount:
    """Read an amount in one of these units. Raises ValueError, in words for the user, when it is none."""
    examples = f"write {_either(example for unit in units for example in _KINDS[unit][1])}"
    if isinstance(written, bool) or not isinstance(written, int | str):
        shown = str(written).lower() if isinstance(written, bool) else repr(written)
        raise ValueError(f"{shown} is no amount; {examples}")
    if isinstance(written, str) and len(written) > LONGEST:
        raise ValueError(f"a text of {len(written):,} characters is no amount")
    if isinstance(written, int):
        amount = Amount(Fraction(written), "")
    elif match := _WRITTEN.match(written):
        value, unit = Fraction(match[1]), match[2]
        value, unit = (value * SECONDS[unit], "s") if unit in SECONDS else (value, unit)
        amount = Amount(value, unit)  # type: ignore[arg-type]  # the pattern admits only units
    else:
        raise ValueError(f'"{written}" is no amount; {examples}')
    if amount.unit not in units:
        kinds = [_KINDS[unit][0] for unit in units if unit or "it" not in units]
        raise ValueError(f"must be {_either(kinds)}, not {_KINDS[amount.unit][0]}; {examples}")
    if amount.value <= 0:
        raise ValueError(f"{written!r} must be above zero")
    if amount.unit in ("it", "ep") and amount.value.denominator != 1:
        raise ValueError(f'"{written}" must be an integer')
    return amount


def _either(choices: Iterable[str]) -> str:
    *first, last = choices
    return f"{', '.join(first)} or {last}" if first else last
