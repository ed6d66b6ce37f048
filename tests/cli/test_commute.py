"""`hookflow check --commute`: what it says, and with which exit code."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hookflow.cli.app import app
from hookflow.errors import UserError
from hookflow.service.findings import LEAKS
from hookflow.trials import trial
from tests.cli.conftest import HEAD, invoke
from tests.conftest import TESTS

BUGS = TESTS / "graph" / "ordering_bugs"
HOOKS = """\
import time
import torch

class Adds:
    writes = ("metrics",)
    reads = ("metrics",)
    def __init__(self): self.seen = []
    def after_val_epoch(self, metrics): metrics[self.name] = 1.0

class Doubles(Adds):
    def after_val_epoch(self, metrics): metrics["loss"] *= 2

class Clips(Adds):
    def after_val_epoch(self, metrics): metrics["loss"] = min(metrics["loss"], 0.5)

class Needs:
    def after_val_epoch(self, metrics): print("needs", metrics["one"])

class Clock:
    def after_val_epoch(self): self.now, self.late = time.perf_counter(), time.time_ns() % 2

COUNTED = []

class Leaks(Adds):
    def after_val_epoch(self, metrics):
        COUNTED.append(metrics["loss"])
        self.seen = len(COUNTED), metrics["loss"]

class Rare:
    def after_val_epoch(self): raise AssertionError("this fires too early")

class Saves:
    def after_val_epoch(self, run, metrics): torch.save(metrics["loss"], "mine.pt")

class Fails:
    def after_train_iter(self): raise ValueError("on its own")
"""


@pytest.fixture
def made(here: Path) -> Path:
    """Where the pipeline of two hooks is to be written."""
    (here / "two.py").write_text(HOOKS)
    return here / "two.toml"


def write(file: Path, first: str, second: str, more: str = "") -> Path:
    file.write_text(f'{HEAD}[hooks.one]\nuse = "./two.py:{first}"\n[hooks.two]\nuse = "./two.py:{second}"\n{more}')
    return file


def commute(file: Path, *options: str, code: int = 0) -> str:
    """Return what the command says, in one line."""
    return " ".join(invoke("check", "--commute", *options, file, code=code, columns=160).split())


def test_a_pair_that_differs_is_named_with_what_differs_and_fails_strict() -> None:
    file = BUGS / "nequip_590.toml"
    printed = commute(file, "--strict", code=1)
    assert printed.startswith(f"{file} is valid, with 1 pair whose order makes a difference")
    for part in (
        "saver and average at after_val: differ in the file weights-2.pt: 5 of 9 values",
        'average first: after = ["average"] in [hooks.saver]',
        "commute 1 pair without a declared order, fired both ways: 1 made a difference, 0 did not (6 trials of",
    ):
        assert part in printed
    invoke("check", "--strict", file)
    around = "each as one method around_val: what is entered first is left last"
    assert around in commute(BUGS / "lightning_9950.toml")


RARE = 'points = [{ at = "after_val_epoch", every = 1000, when = "loss > 1e9" }]'
CASES = {
    "an alarm that does not matter goes": (
        ("Adds", "Adds"),
        0,
        ["0 made a difference, 1 did not", "(so these need no edge, though they touch the same: one and two at"],
    ),
    "an alarm that matters stays": (
        ("Doubles", "Clips"),
        1,
        ["with 1 ambiguous pair and 1 pair whose order makes a difference", "differ in metrics: loss"],
    ),
    "an order in which a hook raises": (
        ("Adds", "Needs"),
        1,
        ["one and two at after_val_epoch: the other way round it raises KeyError: 'one'"],
    ),
    "what is saved elsewhere": (
        ("Doubles", "Saves"),
        1,
        ["one and two at after_val_epoch: differ in the file mine.pt"],
    ),
    "what depends on the time": (("Adds", "Clock"), 0, ["not compared, since it differs in trials of one order: two"]),
    "a state that leaks from trial to trial": (
        ("Doubles", "Leaks"),
        1,  # the alarm stays: no trial has lifted it
        [f"not judged, since {LEAKS}: one and two at after_val_epoch", "0 made a difference, 0 did not"],
    ),
    "amounts in triggers do not count, and conditions do": (
        ("Adds", "Rare", RARE),
        1,  # an ambiguous pair that was not tried is ambiguous
        ["not tried, since one of them does not fire in a trial: one and two at after_val_epoch"],
    ),
    "without a pair nothing is run": (
        ("Adds", "Rare", 'after = ["one"]'),
        0,
        ["no pair of hooks that fire is without a declared order"],
    ),
    "what raises in the declared order": (
        ("Adds", "Adds", '[hooks.three]\nuse = "./two.py:Fails"\n'),
        1,
        ["ValueError: on its own"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_said_of_a_pair(case: str, made: Path) -> None:
    hooks, code, printed = CASES[case]
    done = CliRunner().invoke(app, ["check", "--strict", "--commute", str(write(made, *hooks))], env={"COLUMNS": "160"})
    assert done.exit_code == code
    assert all(part in " ".join(done.output.split()) for part in printed), done.output
    if "declared" not in case:
        assert "Traceback" not in done.output
    assert "needs 1.0" not in done.output, "what hooks print is theirs, and the output the command's"
    if "ambiguous" in done.output:
        assert code == 1


def test_the_limit_is_told_with_what_was_not_tried(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(made, "Adds", "Adds")
    monkeypatch.setattr(trial, "TRIALS", 2)
    printed = commute(made, "--strict", code=1)  # an ambiguous pair that was not tried is ambiguous
    assert "not tried, since the limit of" in printed
    monkeypatch.setattr(trial, "TRIALS", 1)
    with pytest.raises(UserError, match="no answer within 1 trials"):
        commute(made)


def test_it_leaves_nothing_behind(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = made.parent / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    write(made, "Doubles", "Clips")
    before = {*made.parent.rglob("*")}
    commute(made)
    assert {path for path in made.parent.rglob("*") if path.suffix != ".pyc" and path.name != "__pycache__"} == before
