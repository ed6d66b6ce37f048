"""`hookflow stop`: a run that goes on is stopped from elsewhere, and one that hangs is ended."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator

import pytest
from typer.testing import CliRunner

from hookflow.cli.app import app
from hookflow.events import commands
from hookflow.events.rundir import RunDir
from tests.cli.conftest import refused
from tests.conftest import NewRun, records, wait_for
from tests.limits import LIMIT
from tests.processes import Training

Start = Callable[[RunDir], Training]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a training, and wait until it has begun; it does not outlive the test."""
    started: list[Training] = []

    def begin(run_dir: RunDir) -> Training:
        started.append(Training(run_dir, locked=True))
        wait_for(lambda: bool(records(run_dir, "frame")))
        return started[-1]

    yield begin
    for training in started:
        training.process.kill()
        training.process.join()


def has_said(run_dir: RunDir, text: str) -> bool:
    return any(record["text"] == text for record in records(run_dir, "message"))


@pytest.mark.usefixtures("here")
def test_a_run_is_stopped_with_a_checkpoint(new_run: NewRun, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hookflow.cli.control.PATIENCE", LIMIT)
    monkeypatch.setattr("hookflow.cli.control.ENDING", LIMIT)
    run_dir = new_run("run.max_epochs=100000")
    training = start(run_dir)
    done = CliRunner().invoke(app, ["stop", "toy"])
    assert done.exit_code == 0, done.output
    sent, stopped, resume = done.stdout.splitlines()
    assert sent == f"asked {run_dir.id} to stop at its next safe point"
    at = records(run_dir, "end")[0]["it"]
    assert stopped == f"■ stopped at iteration {at:,}"
    assert resume == f"resume from iteration {at:,}: hookflow run --resume {run_dir.id}"
    assert training.wait() == 0
    assert f"the run {run_dir.id} is not running" in refused("stop", "toy")


@pytest.mark.usefixtures("here")
def test_a_run_that_hangs_is_told_of_and_ended_at_once(
    new_run: NewRun, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hookflow.cli.control.PATIENCE", 1.0)
    monkeypatch.setattr(commands, "STEPS", [(number, max(seconds, LIMIT)) for number, seconds in commands.STEPS[1:]])
    run_dir = new_run('hooks.hangs={use="tests.distributed.actors:Hangs"}')
    training = start(run_dir)
    wait_for(lambda: has_said(run_dir, "hangs"))
    done = CliRunner().invoke(app, ["stop", run_dir.id])
    assert done.exit_code == 0
    assert "it has not reached one within 1 s" in done.stdout
    assert f"hookflow stop {run_dir.id} --now" in done.stdout
    training.signal(signal.SIGTERM)
    wait_for(lambda: has_said(run_dir, "hears"))
    done = CliRunner().invoke(app, ["stop", run_dir.id, "--now"])
    assert done.exit_code == 0, done.stderr
    assert done.stdout == "■ interrupted at iteration 3\n"
    assert "SIGTERM" in done.stderr
    assert training.wait() == 143


@pytest.mark.usefixtures("here")
def test_a_run_that_has_not_started_and_one_elsewhere(new_run: NewRun) -> None:
    run_dir = new_run()
    assert "has not started" in refused("stop", "toy")
    run_dir.sign(pid=1, process_started=0.0, host="far")
    assert "is on far" in refused("stop", "toy", "--now")
    assert not run_dir.commands.exists()
