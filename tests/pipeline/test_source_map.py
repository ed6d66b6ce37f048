"""Every key has its line, however the file is laid out: tried on files written in all the styles that TOML has."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
import tomli
from hypothesis import given, settings
from hypothesis import strategies as st

from hookflow.errors import Where
from hookflow.pipeline.source_map import SourceMap, dotted, split_key

KEYS = ("a", "b-1", "0", "c.d", "e f", 'q"uote', "é", "a#b=[")
MARK = re.compile(r"mark\d+")


class Writer:
    """Writes random TOML in which every leaf is (or holds) a mark that stands nowhere else in the text."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.marks = count(100)

    def one_of(self, *choices: Any) -> Any:
        return self.draw(st.sampled_from(choices))

    def key(self, name: str) -> str:
        bare = [name] if re.fullmatch(r"[A-Za-z0-9_-]+", name) else []
        return self.one_of(*bare, json.dumps(name, ensure_ascii=False), f"'{name}'")

    def names(self) -> list[str]:
        return self.draw(st.lists(st.sampled_from(KEYS), unique=True, max_size=3))

    def leaf(self) -> str:
        mark = f"mark{next(self.marks)}"
        return self.one_of(
            f'"{mark} \\" # ] }} , ="',
            f"'{mark} \" \\'",
            f'"""{mark} ""\n [x] \\"""\n y = 1"""""',
            f"'''{mark} '' \n[[x]]\n''''",
            f'"{mark}" ',
        )

    def gap(self) -> str:
        return self.one_of("", " ", "\n", " # ]}, '\"\n", "\n\n\t")

    def value(self, depth: int) -> str:
        kind = self.one_of("leaf", "leaf", "plain", "list", "table") if depth else "leaf"
        if kind == "list":
            items = [self.value(depth - 1) for _ in range(self.one_of(0, 1, 3))]
            joined = "".join(f"{self.gap()}{item}{self.gap()}," for item in items)
            return f"[{joined[: self.one_of(None, -1)]}{self.gap()}]"
        if kind == "table":
            return "{" + ", ".join(f"{self.key(name)} = {self.value(depth - 1)}" for name in self.names()) + "}"
        if kind == "plain":
            return self.one_of("1_000", "-2.5e-3", "true", "inf", "2024-01-01 12:30:00Z", "2024-01-01", "0xff")
        return self.leaf()

    def document(self) -> str:
        lines = [*self.pairs()]
        for head in self.draw(st.lists(st.sampled_from(["t1", "t2", "t3"]), unique=True)):
            if self.one_of(True, False):
                for _ in range(self.one_of(1, 3)):
                    lines += [
                        f"{self.gap()}[[ {head}]] # list",
                        *self.pairs(),
                        f"[{head} . 'sub table']",
                        *self.pairs(),
                    ]
                    lines += [f"[[{head}.list]]", *self.pairs()] * self.one_of(0, 1)
            else:
                lines += [f"[{head}.x]", *self.pairs(), f"  [ {head} . y.z ]", *self.pairs()]
        return "\n".join(lines) + self.one_of("", "\n", " # the end")

    def pairs(self) -> Iterator[str]:
        for name in self.names():
            dots = "".join(f"{self.one_of('.', ' . ')}{self.key(inner)}" for inner in self.names()[:2])
            yield f"{self.one_of('', '  ')}{self.key(name)}{dots}{self.one_of('=', ' = ')}{self.value(2)}{self.gap()}"


@st.composite
def documents(draw: st.DrawFn) -> str:
    """Text that a parser takes."""
    text = Writer(draw).document()
    return text.replace("\n", "\r\n") if draw(st.booleans()) else text


