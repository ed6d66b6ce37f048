"""How a user's mistake is shown: place, line, hint;
also where a file or `--set` holds just anything.
"""

import os
import random
import sys
import time
import traceback
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from hookflow.errors import Problem, UserError, Where, first_few, nearest, nearest_or_all
from hookflow.hooks.compile import compile_pipeline
from hookflow.pipeline import references
from hookflow.pipeline.layers import MOST_BYTES
from hookflow.pipeline.load import load, missing_components
from hookflow.runner.process.launch import new_run
from hookflow.text import EXCERPT_WIDTH, LineExcerpt, make_printable, wrapped, wrapped_phrases
from hookflow.user_code import describe_error, find_innermost_line
from tests.conftest import TESTS, TOY, circle
from tests.support.corruption import seeds


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
    assert (
        str(Problem("a\x1b[31mb\nc", Where("--set x=\x1b[2J"), "try \x07"))
        == "--set x=·[2J: a·[31mb\nc\n    try ·"
    )
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
    excerpt = LineExcerpt.around(line, column)
    assert excerpt.text == shown
    assert " " * excerpt.indent + "^" * excerpt.width == mark


@pytest.mark.parametrize("column", [0, 95, 206])
def test_a_long_line_is_cut_around_the_place(column: int) -> None:
    line = "x = { " + ", ".join(f"k{n} = {n}" for n in range(10, 40)) + " }"
    excerpt = LineExcerpt.around(line, column)
    assert len(excerpt.text) <= EXCERPT_WIDTH
    assert excerpt.text.endswith("…") or line.endswith(excerpt.text[-30:])
    assert excerpt.text.startswith("…") or line.startswith(excerpt.text[:30])
    if column:
        assert excerpt.text[excerpt.indent] == line[column - 1]


def test_the_nearest_name_is_found_whatever_its_case_and_where_none_is_near_all_are_listed() -> (
    None
):
    assert nearest("ema", ["EMA", "swa"]) == 'did you mean "EMA"?'
    assert nearest("xyz", ["EMA", "swa"]) == ""
    assert nearest_or_all("ema", ["EMA", "swa"], "it has") == 'did you mean "EMA"?'
    assert nearest_or_all("xyz", iter(["EMA", "swa"]), "it has") == "it has EMA, swa"
    assert first_few("abcd", 3) == "a, b, c, …"


@given(st.lists(st.text(), max_size=4), st.integers(2, 30))
def test_wrapped_lines_keep_every_character_within_their_width(
    texts: list[str], width: int
) -> None:
    phrases = [make_printable(text) for text in texts]
    for lines in (wrapped(" ".join(phrases), width), wrapped_phrases(phrases, width)):
        assert all(cell_len(line) <= width for line in lines)
        assert "".join(lines).replace(" ", "") == "".join(phrases).replace(" ", "")


def test_of_what_pytorch_raises_the_line_that_called_it_is_named() -> None:
    """Also of a worker of a loader: its traceback comes as a text, a note of the exception."""
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied") as caught:
        torch.nn.Linear(2, 2)(torch.ones(1, 3))  # here
    file, _, line = find_innermost_line(
        "".join(traceback.format_exception(caught.value))
    ).rpartition(":")
    assert file == __file__
    assert Path(file).read_text().splitlines()[int(line) - 1].endswith("# here")
    outer = (
        'Traceback\n  File "/x/lib/python3.11/site-packages/torch/utils.py", line 3, in reraise\n'
    )
    worker = (
        'WorkerError: worker 0: no\nOriginal Traceback:\n  File "/home/me/data.py", line 9, in'
        " __getitem__\n    no\n"
    )
    assert find_innermost_line(outer + worker) == "/home/me/data.py:9"
    assert find_innermost_line(outer) == "/x/lib/python3.11/site-packages/torch/utils.py:3", (
        "where no frame is the user's"
    )
    assert find_innermost_line("nothing was raised") == ""


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
def test_an_exception_is_explained_by_its_causes(
    outer: Exception, cause: Exception | None, wanted: list[str]
) -> None:
    try:
        try:
            raise LookupError("c")
        except LookupError:
            raise outer from cause
    except Exception as caught:
        caught.__suppress_context__ = cause is not None
        if cause and caught.args:
            cause.__context__ = caught  # which closes a cycle
        lines = [line for line in describe_error(caught) if not line.startswith("at ")]
    assert len(lines) == len(wanted)
    assert all(map(str.startswith, lines, wanted))


