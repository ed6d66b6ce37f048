"""A run directory that is moved, deleted or made read-only in mid-run: it is told, and what is still there is whole."""

from __future__ import annotations

import errno
import io
import os
import time
from pathlib import Path
from typing import Any

import pytest

from hookflow.events.rundir import RunDir
from hookflow.monitor import plain
from tests.conftest import NewRun, Train, Trained, records
from tests.faults.disk import Disk
from tests.faults.test_disk import followed, resumed_with_room
from tests.monitor.fake_run import make
from tests.runner.same import assert_same_end

RELOCATES = 'hooks.relocates={use="./disturbers.py:Relocates", args={to="%s"}}'


def read_only(operation: str) -> None:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


@pytest.mark.usefixtures("written_at_once")
def test_a_run_directory_that_is_moved_is_resumed_where_it_is_now(
    trained: Trained, new_run: NewRun, train_here: Train, tmp_path: Path
) -> None:
    alone, run = trained(), new_run(RELOCATES % (tmp_path / "moved"))
    assert train_here(run) == 1
    assert not run.path.exists(), "nothing is made anew where it was"
    moved = RunDir(tmp_path / "moved")
    (end,) = records(moved, "end")
    assert "the run directory is gone: it was moved or deleted" in str(end["reason"])
    assert train_here(moved, resume=True) == 0
    assert_same_end(alone, moved)


@pytest.mark.usefixtures("written_at_once")
def test_a_run_directory_that_is_deleted_is_told_by_who_started_the_run(
    trained: Trained, capfd: pytest.CaptureFixture[str]
) -> None:
    run = trained(RELOCATES % "", code=1)
    assert "the run directory is gone: it was moved or deleted" in capfd.readouterr().err
    assert not run.path.exists()
    shown = followed(run)
    assert "exited with code 1 and no end record: its run directory is gone: it was moved or deleted\n" in shown
    assert "hookflow watch" not in shown, "there is nothing to look at"


@pytest.mark.parametrize("starter", [True, False])
def test_who_watches_tells_where_a_run_directory_was_moved(tmp_path: Path, starter: bool) -> None:
    run, moved = make(tmp_path, upto=30, began=time.time()), tmp_path / "moved"
    run.sign_process()
    out, looks = io.StringIO(), 0

    def child_exit() -> int | None:
        nonlocal looks
        looks += 1
        if looks == 2:
            run.path.rename(moved)
        return None if looks < 4 else 1

    def interrupts() -> int:
        child_exit()  # which moves it
        return 0

    how: dict[str, Any] = {"child_exit": child_exit} if starter else {"interrupts": interrupts}
    assert plain.follow(run, out, **how) == 1
    (reported,) = [line for line in out.getvalue().splitlines() if " lost  " in line]
    assert f"its run directory was moved to {moved}" in reported
    assert out.getvalue().endswith(f"  the run goes on; watch it: hookflow watch {moved}\n")


def test_a_file_system_that_was_made_read_only_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make(tmp_path, upto=30)
    run.sign_process()
    run.sign(process_started=1.0)
    opened = os.open

    def refuse(path: str, flags: int, *mode: int) -> int:
        if flags & os.O_WRONLY and str(path) == str(run.events):
            read_only(path)
        return opened(path, flags, *mode)

    monkeypatch.setattr(os, "open", refuse)
    shown, why = followed(run), "the file system of its run directory is read-only\n"
    assert f"exited with code 1 and no end record: {why}" in shown
    assert f"or the machine went down; now {why}" in shown


def test_a_run_directory_that_is_made_read_only(
    trained: Trained, new_run: NewRun, train_here: Train, capfd: pytest.CaptureFixture[str]
) -> None:
    alone, run = trained("run.max_epochs=2"), new_run("run.max_epochs=2")
    with pytest.MonkeyPatch.context() as patch:
        Disk(run.path, patch, r"fsync .*it00000010.*/model\.pt", read_only)
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
