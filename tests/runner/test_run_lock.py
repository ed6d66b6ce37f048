"""Two trainers in one directory would write over each other: a living one is refused whatever became of its lock."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hookflow.errors import UserError
from hookflow.events.run_lock import release
from hookflow.events.rundir import RunDir
from hookflow.runner.checkpoint.store import CheckpointStore
from hookflow.runner.process.launch import claim
from tests.conftest import NewRun, Train, Trained, records, run_here, wait_for
from tests.processes import Training


@pytest.fixture
def endless(new_run: NewRun) -> RunDir:
    return new_run("run.max_epochs=100000")


def test_a_living_run_is_not_resumed_though_its_lock_was_removed(endless: RunDir, tmp_path: Path) -> None:
    training = Training(endless, locked=True)
    wait_for(lambda: bool(records(endless, "checkpoint")))
    endless.lock.unlink()
    refused = run_here("--resume", str(endless.path), cwd=tmp_path)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert f"the run {endless.id} is already running" in refused.stderr
    assert len(records(endless, "run")) == 1
    training.signal(signal.SIGTERM)
    assert training.wait() == 143, "it has noticed nothing"


def test_nor_where_the_file_system_knows_no_locks(endless: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*provided: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", unknown)
    release(claim(endless))
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        endless.sign_process(child.pid)
        with pytest.raises(UserError, match="is already running"):
            claim(endless)
        child.kill()
    release(claim(endless))


def test_a_process_that_lives_on_after_its_run_is_not_in_the_way(trained: Trained) -> None:
    release(claim(trained("run.max_epochs=1")))


@pytest.mark.parametrize("how", ["forked", "spawned"])
def test_a_child_that_outlives_the_training_does_not_hold_its_lock(new_run: NewRun, tmp_path: Path, how: str) -> None:
    mark = tmp_path / "mark"
    leaves = f'hooks.leaves={{use="./disturbers.py:LeavesChild", args={{mark="{mark}", how="{how}"}}}}'
    run_dir = new_run("run.max_epochs=100000", leaves)
    training = Training(run_dir, locked=True)
    wait_for(mark.exists)
    child = int(mark.read_text())
    training.signal(signal.SIGKILL)
    assert training.wait() == -signal.SIGKILL
    try:
        release(claim(run_dir))
        assert run_dir.life() == "gone"
        os.kill(child, 0)
    finally:
        os.kill(child, signal.SIGKILL)


def test_what_a_living_process_writes_is_left_alone(new_run: NewRun, train_here: Train) -> None:
    run_dir = new_run("run.max_epochs=1")
    run_dir.checkpoints.mkdir()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        living = run_dir.checkpoints / f".it00000003.{child.pid}"
        given_again = run_dir.checkpoints / f".it00000004.1.{child.pid}"
        dead = run_dir.checkpoints / ".it00000005.4194305"  # more than any system has
        own, gone = run_dir.checkpoints / f".it00000006.{os.getpid()}", run_dir.checkpoints / ".it00000001.gone"
        for path in (living, given_again, dead, own, gone):
            path.mkdir()
        os.utime(given_again, (1.0, 1.0))
        assert train_here(run_dir) == 0
        child.kill()
    assert [path for path in (living, given_again, dead, own, gone) if path.exists()] == [living]
    (reported,) = (record["text"] for record in records(run_dir, "message") if "left alone" in str(record["text"]))
    assert str(living.name) in str(reported)
    assert CheckpointStore(run_dir.checkpoints).clear_leftovers() == []
