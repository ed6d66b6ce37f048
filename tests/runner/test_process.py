"""The training process: what a hook, or a stranger, may do to it, and that a run that is over leaves nothing in it."""

from __future__ import annotations

import gc
import os
import warnings
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch import nn

import hookflow
from hookflow.events.rundir import RunDir
from hookflow.runner.process.launch import start
from hookflow.trials.trial import Trials
from hookflow.trials.trial import trials as trials_of
from tests.conftest import TOY, NewRun, Train, messages, records
from tests.processes import Training
from tests.runner.test_loader_runs import over

ONE_EPOCH = "run.max_epochs=1"


def disturber(name: str, **args: object) -> str:
    provided = ", ".join(f"{key}={value!r}" for key, value in args.items())
    return f'hooks.disturber={{use="./disturbers.py:{name}", args={{{provided}}}}}'


def test_truncating_now_bin_does_not_kill_the_run(new_run: NewRun) -> None:
    run_dir = new_run(ONE_EPOCH, disturber("Truncates"))
    assert Training(run_dir).wait() == 0
    assert records(run_dir, "end")[0]["status"] == "finished"


def test_a_hook_may_change_the_working_directory(
    new_run: NewRun, train_here: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path.cwd())  # afterwards the tests go on where they are
    run_dir = new_run(ONE_EPOCH, disturber("Moves", to=str(tmp_path)))
    relative = RunDir(Path(os.path.relpath(run_dir.path)))
    assert train_here(relative) == 0, records(run_dir, "end")
    assert (run_dir.checkpoints / "last").is_symlink()


def test_a_thread_that_never_ends_is_named_and_left(new_run: NewRun) -> None:
    run_dir = new_run(ONE_EPOCH, disturber("LeavesThread"))
    assert start(run_dir).wait() == 0
    (warning,) = messages(run_dir, "warn")
    assert '"uploader"' in warning
    assert records(run_dir, "end")[0]["status"] == "finished"
    assert warning in run_dir.output.read_text()


def test_threads_that_end_by_themselves_are_not_worth_a_word(new_run: NewRun) -> None:
    pool = disturber("LeavesPool").replace("disturber=", "pool=")
    run_dir = new_run(ONE_EPOCH, disturber("LeavesThread", seconds=0.2), pool)
    assert start(run_dir).wait() == 0
    assert messages(run_dir, "warn") == []


ALIVE: weakref.WeakSet[nn.Module] = weakref.WeakSet()


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Let nothing depend on when Python looks for garbage, nor on what other tests have left of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize(
    ("data", "code"),
    [
        ("data.train.args.examples=40", 0),
        (over("Clouds", workers=2), 0),
        (over("Numbers", workers=2, batches=7), 0),
        ('hooks.bad={use="./watchers.py:Raises"}', 1),
    ],
    ids=["plain", "by workers", "a stream by workers", "a hook that raises"],
)
def test_no_file_stays_open(new_run: NewRun, train_here: Train, data: str, code: int) -> None:
    runs = [new_run(data) for _ in range(3)]
    assert train_here(runs[0]) == code  # what is opened once, as for libraries that are imported, stays
    before = psutil.Process().num_fds()
    for run in runs[1:]:
        assert train_here(run) == code
    assert psutil.Process().num_fds() == before


class Net(nn.Linear):
    """Notes that it was made, and whether it is still there."""

    made = 0

    def __init__(self) -> None:
        super().__init__(4, 3)
        ALIVE.add(self)
        Net.made += 1

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return super().forward(inputs)


def pipeline(**more: Any) -> hookflow.Pipeline:
    run = {"threads": 1, "max_epochs": 1, **more}
    return hookflow.load({"extends": str(TOY), "run": run, "model": {"use": f"{__name__}:Net"}})


@pytest.mark.usefixtures("uncollected")
def test_no_model_stays(tmp_path: Path) -> None:
    for made in range(Net.made + 1, Net.made + 3):
        hookflow.train(pipeline(), "none", runs=tmp_path)
        assert (Net.made, len(ALIVE)) == (made, 0)


@pytest.mark.usefixtures("uncollected")
def test_the_models_of_trials_are_not_all_there(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    again = Trials.again

    def counted(self: Trials, *args: Any, **options: Any) -> Any:
        try:
            return again(self, *args, **options)
        finally:
            counts.append(len(ALIVE))

    monkeypatch.setattr(Trials, "again", counted)
    loaded = pipeline()
    with trials_of(loaded.loaded, loaded.plan, Path.cwd(), lambda *said: None) as trials:
        for _ in range(4):
            trials.again(loaded.plan)
    assert len(counts) == 4
    assert 1 <= max(counts) <= 2, "that of this trial, and that which the data were made with"
