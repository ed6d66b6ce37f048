"""Something wrong in a file, at random: whatever reads it must say so, and nothing worse."""

import json
import random
from typing import Any

import pytest

ODD: list[Any] = [
    None,
    True,
    -1,
    7,
    1.5,
    10**30,
    "x",
    "\x1b[31m",
    "../..",
    [],
    [1],
    {},
    {"a": 1},
    [[[[]]]],
    "nan",
    "",
]
RAW = [
    b"",
    b"{",
    b"[]",
    b"null",
    b"1e400",
    b"[" * 50_000,
    b'{"a":' * 50_000,
    b"\xff\xfe\x00",
    b"9" * 5_000,
    b"NaN",
    b"\n\n",
]


def seeds(few: int, many: int = 20_000) -> pytest.MarkDecorator:
    """Give a test its `seeds`: a few, and many others where there is time (`make test-long`)."""
    others = pytest.param(range(1_000, 1_000 + many), marks=pytest.mark.long)
    return pytest.mark.parametrize("seeds", [range(few), others], ids=["few", "many"])


def garbled(data: bytes, chance: random.Random) -> bytes:
    """Return a file with something wrong in it: bytes, a line, or a value of its JSON."""
    kind = chance.randrange(5)
    if kind == 0:
        return chance.choice(RAW)
    if kind == 1:
        return data[: chance.randrange(len(data) + 1)]
    if kind == 2 and data:
        flipped = bytearray(data)
        for _ in range(chance.randrange(1, 8)):
            flipped[chance.randrange(len(flipped))] = chance.randrange(256)
        return bytes(flipped)
    lines = data.splitlines(keepends=True)
    if kind == 3 and lines:
        lines.insert(chance.randrange(len(lines) + 1), chance.choice(RAW) + b"\n")
        return b"".join(lines)
    return other_value(data, chance)


def other_value(data: bytes, chance: random.Random) -> bytes:
    """Return JSON (or JSON lines) with one value swapped for an odd one, taken out,
    or with a key added.
    """
    try:
        whole = [json.loads(data)]
    except ValueError:
        try:
            whole = [json.loads(line) for line in data.splitlines() if line]
        except ValueError:
            return chance.choice(RAW)
    if not whole:
        return chance.choice(RAW)
    place: Any = whole
    key: Any = chance.randrange(len(whole))
    while isinstance(place[key], dict | list) and place[key] and chance.random() < 0.8:
        place = place[key]
        key = (
            chance.choice(list(place)) if isinstance(place, dict) else chance.randrange(len(place))
        )
    if isinstance(place, dict) and chance.random() < 0.2:
        del place[key]
    else:
        place[key] = chance.choice(ODD)
    text = "\n".join(json.dumps(item) for item in whole)
    return (text.replace("1.5", "1e400") if chance.random() < 0.1 else text).encode()
