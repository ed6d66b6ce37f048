"""A disk that is full from any moment on: no checkpoint is lost, it is told, and with room again the run goes on."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from hookflow.events.rundir import RunDir
from hookflow.monitor import plain
from hookflow.runner.checkpoint.manifest import damage
from hookflow.runner.checkpoint.store import CheckpointStore
from tests.conftest import NewRun, Train, Trained, records
from tests.faults.disk import Disk
from tests.monitor.fake_run import make
from tests.runner.same import assert_same, final_state

TOLD = ("No space left on device", "unexpected pos")  # the second is PyTorch's word for a file that does not grow
SHORT = "run.max_epochs=2"
WRITES = [
    r"open run\.json",
    r"open events\.jsonl",
    r"symlink now\.bin",
    r"write events\.jsonl",
    r"mkdir checkpoints/\.it00000010",
    r"write .*it00000010.*/training\.pt",
    r"fsync .*it00000010.*/manifest\.json",
    r"symlink .*\.last\.link",
]


def followed(run: RunDir) -> str:
    """Return what is shown of a run whose process ends with exit code 1 at the second look."""
    out, codes = io.StringIO(), iter([None, 1, 1])
    assert plain.follow(run, out, child_exit=lambda: next(codes)) == 1
    return out.getvalue()


def resumed_with_room(run: RunDir, alone: RunDir, train: Callable[..., int]) -> None:
    """Look whether no checkpoint has been harmed, and the run ends as the one that was left alone."""
    store = CheckpointStore(run.checkpoints)
    assert not [path for path in store.all() if damage(path)], "whole or absent"
    assert train(run, resume=True) == 0
    assert not list(run.checkpoints.glob(".*")), "nothing is left over"
    assert_same(final_state(alone), final_state(run))


def fill(run: RunDir, begin: int | str, train_here: Train, printed: pytest.CaptureFixture[str]) -> bool:
    """Train on a disk that is full from there on; return whether it was struck."""
    with pytest.MonkeyPatch.context() as patch:
        disk = Disk(run.path, patch, begin)
        code = train_here(run)
    if disk.begun:
        reported = printed.readouterr().err + "".join(str(end["reason"]) for end in records(run, "end"))
        signs_off = records(run, "end") and all("run.json" in now for now in disk.struck)  # the run was over by then
        assert signs_off or any(words in reported for words in TOLD), disk.operations[-1]
        assert code == 1 or records(run, "checkpoint") or "event log" in reported, (
            "it ends, or has lost of its log alone"
        )
    return disk.begun


@pytest.mark.parametrize("begin", WRITES)
def test_a_disk_that_is_full_from_a_write_on(
    trained: Trained, new_run: NewRun, train_here: Train, capfd: pytest.CaptureFixture[str], begin: str
) -> None:
    alone, run = trained(SHORT), new_run(SHORT)
    assert fill(run, begin, train_here, capfd)
    resumed_with_room(run, alone, train_here)


@pytest.mark.long
def test_a_disk_that_is_full_from_each_write_in_turn_on(
    new_run: NewRun, train_here: Train, capfd: pytest.CaptureFixture[str]
) -> None:
    alone = new_run(SHORT)
    with pytest.MonkeyPatch.context() as patch:
        disk = Disk(alone.path, patch)
        assert train_here(alone) == 0
    struck = 0
    for turn in disk.turns:
        run = new_run(SHORT)
        struck += fill(run, turn, train_here, capfd)
        resumed_with_room(run, alone, train_here)
    assert struck > 70
    print(f"full at {struck} writes of {len(disk.operations)}")


def test_a_disk_that_takes_not_even_the_end_is_told_by_who_started_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make(tmp_path, upto=30)
    usage, lost = shutil.disk_usage(tmp_path), " lost       exited with code 1 and no end record"
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=0))
    assert f"{lost}: no space is left on the disk of its run directory\n" in followed(run)
    monkeypatch.undo()
    assert f"{lost}\n" in followed(run)
