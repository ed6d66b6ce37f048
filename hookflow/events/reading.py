"""Strict reading of JSON from run directories: whatever is wrong in it is a ValueError.

Nesting that is too deep, numbers that are too long and NaN are refused, whatever reads them. The records of a log are
held against their declarations in `hookflow.events.records`, so that their readers can rely on those types and bounds.
Keys that an older version left out stand as `UNTOLD`. Keys and kinds that another version added are let through.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin, get_type_hints, is_typeddict

from pydantic_core import PydanticCustomError, SchemaValidator, ValidationError, from_json
from pydantic_core import core_schema as schema

from hookflow.events.histogram import BINS
from hookflow.events.records import (
    TEXT_LIMIT,
    CommandRecord,
    DataInfo,
    End,
    Error,
    Frame,
    Head,
    Histogram,
    Record,
    Run,
    Stamp,
)

INTEGER = 1 << 63
LATEST = 1e11
"""No integer and no time (in seconds, some thousand years) in a log is as large as this."""

MOST = 1 << 18
"""Items that a list or a mapping of a record has at most."""

UNTOLD: Mapping[type, Mapping[str, Any]] = {
    Run: {
        **dict.fromkeys(("pipeline", "host", "python", "torch", "device", "precision", "model", "strategy"), ""),
        **dict.fromkeys(("it", "ep", "version", "pid", "params", "seed", "max_epochs", "max_iters"), 0),
        **{key: {} for key in ("data", "limited", "modes")},
        "iters_per_epoch": 0,
        "resumed_from": None,
        "rank": 0,
        "world": 1,
    },
    DataInfo: {"name": "", "examples": 0, "batches": 0, "batch_size": 0, "synthetic": False, "note": ""},
    Error: {"at": "", "causes": ""},
    End: {"status": "failed", "exit": 1, "reason": "", "seconds": 0.0},
}
"""Defaults for keys that a log of an older version leaves out, by the record that they belong to."""

OLDER: Mapping[type, frozenset[str]] = {Frame: frozenset({"elapsed"})}
"""Keys that an older version left out, and that have no default."""


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
    result = read_json(text, nan=nan)
    if not isinstance(result, dict):
        raise ValueError("no JSON object")
    return result


def read_record(line: str | bytes) -> Record:
    """Return the record of a line of an event log; of a kind that is not known, as it stands.

    Raises ValueError where it is no record, or not what its kind declares.
    """
    result = read_object(line)
    kinds, kind = _kinds(), str(result.get("k"))
    try:
        return cast("Record", valid(kinds.get(kind, kinds[""]), result))
    except ValueError as error:
        raise ValueError(f'record "{kind[:40]}": {error}') from None


def read_head(line: str | bytes) -> Frame:
    """Return the head of a frame, which has no `hooks`. Raises ValueError where it is none."""
    return cast("Frame", valid(_head(), read_object(line)))


def read_command(line: str | bytes) -> CommandRecord:
    """Return the command of a line of a command log. Raises ValueError where it is none."""
    return cast("CommandRecord", valid(_command(), read_object(line)))


def is_torn(error: ValueError) -> bool:
    """Say whether a line could not be read because it has no end: the process that wrote it was killed."""
    return str(error).startswith("EOF")


def is_string(value: object) -> bool:
    """Say whether this is a string."""
    return isinstance(value, str)


def is_time(value: object) -> bool:
    """Say whether this is a time in seconds that a clock may show."""
    return isinstance(value, int | float) and 0 <= value < LATEST


def only_of(checks: Mapping[str, Callable[[Any], bool]], result: object) -> dict[str, Any]:
    """Return an object without the keys whose values do not pass their check; nothing where it is no object."""
    if not isinstance(result, Mapping):
        return {}
    return {key: value for key, value in result.items() if key not in checks or checks[key](value)}


def valid(validator: SchemaValidator, result: dict[str, Any]) -> Any:
    """Return what was found, as a `validator_of` its type takes it. Raises ValueError, which says what is wrong."""
    try:
        return result | validator.validate_python(result)  # in the order in which it was written
    except ValidationError as error:
        (first, *_) = error.errors()
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"{place}: {first['msg']}" if place else first["msg"]) from None


@cache
def _kinds() -> dict[str, SchemaValidator]:
    """Return what holds a record against its kind; under "" what holds for every kind."""
    declared = {get_args(get_type_hints(kind)["k"])[0]: kind for kind in get_args(Record)}
    every = SchemaValidator(_table({"k": str} | _hints(Stamp), needed={"k", "t"}))
    return {"": every, **{name: SchemaValidator(_of(kind)) for name, kind in declared.items()}}


@cache
def _head() -> SchemaValidator:
    return SchemaValidator(_of(Head))


@cache
def _command() -> SchemaValidator:
    hints = _hints(CommandRecord) | {"cmd": str}  # one that is not known is refused by the run
    return SchemaValidator(_table(hints, needed=hints))


def validator_of(kind: type, needed: Iterable[str]) -> SchemaValidator:
    """Return what holds an object against a TypedDict, of whose keys some are needed."""
    return SchemaValidator(_table(_hints(kind), needed))


def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _table(hints: Mapping[str, Any], needed: Iterable[str], untold: Mapping[str, Any] = {}) -> schema.CoreSchema:
    required = frozenset(needed)
    types = {key: _of(hint) for key, hint in hints.items()}
    if "t" in types:
        types["t"] = schema.float_schema(strict=True, ge=0, lt=LATEST, allow_inf_nan=False)
    types |= {key: schema.with_default_schema(types[key], default=value) for key, value in untold.items()}
    fields = {key: schema.typed_dict_field(type_, required=key in required) for key, type_ in types.items()}
    return schema.typed_dict_schema(fields, extra_behavior="allow")


def _record(kind: type) -> schema.CoreSchema:
    """Return what an object of a record's declaration stands for: all keys are needed but those that are `UNTOLD`."""
    untold = UNTOLD.get(kind, {})
    table = _table(hints := _hints(kind), hints.keys() - untold.keys() - OLDER.get(kind, set()), untold)
    return schema.no_info_after_validator_function(_fitting, table) if kind is Histogram else table


