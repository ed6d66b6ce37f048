"""Strict reading of files in run directories.

Only regular ones are read, and whatever is wrong in their JSON is a ValueError. The records of a
log are validated against their declarations in `hookflow.events.records`, so that readers can rely
on their types and bounds. Keys that are left out get `KEY_DEFAULTS`; unknown keys and kinds are let
through. pydantic_core alone validates: to import pydantic takes longer than a command that reads a
run.
"""

import errno
import os
import stat
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    BinaryIO,
    Literal,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from pydantic_core import PydanticCustomError, SchemaValidator, ValidationError, from_json
from pydantic_core import core_schema as schema

from hookflow.events.packing import NUM_BINS, compute_stamps
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

INTEGER_LIMIT = 1 << 63
MAX_TIME = 1e11
"""Integers and times (in seconds) of a log are smaller than these."""

KEY_DEFAULTS: Mapping[type, Mapping[str, Any]] = {
    Run: {
        **dict.fromkeys(
            ("pipeline", "host", "python", "torch", "device", "precision", "model", "strategy"), ""
        ),
        **dict.fromkeys(
            ("it", "ep", "version", "pid", "params", "seed", "max_epochs", "max_iters"), 0
        ),
        **dict.fromkeys(("iters_per_epoch", "rank"), 0),
        **{key: {} for key in ("data", "limited", "modes")},
        **dict.fromkeys(("resumed_from", "forked_from")),
        "layers": [],
        "epoch_lengths": [],
        "world": 1,
    },
    DataInfo: {
        "name": "",
        "examples": 0,
        "batches": 0,
        "batch_size": 0,
        "synthetic": False,
        "note": "",
    },
    Error: {"at": "", "causes": ""},
    OnDevice: {"launch_bound": 0},
    Acknowledged: {"args": []},
    CommandRecord: {"args": []},
    End: {"status": "failed", "exit": 1, "reason": "", "seconds": 0.0},
}
"""Defaults of keys that may be left out, by record;
`elapsed` of a frame and the `Rows` may be, too, without one.
"""


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading.

    Raises OSError where there is none, or where it is a pipe, a socket or a device.
    """
    # Without O_NONBLOCK, opening a pipe would wait for a process that writes to it.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
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
    """Return the value of a JSON text; with `nan`, NaN and infinities are allowed.

    Raises ValueError.
    """
    try:
        return from_json(text, allow_inf_nan=nan)
    except RecursionError:  # nothing that hookflow writes is nested so deep
        raise ValueError("nested too deep") from None


def read_object(text: str | bytes, *, nan: bool = False) -> dict[str, Any]:
    """Return the JSON object of a text, as `read_json` does.

    Raises ValueError where it is anything else.
    """
    result = read_json(text, nan=nan)
    if not isinstance(result, dict):
        raise ValueError("no JSON object")
    return result


def read_record(line: str | bytes) -> Record:
    """Return the record of a line of an event log.

    Raises ValueError where it is not what its kind declares.
    """
    result = read_object(line)
    kind = str(result.get("k"))
    validators = _make_validators()
    validator = validators.get(kind, validators[UNKNOWN_KIND])
    try:
        return cast("Record", valid(validator, result))
    except ValueError as error:
        raise ValueError(f'record "{kind[:40]}": {error}') from None


def read_command(line: str | bytes) -> CommandRecord:
    """Return the command of a line of a command log. Raises ValueError where it is none."""
    return cast("CommandRecord", valid(_make_validators()["command"], read_object(line)))


def valid(validator: SchemaValidator, result: dict[str, Any]) -> Any:
    """Return a validated object. Raises ValueError with what is wrong."""
    try:
        return result | validator.validate_python(result)  # keeps the order in which it was written
    except ValidationError as error:
        first = error.errors()[0]
        message = first["msg"]
        place = ".".join(str(part) for part in first["loc"])
        if place:
            message = f"{place}: {message}"
        raise ValueError(message) from None


UNKNOWN_KIND = ""
"""The key of the validator for records of kinds that this version does not know."""


@cache
def _make_validators() -> dict[str, SchemaValidator]:
    validators = {}
    for record_type in get_args(Record):
        (kind,) = get_args(get_type_hints(record_type)["k"])
        validators[kind] = SchemaValidator(_schema_of(record_type))
    stamp_fields = {"k": str, **_read_type_hints(Stamp)}
    validators[UNKNOWN_KIND] = SchemaValidator(_table_schema(stamp_fields, needed={"k", "t"}))
    validators["command"] = SchemaValidator(_schema_of(CommandRecord))
    return validators


def validator_of(kind: type, needed: Iterable[str]) -> SchemaValidator:
    """Return the validator of a TypedDict of whose keys some are needed."""
    return SchemaValidator(_table_schema(_read_type_hints(kind), needed))


def _read_type_hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _table_schema(
    hints: Mapping[str, Any], needed: Iterable[str], defaults: Mapping[str, Any] = {}
) -> schema.CoreSchema:
    required = frozenset(needed)
    fields = {}
    for key, hint in hints.items():
        if key == "t":
            value_schema: schema.CoreSchema = schema.float_schema(
                strict=True, ge=0, lt=MAX_TIME, allow_inf_nan=False
            )
        else:
            value_schema = _schema_of(hint)
        if key in defaults:
            value_schema = schema.with_default_schema(value_schema, default=defaults[key])
        fields[key] = schema.typed_dict_field(value_schema, required=key in required)
    return schema.typed_dict_schema(fields, extra_behavior="allow")


def _check_edges(record: Histogram) -> Histogram:
    edges = record["edges"]
    if len(edges) != len(record["counts"]) + 1 or sorted(edges) != edges:
        raise PydanticCustomError("edges", "edges that do not fit the bins")
    return record


def _check_rows(record: Scalars) -> Scalars:
    num_rows = record.get("rows", 1)
    for steps in (record.get("steps"), record.get("ms")):
        if isinstance(steps, list) and len(steps) != num_rows - 1:
            raise _make_row_error()
    for column in record["v"].values():
        if isinstance(column, list) and len(column) != num_rows:
            raise _make_row_error()
        if isinstance(column, dict) and any(int(place) >= num_rows for place in column):
            raise _make_row_error()
    iterations = compute_stamps(record, record["it"], record.get("steps", 0))
    if min(iterations) < 0 or max(iterations) >= INTEGER_LIMIT:
        raise PydanticCustomError("steps", "steps from an iteration that no run has")
    return record


def _make_row_error() -> PydanticCustomError:
    return PydanticCustomError("rows", "columns that do not fit the rows")


def _check_figures(record: Frame) -> Frame:
    if "beside" in record and any(len(figures) != 5 for figures in record["beside"].values()):
        raise PydanticCustomError(
            "beside", "firings beside the training without their five figures"
        )
    if "device" in record and any(
        len(figures) != 2 for figures in record["device"]["hooks"].values()
    ):
        raise PydanticCustomError("device", "firings on the device without their two figures")
    return record


FURTHER_CHECKS: Mapping[type, Any] = {
    Frame: _check_figures,
    Histogram: _check_edges,
    Scalars: _check_rows,
}
"""Checks of a record whose fields are valid, one by one."""


def _integer_schema(bounds: range) -> schema.CoreSchema:
    return schema.int_schema(strict=True, ge=bounds.start, lt=bounds.stop)


def _string_schema(pattern: str | None = None) -> schema.CoreSchema:
    return schema.str_schema(strict=True, max_length=TEXT_LIMIT, pattern=pattern)


def _number_schema() -> schema.CoreSchema:
    """Return the schema of a finite number."""
    return schema.float_schema(strict=True, allow_inf_nan=False)


def _schema_of(hint: Any) -> schema.CoreSchema:
    """Return the schema of a type in a record's declaration.

    Values of mappings may be the strings "nan" and "inf".
    """
    if is_typeddict(hint):
        return _record_schema(hint)
    if hint == Column:
        return _make_column_schema()
    origin = get_origin(hint)
    args = get_args(hint)
    if origin is Annotated:
        kind, bounds = args
        return _integer_schema(bounds) if kind is int else _string_schema(bounds)
    if origin is Literal:
        return schema.literal_schema(list(args))
    if origin in (Union, UnionType):
        return schema.union_schema([_schema_of(arg) for arg in args], mode="left_to_right")
    if origin is list and args == (Any,):
        return _make_firings_schema()
    if origin is list:
        return schema.list_schema(_number_schema() if args[0] is float else _schema_of(args[0]))
    if origin is tuple:
        return schema.tuple_schema([_schema_of(arg) for arg in args])
    if origin is not None:  # a mapping
        key_type, value_type = args
        value_schema = schema.float_schema() if value_type is float else _schema_of(value_type)
        return schema.dict_schema(_schema_of(key_type), value_schema)
    return _plain_schemas()[hint]


@cache
def _plain_schemas() -> dict[Any, schema.CoreSchema]:
    return {
        str: _string_schema(),
        int: _integer_schema(range(INTEGER_LIMIT)),
        float: schema.float_schema(strict=True, gt=-MAX_TIME, lt=MAX_TIME, allow_inf_nan=False),
        bool: schema.bool_schema(strict=True),
        NoneType: schema.none_schema(),
    }


def _record_schema(record_type: Any) -> schema.CoreSchema:
    defaults = KEY_DEFAULTS.get(record_type, {})
    needed = record_type.__required_keys__ - defaults.keys() - {"elapsed"}
    table = _table_schema(_read_type_hints(record_type), needed, defaults)
    if record_type in FURTHER_CHECKS:
        return schema.no_info_after_validator_function(FURTHER_CHECKS[record_type], table)
    return table


def _make_column_schema() -> schema.CoreSchema:
    """Return the schema of a column of scalars.

    It is a number for each row, one for all, or numbers by row.
    """
    value = schema.float_schema()
    row = _string_schema(r"^[0-9]{1,4}$")
    forms: list[schema.CoreSchema] = [
        schema.list_schema(value),
        value,
        schema.dict_schema(row, value),
    ]
    return schema.union_schema([*forms], mode="left_to_right")


def _make_firings_schema() -> schema.CoreSchema:
    """Return the schema of a hook's firings: [how many, total ns, longest ns, last ns, bins]."""
    number = _integer_schema(range(INTEGER_LIMIT))
    first_bin = _integer_schema(range(NUM_BINS))
    count = _integer_schema(range(-NUM_BINS, INTEGER_LIMIT))
    bins = schema.tuple_schema([first_bin, count], variadic_item_index=1, max_length=2 * NUM_BINS)
    return schema.tuple_schema([number, number, number, number, bins])
