"""How workers are started, and that none that hangs holds up the end of a run or outlives it."""

from __future__ import annotations

import gc
import os
import re
import signal
from pathlib import Path

import psutil
import pytest

from hookflow.runner.data import workers
from hookflow.runner.process.launch import start
from tests.conftest import NewRun, Train, Trained, messages, records, wait_for
from tests.processes import Training
from tests.runner.same import assert_same_end
from tests.runner.test_loader_runs import over

FORKED = "they are forked, which may hang"


DATA = ("Clouds", "Numbers")


@pytest.mark.parametrize(
    ("method", "name"),
    [
        ("", "Numbers"),
        ("forkserver", "Clouds"),
        pytest.param("", "Clouds", marks=pytest.mark.long),
        pytest.param("forkserver", "Numbers", marks=pytest.mark.long),
        *(pytest.param(method, name, marks=pytest.mark.long) for method in ("spawn", "fork") for name in DATA),
    ],
)
def test_however_workers_are_started_the_bits_are_the_same(
    new_run: NewRun, train_here: Train, method: str, name: str
) -> None:
    chosen = {"multiprocessing_context": method} if method else {}
    alone, run_dir = new_run(over(name, workers=1)), new_run(over(name, workers=1, **chosen))
    assert train_here(alone) == 0
    assert start(run_dir).wait() == 0
    assert_same_end(alone, run_dir)
    assert not [text for text in messages(run_dir) if FORKED in text or "no checkpoint holds that" in text]


def test_forked_workers_leave_the_garbage_to_the_training(trained: Trained, tmp_path: Path) -> None:
    """CUDA events in it, say, which cannot be freed in another process."""
    freed = tmp_path / "freed"
    litters = 'hooks.litters={use="./loaders.py:litters", points=["before_train"], args=["%s"]}'
    gc.disable()
    trained(over("Collects", workers=2), litters % freed)
    gc.enable()
    gc.collect()
    assert freed.read_text() == f"{os.getpid()}\n"


def test_data_that_cannot_be_pickled_are_forked_with_a_warning(new_run: NewRun) -> None:
    run_dir = new_run(over("Unpicklable", workers=1))
    assert start(run_dir).wait() == 0
    (said,) = [text for text in messages(run_dir) if FORKED in text]
    assert said.startswith("Unpicklable cannot be pickled for its workers (TypeError: cannot pickle")
    chosen = new_run(over("Unpicklable", workers=1, multiprocessing_context="fork"))
    assert Training(chosen).wait() == 0
    assert not [text for text in messages(chosen) if FORKED in text]


def test_a_start_method_that_cannot_be_is_an_error_before_the_training(trained: Trained) -> None:
    (end,) = records(trained(over("Unpicklable", workers=1, multiprocessing_context="spawn"), code=2), "end")
    assert '"spawn" workers need data that can be pickled, and Unpicklable cannot be: TypeError' in str(end["reason"])
    assert "data.train.loader.multiprocessing_context" in str(end["reason"]) or "--set" in str(end["reason"])


@pytest.mark.parametrize(
    ("small", "said"), [("shm", "its tensors .+ do not fit into"), ("memory", "2 copies of it .+ do not fit into")]
)
def test_data_that_do_not_fit_are_forked(
    trained: Trained, monkeypatch: pytest.MonkeyPatch, small: str, said: str
) -> None:
    class Spec:
        name = "hookflow.runner.__main__"

    class Full:
        free = available = 0

    monkeypatch.setattr("__main__.__spec__", Spec)
    if small == "shm":
        monkeypatch.setattr(workers.shutil, "disk_usage", lambda path: Full)
    else:
        monkeypatch.setattr(workers.psutil, "virtual_memory", lambda: Full)
    (text,) = [text for text in messages(trained(over("Clouds", workers=2))) if FORKED in text]
    assert re.match(f"Clouds is too big for workers that are not forked: {said}", text)


@pytest.mark.parametrize(
    ("split", "holds"),
    [
        ("train", "the GIL"),
        pytest.param("train", "nothing", marks=pytest.mark.long),
        pytest.param("val", "the GIL", marks=pytest.mark.long),
        pytest.param("val", "nothing", marks=pytest.mark.long),
    ],
)
def test_a_training_that_waits_for_a_hung_worker_leaves_at_the_first_signal(
    trained: Trained, new_run: NewRun, tmp_path: Path, split: str, holds: str
) -> None:
    mark = tmp_path / "hangs"
    args = f'data.{split}.args={{mark="{mark}", gil={str(holds == "the GIL").lower()}}}'
    hasty = 'hooks.hasty={use="./disturbers.py:Hasty"}'
    run_dir = new_run(over("HangsOnce", split, workers=1), args, "run.sanity=false", hasty)
    training = Training(run_dir)
    wait_for(mark.exists)
    training.signal(signal.SIGTERM)
    assert training.wait() == 143
    (end,) = records(run_dir, "end")
    assert end["reason"] == "SIGTERM received"
    (text,) = [text for text in messages(run_dir) if text.startswith("worker ")]
    named = r"worker 0 of HangsOnce \(pid \d+\) did not leave within 0.5 s and was killed \(SIGKILL\): it hung .*"
    assert re.fullmatch(named, text)
    assert Training(run_dir, resume=True).wait() == 0
    assert_same_end(trained(over("Clouds", split), "run.sanity=false"), run_dir)


@pytest.mark.parametrize("method", ["forkserver", "fork", pytest.param("spawn", marks=pytest.mark.long)])
def test_a_hung_worker_does_not_outlive_a_training_that_is_killed(new_run: NewRun, tmp_path: Path, method: str) -> None:
    mark = tmp_path / "hangs"
    data = over("HangsOnce", workers=1, multiprocessing_context=method)
    training = start(new_run(data, f'data.train.args={{mark="{mark}", gil=true}}'))
    wait_for(mark.exists)
    whole = psutil.Process(training.pid).children(recursive=True)
    assert int(mark.read_text()) in {process.pid for process in whole}
    training.kill()
    assert training.wait() == -9
    wait_for(lambda: all(not child.is_running() or child.status() == psutil.STATUS_ZOMBIE for child in whole))


@pytest.mark.usefixtures("interpreters")
def test_a_signal_to_the_whole_job_leaves_the_fork_server_and_its_workers_alone(new_run: NewRun) -> None:
    slow = 'hooks.slow={use="./watchers.py:slow", points=["after_backward"]}'
    run_dir = new_run(over("Clouds", workers=2), slow, swap=("max_epochs = 3", "max_epochs = 400"))
    training = start(run_dir)  # which starts a resource tracker of its own
    wait_for(lambda: bool(records(run_dir, "checkpoint")) or training.poll() is not None)
    helpers = psutil.Process(training.pid).children(recursive=True)
    assert len(helpers) == 4, "the resource tracker, the fork server and two workers"
    for helper in helpers:
        helper.terminate()
    saved = len(records(run_dir, "checkpoint"))
    wait_for(lambda: len(records(run_dir, "checkpoint")) > saved + 2 or training.poll() is not None)
    os.killpg(training.pid, signal.SIGTERM)
    assert training.wait() == 143
    assert run_dir.output.read_text() == ""
    (end,) = records(run_dir, "end")
    assert end["reason"] == "SIGTERM received"
    assert not [text for text in messages(run_dir) if "worker" in text and "share" not in text]
