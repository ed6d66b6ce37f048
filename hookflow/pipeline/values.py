"""What a key's value may be, beyond a plain type: amounts, conditions, names, devices, arguments.

Each is checked by a function that raises ValueError in words for the user, and has its pattern for the JSON Schema.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from datetime import date, time
from fractions import Fraction
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, PlainValidator, WithJsonSchema

from hookflow.pipeline.condition import parse_condition
from hookflow.pipeline.nested import walk
from hookflow.pipeline.units import PATTERN, parse_amount

_DEVICE = r"^(auto|cpu|mps|cuda(:\d+)?)$"
_FOLDER = r"^\w[\w.-]*$"
_HOOK = r"^[A-Za-z0-9_-]+$"
_PART = r"^[A-Za-z]\w*$"


def _amount(written: Any) -> int | str:
    parse_amount(written)
    return written  # type: ignore[no-any-return]  # parse_amount raises for all but int and str


def _interval(written: Any) -> int | str:
    parse_amount(written, ("", "it", "ep"))
    return written  # type: ignore[no-any-return]  # parse_amount raises for all but int and str


def _limit(written: Any) -> int | float | str:
    limited_batches(written, 1)
    return written  # type: ignore[no-any-return]  # limited_batches raises for all but numbers and strings


def limited_batches(limit: int | float | str, batches: int) -> int:
    """Return how many of so many batches a limit leaves: at least one, and never more than there are.

    Raises ValueError, in words for the user, when it is none.
    """
    if isinstance(limit, float):
        if not 0 < limit <= 1:
            raise ValueError(f'{limit} is no share of the batches; write 10 for ten batches, 0.1 or "10%" for a tenth')
        return max(int(batches * Fraction(str(limit))), 1)
    amount = parse_amount(limit, ("", "%"))
    if amount.unit == "":
        return min(int(amount.value), batches)
    if amount.value > 100:
        raise ValueError(f'"{limit}" is no limit of batches; write 10 for ten batches, 0.1 or "10%" for a tenth')
    return max(int(batches * amount.value / 100), 1)


def _condition(written: str) -> str:
    parse_condition(written)
    return written


def _device(written: str) -> str:
    if not re.fullmatch(_DEVICE, written):
        raise ValueError(f'"{written}" is no device; write "auto", "cpu", "cuda", "cuda:1" or "mps"')
    return written


def _folder_name(written: str) -> str:
    if not re.fullmatch(_FOLDER, written):
        raise ValueError(f'"{written}" is not a valid folder name; use letters, digits, "_", "-" and "."')
    return written


def _hook_name(written: str) -> str:
    if not re.fullmatch(_HOOK, written):
        raise ValueError('a hook\'s name is made of letters, digits, "_" and "-"')
    return written


def _part_name(written: str) -> str:
    if not re.fullmatch(_PART, written):
        raise ValueError(f'"{written}" is not a valid name; use letters, digits and "_", a letter first')
    return written


Plain = TypeVar("Plain", dict[str, Any], list[Any])


def _without_dates(args: Plain) -> Plain:
    """Refuse dates and times, which TOML knows and JSON does not: the plan is written as JSON."""
    for key, value in walk(args):
        if isinstance(value, date | time):
            raise ValueError(f'"{".".join(key)}" is a date or time; put it in quotes')
    return args


@dataclass(frozen=True)
class BesidePipeline:
    """Marks a key of the schema whose file is relative to the pipeline's own folder.

    `form` matches a text that names a file; its group is that file. `extends` rewrites whatever bears this mark.
    """

    form: str

    def seen_from_outside(self, text: str, folder: str) -> str:
        """Return the text of a pipeline in `folder` as a pipeline writes it that sees this folder."""
        if not (match := re.match(self.form, text)):
            return text
        path = os.path.join(folder, match[1].removeprefix("./"))  # noqa: PTH118  # it stays as its reader wrote it
        return text[: match.start(1)] + path + text[match.end(1) :]


def _text(pattern: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "pattern": pattern})


Amount = Annotated[
    int | str,
    PlainValidator(_amount),
    WithJsonSchema(
        {"type": ["integer", "string"], "minimum": 1, "pattern": PATTERN, "examples": [100, "2ep", "30s", "10%"]}
    ),
]
"""An amount of training as written: 100, "100it", "2ep", "30s", "10%"."""

ValEvery = Annotated[
    int | str,
    PlainValidator(_interval),
    WithJsonSchema(
        {
            "type": ["integer", "string"],
            "minimum": 1,
            "pattern": r"^\s*\d+(\.0+)?\s*(it|ep)\s*$",
            "examples": ["500it", "2ep"],
        }
    ),
]
Limit = Annotated[
    int | float | str,
    PlainValidator(_limit),
    WithJsonSchema({"type": ["number", "string"], "exclusiveMinimum": 0, "pattern": r"^\s*\d+(\.\d+)?\s*%\s*$"}),
]
"""How many batches of an epoch to use: 10 of them, or a share: 0.1, "10%"."""

Args = Annotated[dict[str, Any], AfterValidator(_without_dates)]
Use = Annotated[str, BesidePipeline(r"(.*\.py):")]
"""A class or function, as `use` names it."""
ModuleGlob = Annotated[str, BesidePipeline(r"type:(.*\.py):")]
"""An entry of `modules`: a glob over names, or a class, "type:./net.py:Block"."""
WeightsFile = Annotated[str, BesidePipeline(r"([^~$].*)")]
"""A file of weights; a path from the home folder, and a path that begins with a reference, stay as they are."""
PartName = Annotated[str, AfterValidator(_part_name), _text(_PART)]
HookName = Annotated[str, AfterValidator(_hook_name), _text(_HOOK)]
Condition = Annotated[
    str, AfterValidator(_condition), WithJsonSchema({"type": "string", "examples": ["loss > 10 and epoch >= 1"]})
]
ArgList = Annotated[list[Any], AfterValidator(_without_dates)]
Device = Annotated[str, AfterValidator(_device), _text(_DEVICE)]
FolderName = Annotated[str, AfterValidator(_folder_name), _text(_FOLDER)]
