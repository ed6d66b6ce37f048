"""How a user's mistake is shown: place, line, hint; in colour only when asked for."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from hookflow.errors import Problem, UserError, Where, first_few, nearest, nearest_or_all
from hookflow.text import SHOWN, Excerpt, printable, wrapped, wrapped_phrases
from hookflow.user_code import explained, innermost


def test_a_problem_shows_the_line_that_the_user_wrote(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_text('a = 1\n  b = "x\u2028y"\r\n\n', "utf-8")
    place = str(path)
    printed = f'{place}:2:3: bad\n    2 |   b = "x·y"\n      |   ^\n    mend it'
    assert str(Problem("bad", Where(place, 2, 3), "mend it")) == printed
    assert str(Problem("bad", Where(place, 2))) == f'{place}:2: bad\n    2 | b = "x·y"'
    assert str(Problem("empty", Where(place, 3, 1))) == f"{place}:3:1: empty"
    assert str(Problem("beyond", Where(place, 9))) == f"{place}:9: beyond"
    assert str(Problem("nowhere", Where("gone.toml", 1))) == "gone.toml:1: nowhere"
    assert str(Problem("no place")) == "no place"
    assert str(Problem("a\x1b[31mb\nc", Where("--set x=\x1b[2J"), "try \x07")) == "--set x=·[2J: a·[31mb\nc\n    try ·"
    assert Problem("bad", Where("p.toml", 1), "mend it").show(colour=True).count("\x1b[0m") == 2
    assert UserError([Problem("a"), Problem("b")]).show() == "a\nb\n2 problems"
    assert UserError(Problem("bad", Where("p.toml", 2, 5), "mend it")).to_json() == [
        {"source": "p.toml", "line": 2, "column": 5, "message": "bad", "hint": "mend it"}
    ]


@pytest.mark.parametrize(
    ("line", "column", "shown", "mark"),
    [
        ('after = ["ema", "clip"]', 17, 'after = ["ema", "clip"]', "                ^^^^^^"),
        ("k = [1.5e-3, 2]", 6, "k = [1.5e-3, 2]", "     ^^^^^^"),
        ('k = ["\ttab", x]', 6, 'k = ["    tab", x]', "     ^^^^^^^^^"),
        ('"名前" = "é"', 1, '"名前" = "é"', "^^^^^^"),
        ('"e\u0301" = { x = 1 }', 9, '"e\u0301" = { x = 1 }', "       ^"),
        ('use = "open', 12, 'use = "open', "           ^"),
        ("x = \x1b[31m", 5, "x = ·[31m", "    ^"),
        ("  indented", 0, "indented", ""),
    ],
)
def test_the_place_is_marked_cell_by_cell(line: str, column: int, shown: str, mark: str) -> None:
    excerpt = Excerpt.around(line, column)
    assert excerpt.text == shown
    assert " " * excerpt.indent + "^" * excerpt.width == mark


@pytest.mark.parametrize("column", [0, 95, 206])
def test_a_long_line_is_cut_around_the_place(column: int) -> None:
    line = "x = { " + ", ".join(f"k{n} = {n}" for n in range(10, 40)) + " }"
    excerpt = Excerpt.around(line, column)
    assert len(excerpt.text) <= SHOWN
    assert excerpt.text.endswith("…") or line.endswith(excerpt.text[-30:])
    assert excerpt.text.startswith("…") or line.startswith(excerpt.text[:30])
    if column:
        assert excerpt.text[excerpt.indent] == line[column - 1]


def test_the_nearest_name_is_found_whatever_its_case_and_where_none_is_near_all_are_listed() -> None:
    assert nearest("ema", ["EMA", "swa"]) == 'did you mean "EMA"?'
    assert nearest("xyz", ["EMA", "swa"]) == ""
    assert nearest_or_all("ema", ["EMA", "swa"], "it has") == 'did you mean "EMA"?'
    assert nearest_or_all("xyz", iter(["EMA", "swa"]), "it has") == "it has EMA, swa"
    assert first_few("abcd", 3) == "a, b, c, …"


@given(st.lists(st.text(), max_size=4), st.integers(2, 30))
def test_wrapped_lines_keep_every_character_within_their_width(texts: list[str], width: int) -> None:
    phrases = [printable(text) for text in texts]
    for lines in (wrapped(" ".join(phrases), width), wrapped_phrases(phrases, width)):
        assert all(cell_len(line) <= width for line in lines)
        assert "".join(lines).replace(" ", "") == "".join(phrases).replace(" ", "")


def test_of_what_pytorch_raises_the_line_that_called_it_is_named() -> None:
    """Also of a worker of a loader: its traceback comes as a text, a note of the exception."""
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied") as caught:
        torch.nn.Linear(2, 2)(torch.ones(1, 3))  # here
    file, _, line = innermost("".join(traceback.format_exception(caught.value))).rpartition(":")
    assert file == __file__
    assert Path(file).read_text().splitlines()[int(line) - 1].endswith("# here")
    outer = 'Traceback\n  File "/x/lib/python3.11/site-packages/torch/utils.py", line 3, in reraise\n'
    worker = (
        'WorkerError: worker 0: no\nOriginal Traceback:\n  File "/home/me/data.py", line 9, in __getitem__\n    no\n'
    )
    assert innermost(outer + worker) == "/home/me/data.py:9"
    assert innermost(outer) == "/x/lib/python3.11/site-packages/torch/utils.py:3", "where no frame is the user's"
    assert innermost("nothing was raised") == ""


class OddError(Exception):
    """An exception that cannot be shown."""

    def __str__(self) -> str:
        raise KeyError("no text")


@pytest.mark.parametrize(
    ("outer", "cause", "wanted"),
    [
        (OSError("a"), ValueError("b"), ["OSError: a", "caused by ValueError: b"]),
        (
            OddError(),
            ValueError("b"),
            ["Exception: OddError, which cannot be shown: that raises KeyError", "caused by"],
        ),
        (OSError("a"), None, ["OSError: a", "while handling LookupError: c"]),
    ],
)
def test_an_exception_is_explained_by_its_causes(outer: Exception, cause: Exception | None, wanted: list[str]) -> None:
    try:
        try:
            raise LookupError("c")
        except LookupError:
            raise outer from cause
    except Exception as caught:
        caught.__suppress_context__ = cause is not None
        if cause and caught.args:
            cause.__context__ = caught  # which closes a cycle
        lines = [line for line in explained(caught) if not line.startswith("at ")]
    assert len(lines) == len(wanted)
    assert all(map(str.startswith, lines, wanted))
