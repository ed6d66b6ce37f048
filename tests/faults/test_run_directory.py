"""A run directory that is moved, deleted or made read-only in mid-run: it is told, and what is still there is whole."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hookflow.events.rundir import RunDir
from hookflow.monitor import plain
from tests.conftest import NewRun, records
from tests.faults.disk import Disk
from tests.faults.test_disk_full import resumed_with_room
from tests.runner.same import assert_same_end

Train = Callable[..., int]
RELOCATES = 'hooks.relocates={use="./disturbers.py:Relocates", args={to="%s"}}'


def read_only(operation: str) -> None:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


@pytest.mark.usefixtures("written_at_once")
def test_a_run_directory_that_is_moved_is_resumed_where_it_is_now(
    new_run: NewRun, train_here: Train, tmp_path: Path
) -> None:
    alone, run = new_run(), new_run(RELOCATES % (tmp_path / "moved"))
    assert train_here(alone) == 0
    assert train_here(run) == 1
    assert not run.path.exists(), "nothing is made anew where it was"
    moved = RunDir(tmp_path / "moved")
    (end,) = records(moved, "end")
    assert "the run directory is gone: it was moved or deleted" in str(end["reason"])
    assert train_here(moved, resume=True) == 0
    assert_same_end(alone, moved)


@pytest.mark.usefixtures("written_at_once")
def test_a_run_directory_that_is_deleted_is_told_by_who_started_the_run(
    new_run: NewRun, train_here: Train, capfd: pytest.CaptureFixture[str]
) -> None:
    run = new_run(RELOCATES % "")
    assert train_here(run) == 1
    assert "the run directory is gone: it was moved or deleted" in capfd.readouterr().err
    assert not run.path.exists()
    out = io.StringIO()
    codes = iter([None, 1, 1])
    assert plain.follow(run, out, child_exit=lambda: next(codes)) == 1
    assert "exited with code 1 and no end record: its run directory is gone\n" in out.getvalue()


@pytest.mark.parametrize("begin", [r"mkdir checkpoints/\.it00000010", r"fsync .*it00000010.*/model\.pt"])
def test_a_run_directory_that_is_made_read_only(
    new_run: NewRun, train_here: Train, capfd: pytest.CaptureFixture[str], begin: str
) -> None:
    alone, run = new_run("run.max_epochs=2"), new_run("run.max_epochs=2")
    assert train_here(alone) == 0
    with pytest.MonkeyPatch.context() as patch:
        Disk(run.path, patch, begin, read_only)
        assert train_here(run) == 1
    assert "the checkpoint of iteration 10 could not be saved: [Errno 30] Read-only" in capfd.readouterr().err
    resumed_with_room(run, alone, train_here)


def test_it_cannot_be_written_when_the_run_starts(
    new_run: NewRun, train_here: Train, capfd: pytest.CaptureFixture[str]
) -> None:
    run = new_run()
    with pytest.MonkeyPatch.context() as patch:
        Disk(run.path, patch, 1, read_only)
        assert train_here(run) == 1
    assert capfd.readouterr().err == (
        "hookflow: the run directory cannot be written: [Errno 30] Read-only file system\n"
    )