def _fitting(record: Histogram) -> Histogram:
    edges = record["edges"]
    if len(edges) != len(record["counts"]) + 1 or sorted(edges) != edges:
        raise PydanticCustomError("edges", "edges that do not fit the bins")
    return record


def _timing() -> schema.CoreSchema:
    """Return what stands for [how many, total ns, longest ns, last ns, {bin: count}]."""
    number = _integer(range(INTEGER))
    bins = schema.dict_schema(_string(r"^(1?[0-9]{1,2}|2[0-4][0-9]|25[0-5])$"), number, max_length=BINS)
    return schema.tuple_schema([*4 * [number], bins])


def _integer(bounds: range) -> schema.CoreSchema:
    return schema.int_schema(strict=True, ge=bounds.start, lt=bounds.stop)


def _string(pattern: str | None = None) -> schema.CoreSchema:
    return schema.str_schema(strict=True, max_length=TEXT_LIMIT, pattern=pattern)


def _of(hint: Any) -> schema.CoreSchema:
    """Return what a type of a record's declaration stands for.

    Values by name may be "nan" or "inf": as a string, since JSON has no such number.
    """
    if is_typeddict(hint):
        return _record(hint)
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _integer(args[1]) if args[0] is int else _string(args[1])
    if origin is Literal:
        return schema.literal_schema(list(args))
    if origin in (Union, UnionType):
        return schema.union_schema([_of(arg) for arg in args])
    if (origin, args) == (list, (Any,)):
        return _timing()
    if origin is list:
        item = schema.float_schema(strict=True, allow_inf_nan=False) if args[0] is float else _of(args[0])
        return schema.list_schema(item, max_length=MOST)
    if origin is not None:  # a mapping
        item = schema.float_schema() if args[1] is float else _of(args[1])
        return schema.dict_schema(_of(args[0]), item, max_length=MOST)
    plain: dict[Any, schema.CoreSchema] = {
        str: _string(),
        int: _integer(range(INTEGER)),
        float: schema.float_schema(strict=True, gt=-LATEST, lt=LATEST, allow_inf_nan=False),
        bool: schema.bool_schema(strict=True),
        NoneType: schema.none_schema(),
    }
    return plain[hint]
