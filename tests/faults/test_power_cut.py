"""A power cut leaves what was flushed to the disk: a checkpoint that stands can be resumed,
with its whole log.
"""

import os
import stat
import threading
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from hookflow.events.rundir import RunDir
from hookflow.runner.checkpoint.manifest import find_damage
from hookflow.runner.checkpoint.store import CheckpointStore
from tests.conftest import NewRun, Train, Trained, messages, records
from tests.runner.same import assert_each_once, assert_same_end

EACH = (
    'hooks.checkpoint.points=[{at="after_train_iter", every=2}, "after_val"]',
    'hooks.each={use="./kill_hooks.py:each", points=["after_train_iter"]}',
)


class Disk:
    """What a disk holds of the folder `runs`, at worst: of a file its bytes at the last fsync, of a
    folder the names.

    A file that was renamed is gone, or the older one is back, until its folder has been flushed.
    """

    def __init__(
        self, root: Path, cuts: Path, monkeypatch: pytest.MonkeyPatch, moments: Collection[int]
    ) -> None:
        self.root, self.cuts, self.moments = root, cuts, moments
        self.bytes: dict[int, bytes] = {}
        self.names: dict[int, list[tuple[str, int, str]]] = {}
        self.kept: list[int] = []
        self.count = 0
        self.lock = threading.RLock()
        for name in ("fsync", "rename", "replace", "symlink", "unlink"):
            monkeypatch.setattr(os, name, partial(self.call, getattr(os, name)))

    def call(self, operation: Callable[..., None], *args: Any, **options: Any) -> None:
        operation(*args, **options)
        with self.lock:
            if operation.__name__ == "fsync":
                self.flushed(os.dup(args[0]))
            self.count += 1
            if self.count in self.moments:
                self.write(self.root.stat().st_ino, self.cuts / str(self.count))

    def flushed(self, descriptor: int) -> None:
        self.kept.append(descriptor)  # so that no other file is given the number of this one
        result = os.fstat(descriptor)
        if stat.S_ISDIR(result.st_mode):
            entries = [*os.scandir(descriptor)]
            links = {
                each.name: os.readlink(each.name, dir_fd=descriptor)
                for each in entries
                if each.is_symlink()
            }
            self.names[result.st_ino] = [
                (each.name, each.inode(), links.get(each.name, "")) for each in entries
            ]
        else:
            self.bytes[result.st_ino] = Path(f"/proc/self/fd/{descriptor}").read_bytes()

    def write(self, number: int, left: Path) -> None:
        """Write what would be left if the power went now."""
        left.mkdir(parents=True)
        for name, inner, link in self.names.get(number, []):
            if link:
                (left / name).symlink_to(link)
            elif inner in self.names or (self.root / name).is_dir():
                self.write(inner, left / name)
            else:
                (left / name).write_bytes(self.bytes.get(inner, b""))


@pytest.mark.parametrize(("seed", "moments"), [(1, 5), pytest.param(2, 40, marks=pytest.mark.long)])
def test_what_stands_after_a_power_cut_is_resumed_with_its_whole_log(
    new_run: NewRun, train_here: Train, tmp_path: Path, seed: int, moments: int
) -> None:
    def operations(run: RunDir, cuts: Collection[int]) -> int:
        """Train a run whose disk is looked at after so many operations;
        return how many there were.
        """
        with pytest.MonkeyPatch.context() as patch:
            disk = Disk(run.path.parents[1], tmp_path / "cuts", patch, cuts)
            assert train_here(run) == 0
        for descriptor in disk.kept:
            os.close(descriptor)
        return disk.count

    whole, run_dir = new_run(*EACH), new_run(*EACH)
    count = operations(whole, ())
    assert count > 100
    operations(run_dir, Random(seed).sample(range(1, count - 20), moments))
    resumed = 0
    for left in (tmp_path / "cuts").glob(f"*/{run_dir.path.parent.name}/{run_dir.id}"):
        run = RunDir(left)
        checkpoints = CheckpointStore(run.checkpoints).all()
        assert not [path for path in checkpoints if find_damage(path)]
        if checkpoints:
            resumed += 1
            assert train_here(run, resume=True) == 0
            assert_same_end(run, whole)
            assert_each_once(run, "each", until=int(str(records(whole, "end")[-1]["it"])))
            assert not [text for text in messages(run, "warn") if "the event log ends" in text]
    assert resumed > moments / 2


def test_a_log_that_is_behind_its_checkpoint_is_reported(
    trained: Trained, train_here: Train
) -> None:
    run_dir = trained(*EACH, "run.max_epochs=1")
    lines = run_dir.events.read_bytes().splitlines(keepends=True)
    run_dir.events.write_bytes(
        b"".join(lines[: next(k for k, line in enumerate(lines) if b'"scalars"' in line)])
    )
    assert train_here(run_dir, resume=True) == 0
    (text,) = [text for text in messages(run_dir, "warn") if "the event log ends" in text]
    assert text.startswith("the event log ends before the checkpoint's iteration 5: ")
