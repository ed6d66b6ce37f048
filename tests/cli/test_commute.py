"""`hookflow check --commute`: what it says, and with which exit code."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from hookflow.cli.app import app
from hookflow.errors import UserError
from hookflow.service.findings import LEAKS
from hookflow.trials import trial
from tests.conftest import TESTS

BUGS = TESTS / "graph" / "ordering_bugs"
TWO = """\
[run]
name = "two"
max_epochs = 3
threads = 1
device = "cpu"
default_hooks = false
[model]
use = "{tests}/toy.py:Net"
[optimizer]
use = "torch.optim:SGD"
[data.train]
use = "{tests}/toy.py:Points"
[data.val]
use = "{tests}/toy.py:Points"
args = {{ split = 1, examples = 16 }}
[hooks.one]
use = "./two.py:{one}"
[hooks.two]
use = "./two.py:{two}"
"""
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


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments)], env={"COLUMNS": "160"}, catch_exceptions=False)


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "two.py").write_text(HOOKS)
    return tmp_path / "two.toml"


def write(file: Path, one: str, two: str, more: str = "") -> Path:
    file.write_text(TWO.format(tests=TESTS, one=one, two=two) + more)
    return file


def test_a_pair_that_differs_is_named_with_what_differs_and_fails_strict() -> None:
    file = BUGS / "nequip_590.toml"
    done = invoke("check", "--commute", file)
    assert done.exit_code == 0
    said = " ".join(done.stdout.split())
    assert said.startswith(f"{file} is valid, with 1 pair whose order makes a difference")
    assert (
        "saver and average at after_val: differ in the file weights-2.pt: 5 of 9 values, from `average.average`" in said
    )
    assert 'average first: after = ["average"] in [hooks.saver]' in said
    assert (
        "commute 1 pair without a declared order, fired both ways: 1 made a difference, 0 did not (6 trials of" in said
    )
    assert invoke("check", "--commute", "--strict", file).exit_code == 1
    assert invoke("check", "--strict", file).exit_code == 0


def test_the_same_for_programs() -> None:
    done = invoke("check", "--commute", "-f", "json", BUGS / "lightning_9950.toml")
    assert done.exit_code == 0
    found = json.loads(done.stdout)["commute"]
    assert [step["pairs"] for step in found["differ"]] == [
        [{"point": point, "first": "pruned", "then": "quantized"}] for point in ("before_val", "after_val")
    ]
    [model] = [part for part in found["differ"][1]["parts"] if part["of"] == "model"]
    assert (model["differing"], model["total"], model["source"]) == (6, 9, "quantized.found")
    assert "each as one method around_val: what is entered first is left last" in found["differ"][1]["hint"]
    assert (found["same"], found["untried"], found["more"], found["not_compared"]) == ([], [], False, [])
    assert "commute" not in json.loads(invoke("check", "-f", "json", BUGS / "lightning_9950.toml").stdout)


def test_an_alarm_that_does_not_matter_goes(made: Path) -> None:
    write(made, "Adds", "Adds")
    assert invoke("check", "--strict", made).exit_code == 1
    done = invoke("check", "--strict", "--commute", made)
    assert done.exit_code == 0
    assert "ambiguous" not in done.stdout
    assert "0 made a difference, 1 did not" in " ".join(done.stdout.split())
    assert "(so these need no edge, though they touch the same: one and two at after_val_epoch)" in done.stdout


def test_an_alarm_that_matters_stays(made: Path) -> None:
    done = invoke("check", "--strict", "--commute", write(made, "Doubles", "Clips"))
    assert done.exit_code == 1
    assert "with 1 ambiguous pair and 1 pair whose order makes a difference" in done.stdout
    assert "differ in metrics: loss" in done.stdout


def test_an_order_in_which_a_hook_raises_differs_and_its_traceback_is_not_printed(made: Path) -> None:
    done = invoke("check", "--strict", "--commute", write(made, "Adds", "Needs"))
    assert done.exit_code == 1
    assert "one and two at after_val_epoch: the other way round it raises KeyError: 'one'" in done.stdout
    assert "Traceback" not in done.output
    assert "needs 1.0" not in done.output, "what hooks print is theirs, and the output the command's"


def test_what_is_saved_elsewhere_is_seen(made: Path) -> None:
    done = invoke("check", "--strict", "--commute", write(made, "Doubles", "Saves"))
    assert done.exit_code == 1
    assert "one and two at after_val_epoch: differ in the file mine.pt" in done.stdout


def test_what_depends_on_the_time_is_not_compared(made: Path) -> None:
    done = invoke("check", "--strict", "--commute", write(made, "Adds", "Clock"))
    assert done.exit_code == 0
    assert "not compared, since it differs in trials of one order: two" in done.stdout


def test_a_pair_whose_state_leaks_between_trials_is_not_judged(made: Path) -> None:
    write(made, "Doubles", "Leaks")
    assert invoke("check", "--strict", made).exit_code == 1
    done = invoke("check", "--strict", "--commute", made)
    assert done.exit_code == 1, "the alarm stays: no trial has lifted it"
    said = " ".join(done.stdout.split())
    assert f"not judged, since {LEAKS}: one and two at after_val_epoch" in said
    assert "0 made a difference, 0 did not" in said
    [pair] = json.loads(invoke("check", "--commute", "-f", "json", made).stdout)["commute"]["not_judged"]
    assert pair == {"point": "after_val_epoch", "first": "one", "then": "two"}


def test_amounts_in_triggers_do_not_count_and_conditions_do(made: Path) -> None:
    rare = 'points = [{ at = "after_val_epoch", every = 1000, when = "loss > 1e9" }]'
    done = invoke("check", "--commute", write(made, "Adds", "Rare", rare))
    assert done.exit_code == 0
    assert "not tried, since one of them does not fire in a trial: one and two at after_val_epoch" in " ".join(
        done.stdout.split()
    )


def test_without_a_pair_nothing_is_run(made: Path) -> None:
    done = invoke("check", "--commute", write(made, "Adds", "Rare", 'after = ["one"]'))
    assert done.exit_code == 0
    assert "no pair of hooks that fire is without a declared order" in done.stdout


def test_what_raises_in_the_declared_order_is_shown_as_in_a_dry_run(made: Path) -> None:
    alone = '[hooks.three]\nuse = "./two.py:Fails"\n'
    done = invoke("check", "--commute", write(made, "Adds", "Adds", alone))
    assert done.exit_code == 1
    assert "ValueError: on its own" in done.output


def test_the_limit_is_told_with_what_was_not_tried(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "TRIALS", 2)
    done = invoke("check", "--strict", "--commute", write(made, "Adds", "Adds"))
    assert done.exit_code == 1, "an ambiguous pair that was not tried is ambiguous"
    assert "not tried, since the limit of" in done.stdout


def test_too_few_trials_for_any_answer_are_told(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "TRIALS", 1)
    with pytest.raises(UserError, match="no answer within 1 trials"):
        invoke("check", "--commute", write(made, "Adds", "Adds"))


def test_it_leaves_nothing_behind(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = made.parent / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    write(made, "Doubles", "Clips")
    before = {*made.parent.rglob("*")}
    invoke("check", "--commute", made)
    assert {path for path in made.parent.rglob("*") if path.suffix != ".pyc" and path.name != "__pycache__"} == before
