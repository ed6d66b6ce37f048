"""A pipeline file and `--set` may hold anything: what comes of it is a pipeline, or problems that name the file."""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path

import pytest

from hookflow.errors import UserError
from hookflow.hooks.compile import compile_pipeline
from hookflow.pipeline import references
from hookflow.pipeline.layers import MOST_BYTES
from hookflow.pipeline.load import load, missing_components
from hookflow.runner.process.launch import new_run
from tests.conftest import TESTS, TOY, circle
from tests.garbling import seeds

NINES, EFS = "9" * 5_000, "0x" + "f" * 5_000
LONG = "a" * 300
BASE = circle("max_epochs = 1")
TO_NOWHERE = "[data.train.args]\n" + "".join(f'a{k} = "${{nowhere{k}}}"\n' for k in range(300))
LIST, ITEM = "${data.train.args.a}", "${data.train.args.a.0}!"
MANY = f"[data.train.args]\na = {[0] * 1_000}\nb = {[LIST] * 20}\nc = {[ITEM] * 20}\n"
TOO_MUCH = 10_000
"""Characters and entries that references may put in their places here, where a million would take seconds."""
MADE_UP = ["[[x]]\n", "x = \n", '"', "= 1\n", "[run]\n", "a.b.c = 1\n", "\x00", "\udcff"]
VALUES = ["{}", "[]", '""', "-1", "true", "1e400", '"${run}"', '"${env:HOME}"', "[[[1]]]", "1979-05-27"]
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
        (f'{BASE}[hooks.log]\nuse = "log"\nevery = "{NINES}it"', "every: a text of 5,002 characters is no amount"),
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
def test_what_is_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str) -> None:
    if text.endswith(MANY):
        monkeypatch.setattr(references, "MOST_MADE", TOO_MUCH)
    (tmp_path / "itself.py").symlink_to("itself.py")
    path = tmp_path / "p.toml"
    path.write_text(text)
    problems = told(path)
    assert message in problems
    assert str(path) in problems
    assert len(problems) < 200_000


def test_and_so_it_is_on_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_text(BASE)
    for value in (NINES, EFS, "[" * 5_000, '"a\0b"', "1e999", "nan", "{" * 300):
        assert "--set" in told(path, f"run.max_epochs={value}")


def test_what_is_built_on_a_file_that_is_too_long(tmp_path: Path) -> None:
    path, base = tmp_path / "p.toml", tmp_path / "base.toml"
    base.write_text(f"{BASE}# {MOST_BYTES * 'x'}")
    path.write_text('extends = "base.toml"\n')
    assert told(path).startswith(f'{path}:1:1: the file "{base}" is longer than 1 MB')


def test_what_could_not_be_read_back_is_not_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
                lines[k] = lines[k][:at] + chance.choice("[]{}=\"'.$\\,0-e\n\t") + lines[k][at + 1 :]
            case _:
                value = chance.choice(VALUES)
                lines[k] = f"{lines[k].partition('=')[0].strip() or 'x'} = {value}\n"
        text = "".join(lines)
    return text


KEYS = (
    "run", "run.max_epochs", "run.seed", "model", "model.args", "data", "hooks", "hooks.clip", "hooks.clip.use",
    "hooks.clip.points", "hooks.new", "hooks.clip.args.max_norm", "points.after_x", "extends", "", ".", "a..b",
)  # fmt: skip


def override(chance: random.Random) -> str:
    """Return a `--set` with something odd in it: its key, its value, or what parts them."""
    value = chance.choice([*VALUES, NINES, EFS, "[[", "{a=", "'", '"${model}"', "{use='log'}", "['after_val']", "\0"])
    text = f"{chance.choice(KEYS)}{chance.choice(['=', '=', '=', ' = ', '', '=='])}{value}"
    at = chance.randrange(len(text) + 1)
    return text[:at] + chance.choice(["", "", "", "\0", "\n", "\udcff", "[", '"', ".", "="]) + text[at:]


@seeds(150)
def test_a_mutated_hook_file_or_pipeline_or_override(tmp_path: Path, seeds: range) -> None:
    path, hooks = tmp_path / "toy.toml", tmp_path / "mutated.py"
    toy = TOY.read_text().replace('"./', f'"{os.fspath(TOY.parent)}/')
    toy += '[hooks.mutated]\nuse = "./mutated.py:EmptyCache"\npoints = ["after_train_iter"]\n'
    source = (TESTS.parent / "hookflow" / "hooks" / "builtin" / "memory.py").read_text()
    for seed in seeds:
        chance = random.Random(seed)
        texts = [source, toy]
        overrides = [override(chance) for _ in range(chance.randrange(1, 4))] if seed % 3 == 2 else []
        if seed % 3 < 2:
            texts[seed % 3] = mutated(texts[seed % 3], chance)
        for file, text in zip((hooks, path), texts, strict=True):
            file.write_bytes(text.encode("utf-8", "surrogateescape"))
        told(path, *overrides, imports=seed % 3 != 0 and seed % 2 == 0)
