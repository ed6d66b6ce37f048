"""A power cut leaves what was flushed to the disk: a checkpoint that stands can be resumed, with its whole log."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from hookflow.events.rundir import RunDir
from hookflow.runner.checkpoint.manifest import damage
from hookflow.runner.checkpoint.store import CheckpointStore
from tests.conftest import NewRun, records
from tests.runner.same import assert_same_end

Train = Callable[..., int]
EACH = (
    'hooks.checkpoint.points=[{at="after_train_iter", every=2}, "after_val"]',
    'hooks.each={use="./killers.py:each", points=["after_train_iter"]}',
)


class Disk:
    """What a disk holds of a run: of a file the bytes at its last fsync, of a folder whether it had one."""

    def __init__(self, run_dir: RunDir, cuts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.run_dir, self.cuts = run_dir, cuts
        self.flushed: dict[Path, int] = {}
        self.count = 0
        real_fsync, real_rename = os.fsync, Path.rename

        def fsync(descriptor: int) -> None:
            real_fsync(descriptor)
            self.flushed[Path(f"/proc/self/fd/{descriptor}").readlink()] = os.fstat(descriptor).st_size

        def rename(path: Path, target: Path) -> Path:
            moved = {old: size for old, size in self.flushed.items() if path in (old, *old.parents)}
            done = real_rename(path, target)
            for old, size in moved.items():
                self.flushed[target / old.relative_to(path)] = size
            if target.name.startswith("it"):
                self.cut()
            return done

        monkeypatch.setattr(os, "fsync", fsync)
        monkeypatch.setattr(Path, "rename", rename)

    def cut(self) -> None:
        """Copy what would be left if the power went now: the worst that a file system may do."""
        self.count += 1
        left = self.cuts / str(self.count) / self.run_dir.path.parent.name / self.run_dir.id
        shutil.copytree(self.run_dir.path, left, symlinks=True)
        for path in left.rglob("*"):
            if path.is_file() and not path.is_symlink():
                os.truncate(path, self.flushed.get(self.run_dir.path / path.relative_to(left), 0))
        assert {self.run_dir.path, self.run_dir.path.parent, self.run_dir.path.parents[1]} <= self.flushed.keys()


def test_what_stands_after_a_power_cut_is_resumed_with_its_whole_log(
    new_run: NewRun, train_here: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = new_run(*EACH)
    disk = Disk(run_dir, tmp_path / "cuts", monkeypatch)
    assert train_here(run_dir) == 0
    monkeypatch.undo()
    assert disk.count >= 8
    for number in range(1, disk.count + 1):
        (path,) = (tmp_path / "cuts" / str(number)).glob("*/*")
        left = RunDir(path)
        assert not damage(CheckpointStore(left.checkpoints).all()[0])
        assert train_here(left, resume=True) == 0
        assert_same_end(left, run_dir)
        assert not [text for text in warned(left) if "the event log ends" in text]


def test_a_log_that_is_behind_its_checkpoint_is_reported(new_run: NewRun, train_here: Train) -> None:
    run_dir = new_run(*EACH, "run.max_epochs=1")
    assert train_here(run_dir) == 0
    lines = run_dir.events.read_bytes().splitlines(keepends=True)
    run_dir.events.write_bytes(b"".join(lines[: next(k for k, line in enumerate(lines) if b'"it":3' in line)]))
    assert train_here(run_dir, resume=True) == 0
    (text,) = [text for text in warned(run_dir) if "the event log ends" in text]
    assert text == (
        "the event log ends at iteration 2: what was recorded from there to the checkpoint's iteration 5 is lost, "
        "as after a power cut"
    )


def warned(run_dir: RunDir) -> list[str]:
    return [str(record["text"]) for record in records(run_dir, "message") if record["level"] == "warn"]
