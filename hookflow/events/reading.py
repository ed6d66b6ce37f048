"""Strict reading of files in run directories: only regular ones, and whatever is wrong in their JSON is a ValueError.

The records of a log are validated against their declarations in `hookflow.events.records`, so that readers can rely on
their types and bounds. Keys that are left out get `DEFAULTS`; unknown keys and kinds are let through. pydantic_core
alone validates: to import pydantic takes longer than a command that reads a run.
"""

import errno
import os
import stat
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, BinaryIO, Literal, Union, cast, get_args, get_origin, get_type_hints, is_typeddict

from pydantic_core import PydanticCustomError, SchemaValidator, ValidationError, from_json
from pydantic_core import core_schema as schema

from hookflow.events.packing import BINS, stamps
from hookflow.events.records import (
    TEXT_LIMIT,
    Acknowledged,
    Column,
    CommandRecord,
    DataInfo,
    End,
    Error,
    Frame,
    Histogram,
    OnDevice,
    Record,
    Run,
    Scalars,
    Stamp,
)

INTEGER = 1 << 63
LATEST = 1e11
"""Integers and times (in seconds) of a log are smaller than these."""

DEFAULTS: Mapping[type, Mapping[str, Any]] = {
    Run: {
        **dict.fromkeys(("pipeline", "host", "python", "torch", "device", "precision", "model", "strategy"), ""),
        **dict.fromkeys(("it", "ep", "version", "pid", "params", "seed", "max_epochs", "max_iters"), 0),
        **dict.fromkeys(("iters_per_epoch", "rank"), 0),
        **{key: {} for key in ("data", "limited", "modes")},
        **dict.fromkeys(("resumed_from", "forked_from")),
        "layers": [],
        "world": 1,
    },
    DataInfo: {"name": "", "examples": 0, "batches": 0, "batch_size": 0, "synthetic": False, "note": ""},
    Error: {"at": "", "causes": ""},
    OnDevice: {"launch_bound": 0},
    Acknowledged: {"args": []},
    CommandRecord: {"args": []},
    End: {"status": "failed", "exit": 1, "reason": "", "seconds": 0.0},
}
"""Defaults of keys that may be left out, by record; `elapsed` of a frame and the `Rows` may be, too, without one."""


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading. Raises OSError where there is none, or where it is a pipe, a socket or a device."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe would wait for who writes to it
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        raise OSError(errno.ENXIO, "not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


def read_regular(path: Path) -> bytes:
    """Return what is in a file, as `open_regular` opens it."""
    with open_regular(path) as file:
        return file.read()


def read_json(text: str | bytes, *, nan: bool = False) -> Any:
    """Return the value of a JSON text; with `nan`, NaN and infinities are allowed. Raises ValueError."""
    try:
        return from_json(text, allow_inf_nan=nan)
    except RecursionError:  # nothing that hookflow writes is nested so deep
        raise ValueError("nested too deep") from None


def read_object(text: str | bytes, *, nan: bool = False) -> dict[str, Any]:
    """Return the JSON object of a text, as `read_json` does. Raises ValueError where it is anything else."""
    result = read_json(text, nan=nan)
    if not isinstance(result, dict):
        raise ValueError("no JSON object")
    return result


def read_record(line: str | bytes) -> Record:
    """Return the record of a line of an event log. Raises ValueError where it is not what its kind declares."""
    result = read_object(line)
    kinds, kind = _kinds(), str(result.get("k"))
    try:
        return cast("Record", valid(kinds.get(kind, kinds[""]), result))
    except ValueError as error:
        raise ValueError(f'record "{kind[:40]}": {error}') from None


def read_command(line: str | bytes) -> CommandRecord:
    """Return the command of a line of a command log. Raises ValueError where it is none."""
    return cast("CommandRecord", valid(_kinds()["command"], read_object(line)))


def valid(validator: SchemaValidator, result: dict[str, Any]) -> Any:
    """Return a validated object. Raises ValueError with what is wrong."""
    try:
        return result | validator.validate_python(result)  # keeps the order in which it was written
    except ValidationError as error:
        (first, *_) = error.errors()
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"{place}: {first['msg']}" if place else first["msg"]) from None


@cache
def _kinds() -> dict[str, SchemaValidator]:
    """Return the validators by kind; "" is for unknown kinds."""
    validators = {get_args(get_type_hints(kind)["k"])[0]: SchemaValidator(_of(kind)) for kind in get_args(Record)}
    validators[""] = SchemaValidator(_table({"k": str} | _hints(Stamp), needed={"k", "t"}))
    return {**validators, "command": SchemaValidator(_of(CommandRecord))}


