"""Amounts of training: numbers with a unit, such as 100, "2ep", "30s" and "10%"."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

Unit = Literal["", "it", "ep", "s", "%", "samples", "tokens"]
"""The units of an amount: iterations, epochs, seconds, hundredths of the run, examples, tokens.

The unit "" counts what the point counts.
"""

TRIGGER_UNITS: tuple[Unit, ...] = ("", "it", "ep", "s", "%", "samples", "tokens")
"""The units of a trigger: those of the data, too, which are counted while the run trains."""

SECONDS_PER_UNIT = {"s": 1, "m": 60, "h": 3600}
"""How many seconds a unit of time has."""

MULTIPLE_BY_LETTER = {"": 1, "k": 10**3, "M": 10**6, "B": 10**9}
"""The factor of a letter before samples or tokens."""

MAX_CHARACTERS = 100
"""The longest text that is read: Python does not read integers of any length."""

UNIT_WORDS: dict[Unit, str] = {
    "": "a number",
    "it": "iterations",
    "ep": "epochs",
    "s": "seconds",
    "%": "a percentage",
    "samples": "samples",
    "tokens": "tokens",
}
UNIT_EXAMPLES: dict[Unit, tuple[str, ...]] = {
    "": ("100",),
    "it": ('"100it"',),
    "ep": ('"2ep"',),
    "s": ('"30s"', '"10m"'),
    "%": ('"10%"',),
    "samples": ('"50k samples"',),
    "tokens": ('"1M tokens"',),
}

AMOUNT_PATTERN = r"^\s*(\d+(\.0+)?\s*(it|ep)|\d+(\.\d+)?\s*(s|m|h|%))\s*$"
"""The form of an amount with a unit, for an editor; that it must be above zero is not in it."""

TRIGGER_PATTERN = (
    r"^\s*(\d+(\.0+)?\s*(it|ep)|\d+(\.\d+)?\s*(s|m|h|%)"
    r"|\d+(\.\d+)?\s*[kMB]?\s*(samples?|tokens?))\s*$"
)
"""The same for a trigger, which counts samples and tokens, too."""

_AMOUNT_PATTERN = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(it|ep|s|m|h|%)\s*$")
_OF_DATA = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([kMB]?)\s*(samples|sample|tokens|token)\s*$")


@dataclass(frozen=True, slots=True)
class Amount:
    """A number, exactly, and its unit; minutes and hours are seconds.

    `written` is the amount as the file has it.
    """

    value: Fraction
    unit: Unit
    written: str

    def __str__(self) -> str:
        return self.written

    @property
    def as_toml(self) -> int | str:
        """The value of a key that has the amount: an integer where it has no unit."""
        if self.written.isdigit():
            return int(self.written)
        return self.written

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """Return how a plan's JSON is read: an amount is a text there, with and without a unit."""
        from pydantic_core import core_schema  # imported only for reading and checking

        return core_schema.no_info_plain_validator_function(read_amount)


def read_amount(text: str) -> Amount:
    """Return the amount of which `text` is the written form. Raises ValueError when it is none."""
    if text.isdigit():
        return parse_amount(int(text), TRIGGER_UNITS)
    return parse_amount(text, TRIGGER_UNITS)


def parse_amount(
    written: object, units: Iterable[Unit] = ("", "it", "ep", "s", "%"), *, parts: bool = False
) -> Amount:
    """Read an amount in one of these units; with `parts` it may be a part of an epoch.

    Raises ValueError, in words for the user, when it is none.
    """
    examples: list[str] = []
    for unit in units:
        examples += UNIT_EXAMPLES[unit]
    hint = f"write {_join_choices(examples)}"
    amount = _read_number(written, hint)
    if amount.unit not in units:
        kinds = [UNIT_WORDS[unit] for unit in units if unit or "it" not in units]
        raise ValueError(f"must be {_join_choices(kinds)}, not {UNIT_WORDS[amount.unit]}; {hint}")
    if amount.value <= 0:
        raise ValueError(f"{written!r} must be above zero")
    is_whole = amount.value.denominator == 1
    needs_whole = amount.unit in ("it", "samples", "tokens") or (amount.unit == "ep" and not parts)
    if needs_whole and not is_whole:
        raise ValueError(f'"{written}" must be an integer')
    return amount


def _read_number(written: object, hint: str) -> Amount:
    """Return the number and the unit of an amount.

    Raises ValueError, with the hint, when it is none.
    """
    if isinstance(written, bool):
        raise ValueError(f"{str(written).lower()} is no amount; {hint}")
    if isinstance(written, int):
        return Amount(Fraction(written), "", str(int(written)))
    if not isinstance(written, str):
        raise ValueError(f"{written!r} is no amount; {hint}")
    if len(written) > MAX_CHARACTERS:
        raise ValueError(f"a text of {len(written):,} characters is no amount")
    of_data = _OF_DATA.match(written)
    if of_data:
        number, letter, noun = of_data.groups()
        unit_of_data: Unit = "samples" if noun.startswith("sample") else "tokens"
        return Amount(Fraction(number) * MULTIPLE_BY_LETTER[letter], unit_of_data, written)
    match = _AMOUNT_PATTERN.match(written)
    if match is None:
        raise ValueError(f'"{written}" is no amount; {hint}')
    value = Fraction(match[1])
    unit = match[2]
    if unit in SECONDS_PER_UNIT:
        return Amount(value * SECONDS_PER_UNIT[unit], "s", written)
    return Amount(value, unit, written)  # type: ignore[arg-type]  # the pattern admits only units


def parse_trigger_amount(written: object) -> Amount:
    """Read an amount of a trigger. Raises ValueError, in words for the user, when it is none."""
    return parse_amount(written, TRIGGER_UNITS)


def _join_choices(choices: Iterable[str]) -> str:
    *first, last = choices
    if not first:
        return last
    return f"{', '.join(first)} or {last}"