def leaves(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if items is None:
        yield path, value
    else:
        for key, item in items:
            yield from leaves(item, (*path, key))


@settings(deadline=None)  # no test of ours is about time
@given(documents())
def test_every_leaf_stands_where_it_is_told(text: str) -> None:
    places = SourceMap.in_text(text, "f.toml")
    lines = text.split("\n")
    for path, value in leaves(tomli.loads(text)):
        where = places.of(path)
        assert where.line, path
        line = lines[where.line - 1]
        if isinstance(value, str):
            assert MARK.match(value)[0] in line  # type: ignore[index]
        if isinstance(path[-1], str):
            assert written_key(line[where.column - 1 :]) == path[-1]
        elif isinstance(value, str):
            assert line[where.column - 1 :].lstrip("\"'").startswith(MARK.match(value)[0])  # type: ignore[index]


def written_key(text: str) -> str:
    """Return the first name of the key that the text begins with."""
    if text.startswith('"'):
        return json.JSONDecoder().raw_decode(text)[0]
    quoted = re.match(r"'([^']*)'", text)
    return quoted[1] if quoted else re.match(r"[\w-]+", text)[0]  # type: ignore[index]


TEXT = """\
[hooks.log]
points = [
  "after_val",
  { at = "after_train_iter",
    after = ["ema",
      "clip"] },
]

[[optimizer.groups]]
match = "a"
[[optimizer.groups]]
match = "b"
"""


@pytest.mark.parametrize(
    ("key", "line", "column"),
    [
        ("hooks", 1, 2),
        ("hooks.log", 1, 8),
        ("hooks.log.points", 2, 1),
        ("hooks.log.points.0", 3, 3),
        ("hooks.log.points.1", 4, 3),
        ("hooks.log.points.1.at", 4, 5),
        ("hooks.log.points.1.after.0", 5, 14),
        ("hooks.log.points.1.after.1", 6, 7),
        ("optimizer.groups", 9, 13),
        ("optimizer.groups.0.match", 10, 1),
        ("optimizer.groups.1", 11, 13),
        ("optimizer.groups.1.match", 12, 1),
        ("optimizer.groups.1.args.lr", 11, 13),
        ("hooks.log.every", 1, 8),
        ("data.train", 0, 0),
    ],
)
def test_what_has_no_place_of_its_own_stands_in_what_encloses_it(key: str, line: int, column: int) -> None:
    assert SourceMap.in_text(TEXT, "p.toml").of(key) == Where("p.toml", line, column)


def test_a_value_put_elsewhere_takes_all_below_it_along() -> None:
    places = SourceMap.in_text(TEXT, "p.toml")
    here = Where("--set x")
    places.put(("hooks", "log", "points"), here)
    places.put(("data", "val", "use"), here)
    assert places.of("hooks.log.points.1.at") == here
    assert places.of("hooks.log") == Where("p.toml", 1, 8)
    assert places.of("data.val") == here


def test_places_are_taken_from_another_file() -> None:
    places, other = (
        SourceMap.in_text(TEXT, "p.toml"),
        SourceMap.in_text("\n[hooks.log]\npoints = ['x']\n[a.b]\nc = 1", "q.toml"),
    )
    places.take(("hooks", "log", "points"), other)
    places.take(("a", "b", "c"), other)
    assert places.of("hooks.log.points.0") == Where("q.toml", 3, 11)
    assert places.of("hooks.log.points.1.at") == Where("q.toml", 3, 1)
    assert places.of("hooks.log") == Where("p.toml", 1, 8)
    assert places.of("a.b.c") == Where("q.toml", 5, 1)


@given(st.lists(st.text(st.characters(codec="utf-8")), min_size=1, max_size=3).map(tuple))
def test_a_key_is_written_so_that_it_is_read_back(key: tuple[str, ...]) -> None:
    assert split_key(f"{dotted(key)} = 1") == (key, "1")


def test_a_key_is_split_from_its_value() -> None:
    assert split_key('a."b.c".0 = x = y ') == (("a", "b.c", "0"), "x = y")


@pytest.mark.parametrize("text", ["", "a", "a.", ".a=1", "a b=1", "=1", '"a=1', "é=1"])
def test_what_is_no_key_and_value_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        split_key(text)
