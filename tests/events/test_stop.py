"""A run's process ends at once, whatever it does; held against real processes."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest

from hookflow.events import stop
from hookflow.events.run_lock import release, started_at
from hookflow.events.rundir import RunDir
from hookflow.runner.process.launch import claim
from tests.conftest import wait_for
from tests.limits import LIMIT

HEARS = """
import os, signal, sys, time
heard = []
def note(number, frame):
    heard.append(number)
    if len(heard) == 2:
        sys.exit(7)
    os.write(1, b"heard\\n")  # print may be interrupted by a handler that prints
signal.signal(signal.SIGTERM, note)
os.write(1, b"ready\\n")
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


Start = Callable[[str], tuple[RunDir, subprocess.Popen[bytes], IO[bytes]]]


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts a process, signs a run for it, and returns both with what it prints."""
    printing: list[IO[bytes]] = []

    def start(source: str) -> tuple[RunDir, subprocess.Popen[bytes], IO[bytes]]:
        run = RunDir.create(tmp_path, "toy")
        locks = claim(run)
        started = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, pass_fds=locks)
        release(locks)
        assert started.stdout is not None
        printing.append(started.stdout)
        run.sign_process(started.pid)
        return run, started, started.stdout

    yield start
    for out in printing:
        out.close()


def test_the_second_signal_ends_a_run_that_listens(process: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop, "STEPS", [stop.STEPS[0], *((number, LIMIT) for number, _ in stop.STEPS[1:])])
    run, started, out = process(HEARS)
    assert out.readline() == b"ready\n"
    texts: list[str] = []

    def say(text: str) -> None:
        if texts:
            assert out.readline() in (b"heard\n", b""), "a signal that comes before the last one was heard is lost"
        texts.append(text)

    assert stop.stop_now(run, say)
    assert started.wait() == 7
    assert texts == [*[f"SIGTERM sent to process {started.pid}"] * 2, "the process has ended"]


def test_one_that_does_not_listen_is_killed_with_those_it_has_started(
    process: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = {signal.SIGTERM: 0.1, signal.SIGKILL: LIMIT}
    monkeypatch.setattr(stop, "STEPS", [(number, waits[number]) for number, _ in stop.STEPS])
    run, started, out = process(DEAF)
    child = out.readline()
    assert stop.stop_now(run, lambda _: None)
    assert started.wait() == -signal.SIGKILL
    wait_for(lambda: started_at(int(child)) is None)


@pytest.mark.parametrize("how", ["a copy", "of a run that is over"])
def test_a_process_that_does_not_hold_the_lock_is_left_alone(process: Start, tmp_path: Path, how: str) -> None:
    run, started, out = process(HEARS)
    assert out.readline() == b"ready\n"
    other = RunDir(tmp_path / "toy" / "other")
    if how == "a copy":
        shutil.copytree(run.path, other.path)
    else:
        other.path.mkdir()
        release(claim(other))
        other.sign_process(started.pid)
    assert other.life() == "alive", "by its pid and start time"
    texts: list[str] = []
    assert not stop.stop_now(other, texts.append)
    assert texts == [
        f"process {started.pid}, which run.json names, does not hold the lock of this run: it is left alone"
    ]
    assert started.poll() is None
    started.kill()
    started.wait()


def test_one_that_has_ended_is_left_alone(process: Start) -> None:
    run, started, _ = process("print()")
    started.wait()
    texts: list[str] = []
    assert stop.stop_now(run, texts.append)
    assert texts == ["the process has ended"]
