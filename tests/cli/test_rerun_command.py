"""`hookflow rerun`: the recording to the bit, the first difference where there is one, and hooks that watch."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
import torch

import hookflow as api
from hookflow.errors import UserError
from hookflow.events import run_lock
from hookflow.events.rundir import RunDir, all_runs
from hookflow.runner.process.signals import handlers_put_back
from tests.cli.conftest import HEAD
from tests.conftest import TESTS, hookflow, hookflow_here, run_here
from tests.monitor.test_terminal import Terminal

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

RANKS = DATA.replace("workers=2", "workers=0")


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


def test_the_batch_is_saved_and_keys_are_set(folder: Path) -> None:
    run = trained(DATA, "run.accumulate=2", "run.max_epochs=2")
    shown = rerun(run.id, "--at", "4", "--for", "2", "--save-batch", "batch.pt", "--set", "run.detect_anomaly=true")
    assert "to the bit" in shown
    first, second = torch.load("batch.pt", weights_only=True)
    assert first[0].shape[1:] == second[0].shape[1:] == (4,) and first[1].dtype == torch.int64
    rerun(run.id, "--at", "4", "--for", "1", "--save-batch", "again.pt")
    assert torch.equal(first[0], torch.load("again.pt", weights_only=True)[0][0])
    assert "run.detect_anomalies" in rerun(run.id, "--at", "4", "--set", "run.detect_anomalies=true", code=2)


def test_several_ranks_are_done_again_by_as_many(folder: Path) -> None:
    done = hookflow("run", "p.toml", "--nproc", "2", "--set", RANKS, "--set", RANKS.replace("train", "val"), cwd=folder)
    assert done.returncode == 0, done.stderr
    run = all_runs(Path("runs"))[0]
    shown = rerun(run.id, "--at", "4", "--for", "2", "--with", "./probe.py:Probe")
    assert re.search(r"[1-9]\d* numbers of \d names \(.*loss.*\): every one is as recorded, to the bit", shown)
    assert "probe/twice" in shown
    assert "--pdb needs a terminal" in rerun(run.id, "--at", "4", "--pdb", code=2)
    early = rerun(run.id, "--at", "1", "--for", "2")
    assert "from the beginning" in early and "to the bit" in early


def test_the_debugger_stops_before_the_iteration(folder: Path) -> None:
    run = trained()
    terminal = Terminal(
        sys.executable, "-m", "hookflow", "rerun", run.id, "--at", "8", "--for", "1", "--pdb", cwd=folder
    )
    terminal.wait_for("before iteration 8")
    terminal.press("p run.iter, type(batch).__name__\n")
    terminal.wait_for("(7, 'tuple')")
    terminal.press("c\n")
    assert terminal.finish() == 0
    terminal.wait_for("to the bit")


def test_python_gets_the_differences_and_the_numbers_of_what_watched(folder: Path) -> None:
    run = trained('hooks.clock={use="./probe.py:clock", points=["after_train_iter"]}')
    again = api.load_run(run.path).rerun(at=8, iters=2, with_=["./probe.py:Probe"], overrides={"run.seed": 0})
    assert [(each.iter, each.name) for each in again.unlike] == [(9, "clock")]
    assert {8, 9} <= again.more["probe/twice"].keys() and again.compared > 4
    assert again.run.scalars("loss")["iter"][-1] >= 9
    with pytest.raises(UserError, match="has done 15 iterations"):
        api.load_run(run.path).rerun(at=99)
