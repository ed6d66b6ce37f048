"""A run's process ends at once, whatever it does; held against real processes."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from hookflow.events import stop
from hookflow.events.rundir import RunDir
from tests.limits import LIMIT

HEARS = """
import signal, sys, time
heard = []
def note(number, frame):
    heard.append(number)
    if len(heard) == 2:
        sys.exit(7)
signal.signal(signal.SIGTERM, note)
print("ready", flush=True)
while True:
    time.sleep(0.01)
"""

DEAF = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print(child.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def process(tmp_path: Path) -> Callable[[str], tuple[RunDir, subprocess.Popen[bytes], str]]:
    """Return a function that starts a process, signs a run for it, and returns both with what it has printed."""

    def start(source: str) -> tuple[RunDir, subprocess.Popen[bytes], str]:
        started = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE)
        assert started.stdout is not None
        with started.stdout as out:
            printed = out.readline().decode().strip()
        run = RunDir.create(tmp_path, "toy")
        run.sign_process(started.pid)
        return run, started, printed

    return start


def test_the_second_signal_ends_a_run_that_listens(
    process: Callable[[str], tuple[RunDir, subprocess.Popen[bytes], str]],
) -> None:
    run, started, _ = process(HEARS)
    said: list[str] = []
    assert stop.stop_now(run, said.append)
    assert started.wait() == 7
    assert said == [*[f"SIGTERM sent to process {started.pid}"] * 2, "the process has ended"]


def test_one_that_does_not_listen_is_killed_with_those_it_has_started(
    process: Callable[[str], tuple[RunDir, subprocess.Popen[bytes], str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stop, "STEPS", [(number, min(seconds, 1.0)) for number, seconds in stop.STEPS])
    run, started, child = process(DEAF)
    assert stop.stop_now(run, lambda _: None)
    assert started.wait() == -signal.SIGKILL
    until = time.monotonic() + LIMIT
    while psutil.pid_exists(int(child)) and psutil.Process(int(child)).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < until
        time.sleep(0.01)


def test_one_that_has_ended_is_left_alone(
    process: Callable[[str], tuple[RunDir, subprocess.Popen[bytes], str]],
) -> None:
    run, started, _ = process("print()")
    started.wait()
    said: list[str] = []
    assert stop.stop_now(run, said.append)
    assert said == ["the process has ended"]
