"""Records of an event log as nobody writes them, made from their types:
most of the values fit, and some do not.
"""

import json
import random
from collections.abc import Callable
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from hookflow.events.packing import NUM_BINS
from hookflow.events.records import PHASES, Record
from tests.support.corruption import ODD

TYPES = {get_args(get_type_hints(kind)["k"])[0]: kind for kind in get_args(Record)}
"""The type of each kind of record."""

MISFITS = [
    *ODD,
    2**31,
    2**63,
    -(2**63),
    1e308,
    "9999",
    "9" * 300,
    "x" * 2_000,
    [0.0] * 300,
    {"": {"": []}},
]
TEXTS = [
    "",
    "loss",
    "train",
    "val",
    "a\x1b[2J\nb",
    "ü" * 400,
    "../../x",
    "checkpoints/it00000002",
    "0",
    *PHASES,
]
INTEGERS = [0, 1, 2, 7, 255, 2**14, 2**31, 2**53, 2**63 - 1]
FLOATS = [0.0, 1.0, 1.5, -1.0, 1e-300, 1e10, -1e10]


def hostile_line(chance: random.Random, misfits: float = 0.02) -> bytes:
    """Return a line of an event log: a record of any kind,
    each of whose parts is a misfit with some probability.
    """
    kind = chance.choice(sorted(TYPES))
    record = _value(TYPES[kind], chance, misfits)
    if isinstance(record, dict) and chance.random() < 0.98:
        record |= {"k": kind, "t": chance.choice([0, 1.8e9, 1.8e9 + chance.random(), 9e10])}
    return json.dumps(record).encode() + b"\n"


def _value(hint: Any, chance: random.Random, misfits: float) -> Any:
    if chance.random() < misfits:
        return chance.choice(MISFITS)
    if is_typeddict(hint):
        hints = get_type_hints(hint, include_extras=True)
        return {
            key: _value(of, chance, misfits)
            for key, of in hints.items()
            if chance.random() >= misfits / 4
        }
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return (
            chance.choice([args[1].start, args[1].stop - 1])
            if args[0] is int
            else str(chance.randrange(40))
        )
    if origin is Literal:
        return chance.choice(args)
    if origin in (Union, UnionType):
        return _value(chance.choice(args), chance, misfits)
    if (origin, args) == (list, (Any,)):
        bins = [
            chance.randrange(NUM_BINS),
            *(chance.choice([*INTEGERS, -1, -NUM_BINS]) for _ in range(chance.randrange(4))),
        ]
        return [*(chance.choice(INTEGERS) for _ in range(4)), bins]
    if origin is list:
        return [_value(args[0], chance, misfits) for _ in range(chance.randrange(6))]
    if origin is not None:  # a mapping
        return {
            _value(args[0], chance, 0): _value(args[1], chance, misfits)
            for _ in range(chance.randrange(6))
        }
    return _PLAIN[hint](chance)


_PLAIN: dict[Any, Callable[[random.Random], Any]] = {
    str: lambda chance: chance.choice(TEXTS),
    int: lambda chance: chance.choice(INTEGERS),
    float: lambda chance: chance.choice(FLOATS),
    bool: lambda chance: chance.random() < 0.5,
    NoneType: lambda chance: None,
}