NINES, EFS = "9" * 5_000, "0x" + "f" * 5_000
LONG = "a" * 300
BASE = circle("max_epochs = 1")
TO_NOWHERE = "[data.train.args]\n" + "".join(f'a{k} = "${{nowhere{k}}}"\n' for k in range(300))
LIST, ITEM = "${data.train.args.a}", "${data.train.args.a.0}!"
MANY = f"[data.train.args]\na = {[0] * 1_000}\nb = {[LIST] * 20}\nc = {[ITEM] * 20}\n"
TOO_MUCH = 10_000
"""Characters and entries that references may put in their places here,
where a million would take seconds.
"""
MADE_UP = ["[[x]]\n", "x = \n", '"', "= 1\n", "[run]\n", "a.b.c = 1\n", "\x00", "\udcff"]
VALUES = [
    "{}",
    "[]",
    '""',
    "-1",
    "true",
    "1e400",
    '"${run}"',
    '"${env:HOME}"',
    "[[[1]]]",
    "1979-05-27",
]
SECONDS = 10


def told(path: Path, *overrides: str, imports: bool = True) -> str:
    """Return the problems of a file, as they are shown; none if it is valid."""
    began = time.process_time()
    try:
        loaded = load(path, overrides)
        compile_pipeline(loaded, imports=imports)
        problems = UserError(missing_components(loaded, path.parent)).show()
    except UserError as error:
        problems = error.show()
    assert time.process_time() - began < SECONDS
    return problems


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BASE.replace("= 1", f"= {NINES}"), ":3: this is not TOML: an integer has too many digits"),
        (BASE.replace("= 1", f"= {EFS}"), ":3:1: run.max_epochs: the integer has too many digits"),
        (
            f'{BASE}[hooks.log]\nuse = "log"\nevery = "{NINES}it"',
            "every: a text of 5,002 characters is no amount",
        ),
        (BASE.replace("circle:Net", "circle:N\\u0000et"), 'there is no "N·et"'),
        (f'extends = "a\\u0000.toml"\n{BASE}', "extends must be the name of a file"),
        (f'extends = "{LONG}.toml"\n{BASE}', "cannot be read: File name too long"),
        (BASE.replace("hookflow.zoo.circle", "./itself.py"), "there is no file"),
        (f"{BASE}x = {'[' * 2_000}{']' * 2_000}", "nested too deep"),
        (f"[{'.'.join('a' * 2_000)}]\n{BASE}", "nested too deep"),
        (BASE + "".join(f"k{k} = 1\n" for k in range(20_000)), "of which the first 100 are shown"),
        (f"{BASE}{TO_NOWHERE}", "sets no key"),
        (f"{BASE}# {MOST_BYTES * 'x'}", "this is longer than 1 MB"),
        (f"{BASE}{MANY}", "put more than 10,000 characters and entries"),
    ],
    ids=range(13),
)
def test_what_is_too_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    if text.endswith(MANY):
        monkeypatch.setattr(references, "MOST_MADE", TOO_MUCH)
    (tmp_path / "itself.py").symlink_to("itself.py")
    path = tmp_path / "p.toml"
    path.write_text(text)
    problems = told(path)
    assert message in problems
    assert str(path) in problems
    assert len(problems) < 200_000


