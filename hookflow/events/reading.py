"""Reads JSON that anybody may have written: what a run directory holds is data, and a mistake in it is a ValueError.

Nesting that is too deep, numbers that are too long and NaN are refused, whatever reads them. The records of a log are
held against their declarations in `hookflow.events.records`, so that their readers can rely on those types.
A key may be missing and another one be there, as another version writes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints, is_typeddict

from pydantic_core import SchemaValidator, ValidationError, from_json
from pydantic_core import core_schema as schema

from hookflow.events.records import CommandRecord, Record, Stamp

INTEGER = 1 << 63
LATEST = 1e11
"""No integer and no time (in seconds, some thousand years) in a log is as large as this."""

NEEDED = frozenset({"k", "t"})
"""What every record has, whatever version wrote it."""


def read_json(text: str | bytes, *, nan: bool = False) -> Any:
    """Return what the text says; with `nan`, numbers that are not finite are numbers, as Python writes them.

    Raises ValueError, and nothing else, where it is no JSON.
    """
    try:
        return from_json(text, allow_inf_nan=nan)
    except RecursionError:  # nothing that hookflow writes is nested so deep
        raise ValueError("nested too deep") from None


def read_object(text: str | bytes, *, nan: bool = False) -> dict[str, Any]:
    """Return the JSON object of the text, read by `read_json`. Raises ValueError where it is anything else."""
    found = read_json(text, nan=nan)
    if not isinstance(found, dict):
        raise ValueError("no JSON object")
    return found


def read_record(line: str | bytes) -> Record:
    """Return the record of a line of an event log; of a kind that is not known, as it stands.

    Raises ValueError where it is no record, or not what its kind declares.
    """
    found = read_object(line)
    kinds = _kinds()
    return cast(Record, valid(kinds.get(str(found.get("k")), kinds[""]), found))


def read_command(line: str | bytes) -> CommandRecord:
    """Return the command of a line of a command log. Raises ValueError where it is none."""
    return cast(CommandRecord, valid(_command(), read_object(line)))


def is_torn(error: ValueError) -> bool:
    """Say whether a line could not be read because it has no end: the process that wrote it was killed."""
    return str(error).startswith("EOF")


def is_string(value: object) -> bool:
    """Say whether this is a string."""
    return isinstance(value, str)


def is_time(value: object) -> bool:
    """Say whether this is a time in seconds that a clock may show."""
    return isinstance(value, int | float) and 0 <= value < LATEST


def only_of(checks: Mapping[str, Callable[[Any], bool]], found: object) -> dict[str, Any]:
    """Return an object without the keys whose values do not pass their check; nothing where it is no object."""
    if not isinstance(found, Mapping):
        return {}
    return {key: value for key, value in found.items() if key not in checks or checks[key](value)}


def valid(validator: SchemaValidator, found: dict[str, Any]) -> Any:
    """Return what was found, as a `validator_of` its type takes it. Raises ValueError, which says what is wrong."""
    try:
        return found | validator.validate_python(found)  # in the order in which it was written
    except ValidationError as error:
        (first, *_) = error.errors()
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


@cache
def _kinds() -> dict[str, SchemaValidator]:
    """Return what holds a record against its kind; under "" what holds for every kind."""
    declared = {get_args(get_type_hints(kind)["k"])[0]: kind for kind in get_args(Record)}
    every = SchemaValidator(_table({"k": str} | get_type_hints(Stamp), NEEDED))
    return {"": every, **{name: validator_of(kind, NEEDED) for name, kind in declared.items()}}


@cache
def _command() -> SchemaValidator:
    hints = get_type_hints(CommandRecord) | {"cmd": str}  # one that is not known is refused by the run
    return SchemaValidator(_table(hints, needed=hints))


def validator_of(kind: type, needed: Iterable[str]) -> SchemaValidator:
    """Return what holds an object against a TypedDict, of whose keys some are needed."""
    return SchemaValidator(_table(get_type_hints(kind), needed))


def _table(hints: Mapping[str, Any], needed: Iterable[str]) -> schema.CoreSchema:
    required = frozenset(needed)
    types = {key: _of(hint) for key, hint in hints.items()}
    if "t" in types:
        types["t"] = schema.float_schema(strict=True, ge=0, lt=LATEST, allow_inf_nan=False)
    fields = {key: schema.typed_dict_field(type_, required=key in required) for key, type_ in types.items()}
    return schema.typed_dict_schema(fields, extra_behavior="allow")


def _timing() -> schema.CoreSchema:
    """Return what stands for [how many, total ns, longest ns, last ns, {bin: count}], or the beginning of it."""
    number = schema.int_schema(strict=True, gt=-INTEGER, lt=INTEGER)
    bins = schema.dict_schema(schema.str_schema(pattern=r"^\d{1,4}$"), number)
    return schema.list_schema(schema.union_schema([number, bins]), min_length=2, max_length=5)


def _of(hint: Any, *, finite: bool = True) -> schema.CoreSchema:
    """Return what a type of a record's declaration stands for.

    Values by name may be "nan" or "inf": as a string, since JSON has no such number.
    """
    if is_typeddict(hint):
        return _table(get_type_hints(hint), needed=())
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        return schema.literal_schema(list(args))
    if origin in (Union, UnionType):
        return schema.union_schema([_of(arg, finite=finite) for arg in args])
    if (origin, args) == (list, (Any,)):
        return _timing()
    if origin is list:
        return schema.list_schema(_of(args[0], finite=finite))
    if origin is not None:  # a mapping
        return schema.dict_schema(schema.str_schema(), _of(args[1], finite=False))
    plain: dict[Any, schema.CoreSchema] = {
        str: schema.str_schema(strict=True),
        int: schema.int_schema(strict=True, gt=-INTEGER, lt=INTEGER),
        float: schema.float_schema(strict=finite, allow_inf_nan=not finite),
        bool: schema.bool_schema(strict=True),
        NoneType: schema.none_schema(),
    }
    return plain.get(hint, schema.any_schema())
