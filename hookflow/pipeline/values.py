"""Values of a pipeline file: amounts with a unit, nested tables, and what a key accepts."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import date, time
from fractions import Fraction
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import AfterValidator, PlainValidator, WithJsonSchema

from hookflow.pipeline.condition import parse_condition
from hookflow.pipeline.source_map import walk

Unit = Literal["", "it", "ep", "s", "%"]
"""Iterations, epochs, seconds, hundredths of the run; "" counts what the point counts."""

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


def parse_amount(written: object, units: Iterable[Unit] = tuple(_KINDS), *, parts: bool = False) -> Amount:
    """Read an amount in one of these units; with `parts` it may be a part of an epoch.

    Raises ValueError, in words for the user, when it is none.
    """
    examples = f"write {_either(example for unit in units for example in _KINDS[unit][1])}"
    if isinstance(written, bool) or not isinstance(written, int | str):
        shown = str(written).lower() if isinstance(written, bool) else repr(written)
        raise ValueError(f"{shown} is no amount; {examples}")
    if isinstance(written, str) and len(written) > 100:  # Python does not read integers of any length
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
    if amount.unit in ("it", "ep")[: 1 if parts else 2] and amount.value.denominator != 1:
        raise ValueError(f'"{written}" must be an integer')
    return amount


def _either(choices: Iterable[str]) -> str:
    *first, last = choices
    return f"{', '.join(first)} or {last}" if first else last


def _as_written(check: Callable[..., object], *args: object) -> PlainValidator:
    """Return a validator that keeps a value as it is written if `check` takes it; it raises ValueError if not."""

    def validate(written: Any) -> Any:
        check(written, *args)
        return written

    return PlainValidator(validate)


def limited_batches(limit: int | str, batches: int) -> int:
    """Return how many of so many batches a limit leaves: at least one, at most all. Raises ValueError."""
    amount = parse_amount(limit, ("", "%"))
    if amount.unit == "":
        return min(int(amount.value), batches)
    if amount.value > 100:
        raise ValueError(f'"{limit}" is no limit of batches; write 10 for ten batches, "10%" for a tenth')
    return max(int(batches * amount.value / 100), 1)


def _condition(written: str) -> str:
    parse_condition(written)
    return written


def _matching(pattern: str, message: str) -> tuple[AfterValidator, WithJsonSchema]:
    """Return the notes of a string that must match; `{}` in the message is what was written."""

    def check(written: str) -> str:
        if not re.fullmatch(pattern, written):
            raise ValueError(message.format(written))
        return written

    return AfterValidator(check), WithJsonSchema({"type": "string", "pattern": pattern})


BUDGET = r"(?=.*[1-9])(\d+(?:\.\d+)?) ?(%|us|µs|ms)"


@dataclass(frozen=True, slots=True)
class Budget:
    """A budget of hooks: a share of the iterations' time, or a time per iteration in ns."""

    written: str
    share: float = 0.0
    each: float = 0.0

    @classmethod
    def parse(cls, written: str) -> Self:
        match = re.fullmatch(BUDGET, written)
        assert match is not None, "validated by the schema"
        value = float(match[1])
        return cls(written, share=value / 100) if match[2] == "%" else cls(written, each=value * NS[match[2]])

    def ns(self, iters: int, ns: int) -> float:
        """Return what it allows of so many iterations, which took `ns` together."""
        return self.share * ns + self.each * iters

    def __str__(self) -> str:
        return self.written


NS = {"us": 1e3, "µs": 1e3, "ms": 1e6}

BudgetField = Annotated[
    str, *_matching(BUDGET, '"{}" is no budget; write "1%" of the iterations\' time, or "0.2ms" of each')
]
"""A budget as written: "1%", "0.2ms"."""


def _without_dates(args: Any) -> Any:
    """Refuse dates and times, which TOML knows and JSON does not: the plan is written as JSON."""
    for key, value in walk(args):
        if isinstance(value, date | time):
            raise ValueError(f'"{".".join(key)}" is a date or time; put it in quotes')
    return args


AmountField = Annotated[
    int | str,
    _as_written(parse_amount),
    WithJsonSchema(
        {"type": ["integer", "string"], "minimum": 1, "pattern": PATTERN, "examples": [100, "2ep", "30s", "10%"]}
    ),
]
"""An amount of training as written: 100, "100it", "2ep", "30s", "10%"."""

SecondsField = Annotated[
    str,
    _as_written(parse_amount, ("s",)),
    WithJsonSchema({"type": "string", "pattern": PATTERN, "examples": ["30s", "5m"]}),
]
"""An amount of time as written: "30s", "5m"."""


def seconds(written: str) -> float:
    """Return an amount of time in seconds."""
    return float(parse_amount(written, ("s",)).value)


class Interval(NamedTuple):
    """A number of iterations, of epochs or parts of one, or of seconds."""

    value: int | Fraction
    unit: Literal["it", "ep", "s"]

    @property
    def by_iterations(self) -> bool:
        """Whether it may end within an epoch."""
        return self.unit != "ep" or self.value.denominator != 1


def validation_interval(written: object) -> Amount:
    """Read how often to validate. Raises ValueError, in words for the user."""
    return parse_amount(written, ("", "it", "ep", "s"), parts=True)


ValEvery = Annotated[
    int | str,
    _as_written(validation_interval),
    WithJsonSchema(
        {
            "type": ["integer", "string"],
            "minimum": 1,
            "pattern": r"^\s*(\d+(\.0+)?\s*it|\d+(\.\d+)?\s*(ep|s|m|h))\s*$",
            "examples": ["500it", "2ep", "0.5ep", "10m"],
        }
    ),
]
Limit = Annotated[
    int | str,
    _as_written(limited_batches, 1),
    WithJsonSchema({"type": ["integer", "string"], "minimum": 1, "pattern": r"^\s*\d+(\.\d+)?\s*%\s*$"}),
]
"""How many batches of an epoch to use: 10 of them, or a share: "10%"."""

Args = Annotated[dict[str, Any], AfterValidator(_without_dates)]
PartName = Annotated[
    str, *_matching(r"^[A-Za-z]\w*$", '"{}" is not a valid name; use letters, digits and "_", a letter first')
]
HookName = Annotated[str, *_matching(r"^[A-Za-z0-9_-]+$", 'a hook\'s name is made of letters, digits, "_" and "-"')]
Condition = Annotated[
    str, AfterValidator(_condition), WithJsonSchema({"type": "string", "examples": ["loss > 10 and epoch >= 1"]})
]
ArgList = Annotated[list[Any], AfterValidator(_without_dates)]
Device = Annotated[
    str,
    *_matching(r"^(auto|cpu|mps|cuda(:\d+)?)$", '"{}" is no device; write "auto", "cpu", "cuda", "cuda:1" or "mps"'),
]
FolderName = Annotated[
    str, *_matching(r"^\w[\w.-]*$", '"{}" is not a valid folder name; use letters, digits, "_", "-" and "."')
]
