"""`hookflow stop`: a run that goes on is stopped from elsewhere, and one that hangs is ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hookflow.events.rundir import RunDir
from tests.conftest import NewRun, hookflow, records, wait_for
from tests.processes import Training

HANGS = Path(__file__).parents[1] / "disturbers.py"
Start = Callable[[RunDir], Training]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a training, and wait until it has begun; it does not outlive the test."""
    started: list[Training] = []

    def begin(run_dir: RunDir) -> Training:
        started.append(Training(run_dir))
        wait_for(lambda: bool(records(run_dir, "frame")))
        return started[-1]

    yield begin
    for training in started:
        training.process.kill()
        training.process.join()


def test_a_run_is_stopped_with_a_checkpoint(new_run: NewRun, start: Start, tmp_path: Path) -> None:
    run_dir = new_run("run.max_epochs=100000")
    training = start(run_dir)
    done = hookflow("stop", "toy", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    asked, stopped, resume = done.stdout.splitlines()
    assert asked == f"asked {run_dir.id} to stop at its next safe point"
    at = records(run_dir, "end")[0]["it"]
    assert stopped == f"■ stopped at iteration {at:,}"
    assert resume == f"resume from iteration {at:,}: hookflow run --resume {run_dir.id}"
    assert training.wait() == 0
    again = hookflow("stop", "toy", cwd=tmp_path)
    assert again.returncode == 2
    assert f"the run {run_dir.id} is not running" in again.stderr


def test_a_run_that_hangs_is_told_of_and_ended_at_once(new_run: NewRun, start: Start, tmp_path: Path) -> None:
    run_dir = new_run(f"hooks.hangs={{use='{HANGS}:wait_forever', points=['after_train_iter']}}")
    training = start(run_dir)
    asked = hookflow("stop", run_dir.id, cwd=tmp_path)
    assert asked.returncode == 0
    assert "it has not reached one within 10 s" in asked.stdout
    assert f"hookflow stop {run_dir.id} --now" in asked.stdout
    done = hookflow("stop", run_dir.id, "--now", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "■ interrupted at iteration 1\n"
    assert "SIGTERM" in done.stderr
    assert training.wait() == 143


def test_a_run_that_has_not_started_and_one_elsewhere(new_run: NewRun, tmp_path: Path) -> None:
    run_dir = new_run()
    early = hookflow("stop", "toy", cwd=tmp_path)
    assert (early.returncode, "has not started" in early.stderr) == (2, True)
    run_dir.sign(pid=1, process_started=0.0, host="far")
    remote = hookflow("stop", "toy", "--now", cwd=tmp_path)
    assert (remote.returncode, "is on far" in remote.stderr) == (2, True)
    assert not run_dir.commands.exists()