def test_so_it_is_on_the_command_line_and_in_a_base(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_text(BASE)
    for value in (NINES, EFS, "[" * 5_000, '"a\0b"', "1e999", "nan", "{" * 300):
        assert "--set" in told(path, f"run.max_epochs={value}")
    path, base = tmp_path / "p.toml", tmp_path / "base.toml"
    base.write_text(f"{BASE}# {MOST_BYTES * 'x'}")
    path.write_text('extends = "base.toml"\n')
    assert told(path).startswith(f'{path}:1:1: the file "{base}" ')


def test_what_could_not_be_read_back_is_not_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "p.toml"
    path.write_text(f"{BASE}[data.train.args]\na = {[1] * 2_000}\n")
    loaded = load(path)
    monkeypatch.setattr(sys.modules["hookflow.pipeline.load"], "MOST_BYTES", 10_000)
    plan = compile_pipeline(loaded)
    with pytest.raises(UserError, match="written out, this is longer than 1 MB") as refused:
        new_run(loaded, plan, tmp_path / "runs")
    assert str(refused.value).startswith(str(path))
    assert not (tmp_path / "runs").exists()


def mutated(text: str, chance: random.Random) -> str:
    """Return a file with a line or a few characters taken out, doubled, swapped or made up."""
    for _ in range(chance.randrange(1, 4)):
        lines = text.splitlines(keepends=True) or ["\n"]
        k = chance.randrange(len(lines))
        match chance.randrange(5):
            case 0:
                del lines[k]
            case 1:
                lines.insert(k, chance.choice(lines))
            case 2:
                lines[k] = chance.choice(MADE_UP)
            case 3:
                at = chance.randrange(len(lines[k]))
                lines[k] = (
                    lines[k][:at] + chance.choice("[]{}=\"'.$\\,0-e\n\t") + lines[k][at + 1 :]
                )
            case _:
                value = chance.choice(VALUES)
                lines[k] = f"{lines[k].partition('=')[0].strip() or 'x'} = {value}\n"
        text = "".join(lines)
    return text


KEYS = (
    "run", "run.max_epochs", "run.seed", "model", "model.args", "data", "hooks", "hooks.clip",
    "hooks.clip.use",
    "hooks.clip.points", "hooks.new", "hooks.clip.args.max_norm", "points.after_x", "extends", "",
    ".", "a..b",
)  # fmt: skip


def override(chance: random.Random) -> str:
    """Return a `--set` with something odd in it: its key, its value, or what parts them."""
    value = chance.choice(
        [*VALUES, NINES, EFS, "[[", "{a=", "'", '"${model}"', "{use='log'}", "['after_val']", "\0"]
    )
    text = f"{chance.choice(KEYS)}{chance.choice(['=', '=', '=', ' = ', '', '=='])}{value}"
    at = chance.randrange(len(text) + 1)
    return (
        text[:at]
        + chance.choice(["", "", "", "\0", "\n", "\udcff", "[", '"', ".", "="])
        + text[at:]
    )


@seeds(150)
def test_a_mutated_hook_file_or_pipeline_or_override(tmp_path: Path, seeds: range) -> None:
    path, hooks = tmp_path / "toy.toml", tmp_path / "mutated.py"
    toy = TOY.read_text().replace('"./', f'"{os.fspath(TOY.parent)}/')
    toy += '[hooks.mutated]\nuse = "./mutated.py:EmptyCache"\npoints = ["after_train_iter"]\n'
    source = (TESTS.parent / "hookflow" / "hooks" / "builtin" / "memory.py").read_text()
    for seed in seeds:
        chance = random.Random(seed)
        texts = [source, toy]
        overrides = (
            [override(chance) for _ in range(chance.randrange(1, 4))] if seed % 3 == 2 else []
        )
        if seed % 3 < 2:
            texts[seed % 3] = mutated(texts[seed % 3], chance)
        for file, text in zip((hooks, path), texts, strict=True):
            file.write_bytes(text.encode("utf-8", "surrogateescape"))
        told(path, *overrides, imports=seed % 3 != 0 and seed % 2 == 0)
