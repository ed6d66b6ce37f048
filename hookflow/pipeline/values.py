"""Values of a pipeline file: amounts with a unit, nested tables, and what a key accepts."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, time
from fractions import Fraction
from math import inf
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import AfterValidator, PlainSerializer, PlainValidator, WithJsonSchema
from pydantic_core import PydanticKnownError

from hookflow.pipeline.amounts import (
    AMOUNT_PATTERN,
    TRIGGER_PATTERN,
    Amount,
    parse_amount,
    parse_trigger_amount,
)
from hookflow.pipeline.condition import Condition
from hookflow.pipeline.source_map import walk


def _as_written(check: Callable[..., object], *args: object) -> PlainValidator:
    """Return a validator that keeps a value as it is written if `check` takes it.

    The validator raises ValueError if `check` does not.
    """

    def validate(written: Any) -> Any:
        check(written, *args)
        return written

    return PlainValidator(validate)


def compute_num_batches(limit: int | str, batches: int) -> int:
    """Return how many of so many batches a limit leaves: at least one, at most all.

    Raises ValueError.
    """
    amount = parse_amount(limit, ("", "%"))
    if amount.unit == "":
        return min(int(amount.value), batches)
    if amount.value > 100:
        raise ValueError(
            f'"{limit}" is no limit of batches; write 10 for ten batches, "10%" for a tenth'
        )
    return max(int(batches * amount.value / 100), 1)


def _matching(pattern: str, message: str) -> tuple[AfterValidator, WithJsonSchema]:
    """Return the notes of a string that must match; `{}` in the message is what was written."""

    def check(written: str) -> str:
        if not re.fullmatch(pattern, written):
            raise ValueError(message.format(written))
        return written

    return AfterValidator(check), WithJsonSchema({"type": "string", "pattern": pattern})


BUDGET_PATTERN = r"(?=.*[1-9])(\d+(?:\.\d+)?) ?(%|us|µs|ms)"
NANOSECONDS_PER_UNIT = {"us": 1e3, "µs": 1e3, "ms": 1e6}


@dataclass(frozen=True, slots=True)
class Budget:
    """A budget of hooks: a share of the iterations' time, or a time per iteration in ns."""

    written: str
    share: float = 0.0
    each: float = 0.0

    @classmethod
    def parse(cls, written: object) -> Self:
        """Read a budget. Raises ValueError, in words for the user, when it is none."""
        match = None
        if isinstance(written, str):
            match = re.fullmatch(BUDGET_PATTERN, written)
        if match is None:
            if isinstance(written, str):
                shown = f'"{written}"'
            else:
                shown = repr(written)
            raise ValueError(
                f'{shown} is no budget; write "1%" of the iterations\' time, or "0.2ms" of each'
            )
        value = float(match[1])
        if match[2] == "%":
            return cls(match[0], share=value / 100)
        return cls(match[0], each=value * NANOSECONDS_PER_UNIT[match[2]])

    def ns(self, iters: int, ns: float) -> float:
        """Return what it allows of so many iterations, which took `ns` together."""
        return self.share * ns + self.each * iters

    def __str__(self) -> str:
        return self.written


BudgetField = Annotated[
    Budget,
    PlainValidator(Budget.parse),
    PlainSerializer(str),
    WithJsonSchema({"type": "string", "pattern": BUDGET_PATTERN}),
]
"""A budget: "1%", "0.2ms"."""


def _without_dates(args: Any) -> Any:
    """Refuse dates and times, which TOML knows and JSON does not: the plan is written as JSON."""
    for key, value in walk(args):
        if isinstance(value, date | time):
            raise ValueError(f'"{".".join(key)}" is a date or time; put it in quotes')
    return args


_AMOUNT_SCHEMA = WithJsonSchema(
    {
        "type": ["integer", "string"],
        "minimum": 1,
        "pattern": AMOUNT_PATTERN,
        "examples": [100, "2ep", "30s", "10%"],
    }
)

AmountField = Annotated[int | str, _as_written(parse_amount), _AMOUNT_SCHEMA]
"""An amount of training as written: 100, "100it", "2ep", "30s", "10%"."""


def _as_toml(amount: Amount) -> int | str:
    return amount.as_toml


