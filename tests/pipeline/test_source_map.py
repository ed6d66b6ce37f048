"""Every key has its line, however the file is laid out,
and keys are put into a file that stays as it is written.
"""

import json
import re
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
import tomli
from hypothesis import given
from hypothesis import strategies as st

from hookflow.cli.observe_report import with_key
from hookflow.errors import Where
from hookflow.pipeline.source_map import SourceMap, format_key, split_key

KEYS = ("a", "b-1", "0", "c.d", "e f", 'q"uote', "é", "a#b=[")
MARK = re.compile(r"mark\d+")
BARE = re.compile(r"[A-Za-z0-9_-]+")


TEXTS = (
    '"{} \\" # ] }} , ="',
    "'{} \" \\'",
    '"""{} ""\n [x] \\"""\n y = 1"""""',
    "'''{} '' \n[[x]]\n''''",
)
GAPS = ("", " ", "\n", " # ]}, '\"\n", "\n\n\t")
PLAIN = ("1_000", "-2.5e-3", "true", "inf", "2024-01-01 12:30:00Z", "2024-01-01", "0xff")


@st.composite
def documents(draw: st.DrawFn) -> str:
    """Return random TOML in which every text begins with a mark that stands nowhere else."""
    marks = count(100)

    def pick(*choices: Any) -> Any:
        return draw(st.sampled_from(choices))

    def keys() -> list[str]:
        names = draw(st.lists(st.sampled_from(KEYS), unique=True, max_size=3))
        return [
            pick(*[n] * bool(BARE.fullmatch(n)), json.dumps(n, ensure_ascii=False), f"'{n}'")
            for n in names
        ]

    def value(depth: int) -> str:
        kind = pick("text", "text", "plain", "list", "table") if depth else "text"
        if kind == "list":
            items = "".join(
                f"{pick(*GAPS)}{value(depth - 1)}{pick(*GAPS)}," for _ in range(pick(0, 1, 3))
            )
            return f"[{items[: pick(None, -1)]}{pick(*GAPS)}]"
        if kind == "table":
            return "{" + ", ".join(f"{key} = {value(depth - 1)}" for key in keys()) + "}"
        return pick(*PLAIN) if kind == "plain" else pick(*TEXTS).format(f"mark{next(marks)}")

    def pairs() -> Iterator[str]:
        for key in keys():
            dots = "".join(f"{pick('.', ' . ')}{inner}" for inner in keys()[:2])
            yield f"{pick('', '  ')}{key}{dots}{pick('=', ' = ')}{value(2)}{pick(*GAPS)}"

    lines = [*pairs()]
    for head in draw(st.lists(st.sampled_from(["t1", "t2"]), unique=True)):
        if pick(True, False):
            for _ in range(pick(1, 2)):
                lines += [
                    f"{pick(*GAPS)}[[ {head}]] # list",
                    *pairs(),
                    f"[{head} . 'sub table']",
                    *pairs(),
                ]
                lines += [f"[[{head}.list]]", *pairs()] * pick(0, 1)
        else:
            lines += [f"[{head}.x]", *pairs(), f"  [ {head} . y.z ]", *pairs()]
    return ("\r\n" if pick(True, False) else "\n").join("\n".join(lines).split("\n"))


def leaves(
    value: Any, path: tuple[str | int, ...] = ()
) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else None
    )
    if items is None:
        yield path, value
    else:
        for key, item in items:
            yield from leaves(item, (*path, key))


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
            written = re.match(r"\"(?:\\.|[^\"])*\"|'[^']*'|[\w-]+", line[where.column - 1 :])
            assert written and split_key(f"{written[0]}=")[0] == (path[-1],)
        elif isinstance(value, str):
            assert line[where.column - 1 :].lstrip("\"'").startswith(MARK.match(value)[0])  # type: ignore[index]


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
        ("hooks.log.points.1.at", 4, 5),
        ("hooks.log.points.1.after.0", 5, 14),
        ("optimizer.groups.1.match", 12, 1),
        ("optimizer.groups.1.args.lr", 11, 13),
        ("hooks.log.every", 1, 8),
        ("data.train", 0, 0),
    ],
)
def test_what_has_no_place_of_its_own_stands_in_what_encloses_it(
    key: str, line: int, column: int
) -> None:
    assert SourceMap.in_text(TEXT, "p.toml").of(key) == Where("p.toml", line, column)


