"""`hookflow rerun`: the recording to the bit, the first difference where there is one, and hooks that watch."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from hookflow.events import run_lock
from hookflow.events.rundir import RunDir, all_runs
from hookflow.runner.process.signals import handlers_put_back
from tests.cli.conftest import HEAD
from tests.conftest import TESTS, hookflow_here, run_here

HOOKS = """
import time

class Probe:
    def after_train_iter(self, run, outputs):
        run.log("probe/twice", 2 * outputs["loss"])

def clock(run):
    if run.iter == 9:
        run.log("clock", time.time())

def fails(run):
    if run.iter == 9:
        raise ValueError("on purpose")
"""
FILE = f"""{HEAD}
[hooks.checkpoint]
use = "checkpoint"
args = {{ keep = 9, out_dir = "kept" }}
[hooks.log]
use = "log"
every = 1
[hooks.ema]
use = "ema"
[hooks.speed]
use = "throughput"
args = {{ window = 2 }}
[writers.csv]
use = "csv"
"""
DATA = f'data.train={{use="{TESTS}/loaders.py:Numbers", loader={{batch_size=8, workers=2}}}}'


@pytest.fixture
def folder(here: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path_factory.mktemp("reruns")))
    Path("p.toml").write_text(FILE)
    Path("probe.py").write_text(HOOKS)
    return here


def trained(*overrides: str, code: int = 0) -> RunDir:
    done = run_here("p.toml", *(word for override in overrides for word in ("--set", override)), cwd=Path.cwd())
    assert done.returncode == code, done.stderr
    return all_runs(Path("runs"))[0]


def rerun(*arguments: str, code: int = 0) -> str:
    with handlers_put_back():
        done = hookflow_here("rerun", *arguments, cwd=Path.cwd())
    run_lock.release(tuple(run_lock._held))
    assert done.returncode == code, done.stderr
    return done.stdout if code < 2 else done.stderr


@pytest.mark.parametrize("overrides", [(), (DATA, "run.accumulate=2", "run.max_epochs=4")], ids=["plain", "a stream"])
def test_every_number_is_the_recorded_one(folder: Path, overrides: tuple[str, ...]) -> None:
    """With a hook that watches; and nothing but the folder of the rerun is written."""
    run = trained(*overrides)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if "__pycache__" not in path.parts}
    shown = rerun(run.id, "--at", "8", "--for", "3", "--with", "./probe.py:Probe")
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*") if "__pycache__" not in path.parts} == before
    assert re.search(rf"iterations \d+ to 1[01] of {run.id} from it0000000\d", shown)
    assert re.search(r"[1-9]\d* numbers of \d names \(.*loss.*\): every one is as recorded, to the bit", shown)
    assert "not compared, since a clock or the machine makes them: samples_per_s" in shown
    assert re.search(r"iteration +8 +9 +10\n +probe/twice( +\d\.\d+){3}\n", shown)
    data = json.loads(rerun(run.id, "--at", "2", "--for", "2", "--format", "json"))
    assert (data["begin"], data["end"], data["unlike"], data["more"]) == (0, 3, [], {})


def test_the_first_difference_is_named(folder: Path) -> None:
    run = trained('hooks.clock={use="./probe.py:clock", points=["after_train_iter"]}')
    shown = rerun(run.id, "--at", "7", code=1)
    assert re.search(r"first difference in iteration 9: clock was \d+\.\d+, and is \d+\.\d+\n  1 of \d+ numbers", shown)
    assert "a hook may read the clock" in shown
    shown = rerun(run.id, "--at", "7", "--without", "clock", "--without", "ema", code=1)
    assert "and is nothing" in shown and "hooks were added or left out" in shown


def test_a_run_that_failed_is_looked_into(folder: Path) -> None:
    run = trained('hooks.fails={use="./probe.py:fails", points=["after_train_iter"]}', code=1)
    shown = rerun(run.id, "--at", "8", "--with", "grad_norm")
    assert "to the bit" in shown
    assert "grad_norm" in shown
    assert "has done" in rerun(run.id, "--at", "99", code=2)