TriggerAmount = Annotated[
    Amount,
    PlainValidator(parse_trigger_amount),
    PlainSerializer(_as_toml),
    WithJsonSchema(
        {
            "type": ["integer", "string"],
            "minimum": 1,
            "pattern": TRIGGER_PATTERN,
            "examples": [100, "2ep", "30s", "10%", "50k samples", "1M tokens"],
        }
    ),
]
"""An amount of a trigger, parsed."""


def _parse_seconds(written: object) -> Amount:
    return parse_amount(written, ("s",))


SecondsField = Annotated[
    Amount,
    PlainValidator(_parse_seconds),
    PlainSerializer(_as_toml),
    WithJsonSchema({"type": "string", "pattern": AMOUNT_PATTERN, "examples": ["30s", "5m"]}),
]
"""An amount of time, parsed: "30s", "5m"."""


class Interval(NamedTuple):
    """A number of iterations, of epochs or parts of one, or of seconds."""

    value: int | Fraction
    unit: Literal["it", "ep", "s"]

    @property
    def by_iterations(self) -> bool:
        """Whether it may end within an epoch."""
        return self.unit != "ep" or self.value.denominator != 1


def validation_interval(written: object) -> Amount:
    """Read how often to validate; 0 is never. Raises ValueError, in words for the user."""
    if written == 0 and type(written) is int:
        return Amount(Fraction(0), "", "0")
    return parse_amount(written, ("", "it", "ep", "s"), parts=True)


ValEvery = Annotated[
    int | str,
    _as_written(validation_interval),
    WithJsonSchema(
        {
            "type": ["integer", "string"],
            "minimum": 0,
            "pattern": r"^\s*(\d+(\.0+)?\s*it|\d+(\.\d+)?\s*(ep|s|m|h))\s*$",
            "examples": ["500it", "2ep", "0.5ep", "10m"],
        }
    ),
]
NO_LIMIT = "inf"
"""The number of epochs of a run without an end."""


def _epoch_limit(written: object) -> int | float:
    """Read a number of epochs: at least 1, or "inf", which TOML has as a number, too."""
    if written in (NO_LIMIT, inf):
        return inf
    if not isinstance(written, int) or isinstance(written, bool):
        raise PydanticKnownError("int_type")
    if written < 1:
        raise PydanticKnownError("greater_than_equal", {"ge": 1})
    return int(written)  # a reference to the environment is an integer of a class of its own


def _epochs_as_toml(limit: int | float | None) -> int | str | None:
    if isinstance(limit, float):
        return NO_LIMIT
    return limit


EpochLimit = Annotated[
    int | float,
    PlainValidator(_epoch_limit),
    PlainSerializer(_epochs_as_toml),
    WithJsonSchema({"type": ["integer", "string"], "minimum": 1, "pattern": f"^{NO_LIMIT}$"}),
]
"""A number of epochs; infinity for a run without an end."""
Limit = Annotated[
    int | str,
    _as_written(compute_num_batches, 1),
    WithJsonSchema(
        {"type": ["integer", "string"], "minimum": 1, "pattern": r"^\s*\d+(\.\d+)?\s*%\s*$"}
    ),
]
"""How many batches of an epoch to use: 10 of them, or a share: "10%"."""

Args = Annotated[dict[str, Any], AfterValidator(_without_dates)]
PartName = Annotated[
    str,
    *_matching(
        r"^[A-Za-z]\w*$", '"{}" is not a valid name; use letters, digits and "_", a letter first'
    ),
]
GroupName = Annotated[
    str,
    *_matching(
        r"^[A-Za-z0-9_-]+$",
        'a group\'s name is made of letters, digits, "_" and "-", without "group:"',
    ),
]
HookName = Annotated[
    str, *_matching(r"^[A-Za-z0-9_-]+$", 'a hook\'s name is made of letters, digits, "_" and "-"')
]
ConditionField = Annotated[
    Condition, WithJsonSchema({"type": "string", "examples": ["loss > 10 and epoch >= 1"]})
]
ArgList = Annotated[list[Any], AfterValidator(_without_dates)]
Device = Annotated[
    str,
    *_matching(
        r"^(auto|cpu|mps|cuda(:\d+)?)$",
        '"{}" is no device; write "auto", "cpu", "cuda", "cuda:1" or "mps"',
    ),
]
FolderName = Annotated[
    str,
    *_matching(
        r"^\w[\w.-]*$", '"{}" is not a valid folder name; use letters, digits, "_", "-" and "."'
    ),
]