def test_a_value_put_elsewhere_takes_all_below_it_along() -> None:
    places = SourceMap.in_text(TEXT, "p.toml")
    here = Where("--set x")
    places.put(("hooks", "log", "points"), here)
    places.put(("data", "val", "use"), here)
    assert places.of("hooks.log.points.1.at") == here
    assert places.of("hooks.log") == Where("p.toml", 1, 8)
    assert places.of("data.val") == here
    places.take(("hooks", "log"), SourceMap.in_text("\n[hooks.log]\npoints = ['x']", "q.toml"))
    assert places.of("hooks.log.points.0") == Where("q.toml", 3, 11)
    assert places.of("hooks.log.points.1.at") == Where("q.toml", 3, 1)


@given(st.lists(st.text(st.characters(codec="utf-8")), min_size=1, max_size=3).map(tuple))
def test_a_key_is_written_so_that_it_is_read_back(key: tuple[str, ...]) -> None:
    assert split_key(f"{format_key(key)} = x = y ") == (key, "x = y")


@pytest.mark.parametrize("text", ["", "a", "a.", ".a=1", "a b=1", "=1", '"a=1', "é=1"])
def test_what_is_no_key_and_value_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        split_key(text)


SAVER = ("hooks", "saver")

TABLE = """\
# mine
[hooks.saver]   # it saves
use = "./mine.py:Saver"  # at after_val
args = { often = [
    1, # one
] }

[hooks.saver.nested]
a = 1
[hooks.other]
use = "x"
"""


@pytest.mark.parametrize(
    ("text", "key", "value", "changed"),
    [
        (TABLE, "reads", ["model"], TABLE.replace("] }\n", '] }\nreads = ["model"]\n')),
        (
            '[hooks]\nsaver.use = "a"\nother.use = "b"\n',
            "writes",
            {"after_val": ["lr"]},
            '[hooks]\nsaver.use = "a"\nsaver.writes = { after_val = ["lr"] }\nother.use = "b"\n',
        ),
        (
            '[hooks.saver]\nuse = "a"\nreads = ["lr", # the rate\n]\n',
            "reads",
            ["lr", "model", "metrics.psnr"],
            '[hooks.saver]\nuse = "a"\nreads = ["lr", # the rate\n    "model",\n'
            '    "metrics.psnr",\n]\n',
        ),
        (
            '[hooks.saver]\nreads = { after_val = ["lr"] } #!\n',
            "reads",
            {"after_val": ["lr", "model"], "before_val": ["lr"]},
            '[hooks.saver]\nreads = { after_val = ["lr", "model"], before_val = ["lr"]} #!\n',
        ),
        (
            'extends = "base.toml"',
            "reads",
            ["lr"],
            'extends = "base.toml"\n\n[hooks.saver]\nreads = ["lr"]\n',
        ),
        (
            '[hooks.saver]\r\nuse = "a"\r\n',
            "reads",
            ["lr"],
            '[hooks.saver]\r\nuse = "a"\r\nreads = ["lr"]\r\n',
        ),
    ],
)
def test_a_key_is_put_where_its_table_stands(
    text: str, key: str, value: object, changed: str
) -> None:
    assert with_key(text, SAVER, key, value) == changed


@pytest.mark.parametrize("text", ["hooks = {}\n", "hooks.saver = {}\n", "[hooks]\nsaver = {}\n"])
def test_a_key_is_put_into_an_inline_table(text: str) -> None:
    assert tomli.loads(with_key(text, SAVER, "reads", ["lr"])) == {
        "hooks": {"saver": {"reads": ["lr"]}}
    }