def validator_of(kind: type, needed: Iterable[str]) -> SchemaValidator:
    """Return the validator of a TypedDict of whose keys some are needed."""
    return SchemaValidator(_table(_hints(kind), needed))


def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _table(hints: Mapping[str, Any], needed: Iterable[str], defaults: Mapping[str, Any] = {}) -> schema.CoreSchema:
    required, types = frozenset(needed), {key: _of(hint) for key, hint in hints.items()}
    if "t" in types:
        types["t"] = schema.float_schema(strict=True, ge=0, lt=LATEST, allow_inf_nan=False)
    types |= {key: schema.with_default_schema(types[key], default=value) for key, value in defaults.items()}
    fields = {key: schema.typed_dict_field(type_, required=key in required) for key, type_ in types.items()}
    return schema.typed_dict_schema(fields, extra_behavior="allow")


def _with_edges(record: Histogram) -> Histogram:
    edges = record["edges"]
    if len(edges) != len(record["counts"]) + 1 or sorted(edges) != edges:
        raise PydanticCustomError("edges", "edges that do not fit the bins")
    return record


def _with_rows(record: Scalars) -> Scalars:
    rows = record.get("rows", 1)
    between = [steps for steps in (record.get("steps"), record.get("ms")) if isinstance(steps, list)]
    lists = [column for column in record["v"].values() if isinstance(column, list)]
    sparse = [column for column in record["v"].values() if isinstance(column, dict)]
    fits = all(len(steps) == rows - 1 for steps in between) and all(len(column) == rows for column in lists)
    if not fits or any(int(place) >= rows for column in sparse for place in column):
        raise PydanticCustomError("rows", "columns that do not fit the rows")
    its = stamps(record, record["it"], record.get("steps", 0))
    if min(its) < 0 or max(its) >= INTEGER:
        raise PydanticCustomError("steps", "steps from an iteration that no run has")
    return record


def _with_figures(record: Frame) -> Frame:
    if "beside" in record and any(len(figures) != 5 for figures in record["beside"].values()):
        raise PydanticCustomError("beside", "firings beside the training without their five figures")
    if "device" in record and any(len(figures) != 2 for figures in record["device"]["hooks"].values()):
        raise PydanticCustomError("device", "firings on the device without their two figures")
    return record


FITTING: Mapping[type, Any] = {Frame: _with_figures, Histogram: _with_edges, Scalars: _with_rows}
"""Further checks of a record whose fields are valid."""


def _integer(bounds: range) -> schema.CoreSchema:
    return schema.int_schema(strict=True, ge=bounds.start, lt=bounds.stop)


def _string(pattern: str | None = None) -> schema.CoreSchema:
    return schema.str_schema(strict=True, max_length=TEXT_LIMIT, pattern=pattern)


def _of(hint: Any) -> schema.CoreSchema:
    """Return the schema of a type in a record's declaration; values of mappings may be the strings "nan" and "inf"."""
    if is_typeddict(hint):
        hints, defaults = _hints(hint), DEFAULTS.get(hint, {})
        table = _table(hints, hint.__required_keys__ - defaults.keys() - {"elapsed"}, defaults)
        return schema.no_info_after_validator_function(FITTING[hint], table) if hint in FITTING else table
    if hint == Column:
        value, place = schema.float_schema(), _string(r"^[0-9]{1,4}$")
        columns: list[schema.CoreSchema] = [schema.list_schema(value), value, schema.dict_schema(place, value)]
        return schema.union_schema([*columns], mode="left_to_right")
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _integer(args[1]) if args[0] is int else _string(args[1])
    if origin is Literal:
        return schema.literal_schema(list(args))
    if origin in (Union, UnionType):
        return schema.union_schema([_of(arg) for arg in args], mode="left_to_right")
    if (origin, args) == (list, (Any,)):  # [how many, total ns, longest ns, last ns, bins]
        number = _integer(range(INTEGER))
        some = [_integer(range(BINS)), _integer(range(-BINS, INTEGER))]
        bins = schema.tuple_schema(some, variadic_item_index=1, max_length=2 * BINS)
        return schema.tuple_schema([*4 * [number], bins])
    if origin is list:
        item = schema.float_schema(strict=True, allow_inf_nan=False) if args[0] is float else _of(args[0])
        return schema.list_schema(item)
    if origin is not None:  # a mapping
        item = schema.float_schema() if args[1] is float else _of(args[1])
        return schema.dict_schema(_of(args[0]), item)
    plain: dict[Any, schema.CoreSchema] = {
        str: _string(),
        int: _integer(range(INTEGER)),
        float: schema.float_schema(strict=True, gt=-LATEST, lt=LATEST, allow_inf_nan=False),
        bool: schema.bool_schema(strict=True),
        NoneType: schema.none_schema(),
    }
    return plain[hint]
