"""A disk that is full from any moment on: no checkpoint is lost, it is told, and with room again the run goes on."""

from __future__ import annotations

import contextlib
import io
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hookflow.events.rundir import RunDir
from hookflow.hooks.compile import compile_pipeline
from hookflow.monitor import plain
from hookflow.pipeline.load import parse
from hookflow.runner.checkpoint.manifest import damage
from hookflow.runner.checkpoint.store import CheckpointStore
from hookflow.runner.process.launch import prepare
from tests.conftest import TESTS, TOY, NewRun, Train, Trained, records
from tests.faults.disk import Disk
from tests.monitor.fake_run import make
from tests.processes import Training
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
    assert struck > 80
    print(f"full at {struck} writes of {len(disk.operations)}")


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Callable[[int], None]]:
    """Mount memory as a disk on a folder, and yield what says how many pages of 4 kB it has."""

    def mount(options: str) -> None:
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            pytest.skip(f"no tmpfs can be mounted here: {done.stderr.strip()}")

    folder.mkdir()
    mount("size=4k")
    try:
        yield lambda pages: mount(f"remount,size={4 * pages}k")
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.long
def test_disks_that_are_too_small(trained: Trained, tmp_path: Path) -> None:
    """The same by a real file system: one page more each time, until the run fits."""
    alone = trained(SHORT)
    codes = []
    while not codes or codes[-1]:
        folder = tmp_path / f"disk{len(codes)}"
        with small_disk(folder) as resize:
            resize(1000)
            loaded = parse(TOY.read_text(), TOY, ("run.threads=1", SHORT))
            run = RunDir.create(folder, "toy")
            prepare(loaded, compile_pipeline(loaded), run, TESTS)
            resize(7 + len(codes))  # what is there by now takes seven
            output = f"../../../printed{len(codes)}"
            codes.append(Training(run, output=output).wait())
            resize(1000)
            reported = (run.path / output).read_text() + "".join(str(end["reason"]) for end in records(run, "end"))
            assert not codes[-1] or any(words in reported for words in TOLD), reported
            resumed_with_room(run, alone, lambda run, **options: Training(run, **options).wait())
    assert set(codes) == {0, 1}
    print(f"full at {len(codes) - 1} sizes")


def test_a_disk_that_takes_not_even_the_end_is_told_by_who_started_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make(tmp_path, upto=30)
    usage = shutil.disk_usage(tmp_path)
    codes = iter([None, 1, 1])

    def reported() -> str:
        out = io.StringIO()
        plain.follow(run, out, child_exit=lambda: next(codes))
        return out.getvalue()

    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=0))
    assert (
        "lost       exited with code 1 and no end record: no space is left on the disk of its run directory"
        in reported()
    )
    monkeypatch.undo()
    codes = iter([None, 1, 1])
    assert " lost       exited with code 1 and no end record\n" in reported()
