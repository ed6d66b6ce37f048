"""`hookflow ctl` and `hookflow stop`: commands from the shell, to real runs."""

import json
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from hookflow.cli.app import app
from hookflow.events import commands
from hookflow.events.rundir import RunDir, run_argument
from hookflow.runner.process.launch import start
from tests.cli.conftest import refused
from tests.conftest import NewRun, records, wait_for
from tests.support.limits import LIMIT
from tests.support.processes import Training

pytestmark = pytest.mark.usefixtures("here")


def ctl(*words: str) -> Result:
    return CliRunner().invoke(app, ["ctl", "toy", *words])


Start = Callable[[RunDir], Training]


@pytest.fixture
def begin() -> Iterator[Start]:
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


@pytest.fixture
def run_dir(new_run: NewRun, begin: Start) -> RunDir:
    """A run that goes on for as long as the test takes, and has a checkpoint."""
    made = new_run(
        "run.max_epochs=100000",
        'hooks.slow={use="./common_hooks.py:slow", points=["after_backward"]}',
    )
    begin(made)
    wait_for(lambda: bool(records(made, "epoch")))
    return made


def test_commands_of_the_shell_are_answered_with_their_iteration(run_dir: RunDir) -> None:
    listed = ctl().stdout
    assert "set HOOK.ARGUMENT=VALUE" in listed and "clip.max_norm" in listed
    assert ctl("set", "clip.max_norm=0.5").stdout.startswith(
        "set clip.max_norm=0.5 done at iteration "
    )
    done = ctl("pause"), ctl("pause")
    assert [each.exit_code for each in done] == [0, 1]
    assert (
        done[1].stderr == "hookflow: refused: the run is paused already\n"
        or "refused" in done[1].stderr
    )
    assert ctl("off", "ema").exit_code == ctl("resume").exit_code == 0
    assert 'hook "ema"' not in refused("ctl", "toy", "off", "emma")
    assert "add --yes" in refused("ctl", "toy", "rewind")
    assert ctl("rewind", "--yes").exit_code == 0
    assert ctl("trace", "2").exit_code == 0
    wait_for(lambda: bool(records(run_dir, "trace")))
    shown = CliRunner().invoke(app, ["show", "toy"]).stdout
    assert "set clip.max_norm=0.5" in shown and "off ema" in shown
    exported = CliRunner().invoke(app, ["export", "toy", "--format", "perfetto"]).stdout
    assert {event["args"].get("iteration") for event in json.loads(exported)["traceEvents"]} > {
        None
    }
    assert ctl("stop", "-y").exit_code == 0


def test_now_shows_the_hook_that_never_returns_and_the_stack_of_its_thread(
    new_run: NewRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = new_run('hooks.hangs={use="tests.distributed.actors:Hangs"}')
    child = start(run_dir)
    wait_for(lambda: any(each["text"] == "hangs" for each in records(run_dir, "message")))
    monkeypatch.setenv("PATH", str(tmp_path))  # there is no py-spy
    shown = CliRunner().invoke(app, ["now", "toy"]).stdout
    where, *frames = shown.splitlines()[1:]
    assert where.startswith(f"rank 0 (pid {child.pid}): ") and where.endswith(
        'inside "hangs" at after_train_iter'
    )
    assert re.fullmatch(r"  after_train_iter \(.*actors\.py:\d+\)", frames[0]), shown
    assert "actors.py" in run_dir.output.read_text(), "what the process has written itself"
    spy = tmp_path / "py-spy"
    threads = (
        'Thread 1 (idle): "MainThread"',
        "    spied (a.py:3)",
        'Thread 2 (idle): "other"',
        "    wait (b.py:4)",
    )
    dumped = "\\n".join(["Process 1", "", *threads, ""])
    spy.write_text(f"#!/bin/sh\nprintf '{dumped}'")
    spy.chmod(0o755)
    assert CliRunner().invoke(app, ["now", "toy"]).stdout.splitlines()[2:] == ["  spied (a.py:3)"]
    child.kill()
    child.wait()


def test_a_process_that_writes_no_stack_is_left_alone(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGUSR2 would end it."""
    monkeypatch.setenv("PATH", "")
    assert "its stack is not known" in CliRunner().invoke(app, ["now", "toy"]).stdout
    assert ctl("stop", "-y").exit_code == 0


def test_a_run_that_is_over_takes_no_command(new_run: NewRun) -> None:
    run_dir = new_run("run.max_epochs=1")
    assert Training(run_dir, locked=True).wait() == 0
    assert f"the run {run_dir.id} is not running" in refused("ctl", "toy", "pause")
    refusal = refused("export", "toy", "--format", "perfetto")
    assert "has no traces" in refusal
    assert "hookflow ctl" not in refusal, "a run that is over takes no command"
    assert f"hookflow rerun {run_argument(run_dir)} --at 1 --for 10 --trace" in refusal
    run_dir.traces.mkdir()
    (run_dir.traces / "it00000001.json").write_text("{}")
    assert "are not all traces" in refused("export", "toy", "--format", "perfetto")
    assert not run_dir.commands.exists()


def has_said(run_dir: RunDir, text: str) -> bool:
    return any(record["text"] == text for record in records(run_dir, "message"))


def test_a_run_is_stopped_with_a_checkpoint(
    new_run: NewRun, begin: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hookflow.cli.control.SAFE_POINT_TIMEOUT", LIMIT)
    monkeypatch.setattr("hookflow.cli.control.END_TIMEOUT", LIMIT)
    run_dir = new_run("run.max_epochs=100000")
    training = begin(run_dir)
    done = CliRunner().invoke(app, ["stop", "toy"])
    assert done.exit_code == 0, done.output
    sent, stopped, resume = done.stdout.splitlines()
    assert sent.startswith(f"asked {run_dir.id} to stop ")
    at = records(run_dir, "end")[0]["it"]
    assert stopped == f"■ stopped at iteration {at:,}"
    assert resume.endswith(f" iteration {at:,}: hookflow run --resume {run_dir.id}")
    assert training.wait() == 0
    assert f"the run {run_dir.id} is not running" in refused("stop", "toy")


def test_a_run_that_hangs_is_named_and_ended(
    new_run: NewRun, begin: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hookflow.cli.control.SAFE_POINT_TIMEOUT", 0.1)
    monkeypatch.setattr(
        commands,
        "STOP_SIGNALS",
        [(number, max(seconds, LIMIT)) for number, seconds in commands.STOP_SIGNALS[1:]],
    )
    run_dir = new_run('hooks.hangs={use="tests.distributed.actors:Hangs"}')
    training = begin(run_dir)
    wait_for(lambda: has_said(run_dir, "hangs"))
    done = CliRunner().invoke(app, ["stop", run_dir.id])
    assert done.exit_code == 0
    assert "it has not reached one within 0" in done.stdout
    assert f"hookflow stop {run_dir.id} --now" in done.stdout
    training.signal(signal.SIGTERM)
    wait_for(lambda: has_said(run_dir, "hears"))
    done = CliRunner().invoke(app, ["stop", run_dir.id, "--now"])
    assert done.exit_code == 0, done.stderr
    assert done.stdout == "■ interrupted at iteration 3\n"
    assert "SIGINT sent" in done.stderr
    assert training.wait() == 143


def test_a_run_that_has_not_started_and_one_elsewhere(new_run: NewRun) -> None:
    run_dir = new_run()
    assert "has not started" in refused("stop", "toy")
    run_dir.sign(pid=1, process_started=0.0, host="far")
    assert "is on far" in refused("stop", "toy", "--now")
    assert not run_dir.commands.exists()
