"""A disk that is full, slow or hangs, a run directory that is moved:
no checkpoint is lost, and it is told.
"""

import errno
import io
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hookflow.events.now import NO_BINDING
from hookflow.events.rundir import RunDir
from hookflow.monitor import plain
from hookflow.monitor.feed import LogFollower
from hookflow.monitor.health import assess_health
from hookflow.runner.checkpoint import store
from hookflow.runner.checkpoint.manifest import find_damage
from hookflow.runner.checkpoint.store import CheckpointStore
from hookflow.runner.logging import recorder
from hookflow.runner.state import checkpoint_manager as manager
from tests.conftest import NewRun, Train, Trained, records, wait_for
from tests.distributed.actors import asked_to_stop
from tests.distributed.several import Ranks, carry_out, printed
from tests.faults.disk import Disk
from tests.monitor.fake_run import make
from tests.runner.same import assert_same, assert_same_end, final_state
from tests.support.processes import Training

# The second is PyTorch's word for a file that does not grow.
TOLD = ("No space left on device", "unexpected pos")
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


class SlowDisk:
    """Lets the first checkpoint of rank 0 take so many seconds on its way to the disk;
    at the end nobody waits long.
    """

    ranks = "zero"

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def before_run(self, run: Any) -> None:
        real = os.fsync

        def slow(descriptor: int) -> None:
            seconds, self.seconds = self.seconds, 0.0
            time.sleep(seconds)
            real(descriptor)

        os.fsync = slow
        manager.ABANDON_GRACE_SECONDS = recorder.GRACE_SECONDS = 0.5


class SlowReads:
    """Lets rank 0 take so many seconds to read the checkpoint that a run resumes from."""

    ranks = "zero"

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def before_run(self, run: Any) -> None:
        take = store.CheckpointStore.take

        def slow(*args: Any) -> Any:
            time.sleep(self.seconds)
            return take(*args)

        store.CheckpointStore.take = slow


def followed(run: RunDir) -> str:
    """Return what is shown of a run whose process ends with exit code 1 at the second look."""
    out, codes = io.StringIO(), iter([None, 1, 1])
    assert plain.print_run(run, out, child_exit=lambda: next(codes)) == 1
    return out.getvalue()


def resumed_with_room(run: RunDir, alone: RunDir, train: Callable[..., int]) -> None:
    """Look whether no checkpoint has been harmed,
    and the run ends as the one that was left alone.
    """
    store = CheckpointStore(run.checkpoints)
    assert not [path for path in store.all() if find_damage(path)], "whole or absent"
    assert train(run, resume=True) == 0
    assert not list(run.checkpoints.glob(".*")), "nothing is left over"
    assert_same(final_state(alone), final_state(run))


def fill(
    run: RunDir, begin: int | str, train_here: Train, printed: pytest.CaptureFixture[str]
) -> bool:
    """Train on a disk that is full from there on; return whether it was struck."""
    with pytest.MonkeyPatch.context() as patch:
        disk = Disk(run.path, patch, begin)
        code = train_here(run)
    if disk.begun:
        reported = printed.readouterr().err + "".join(
            str(end["reason"]) for end in records(run, "end")
        )
        # The run was over by then.
        signs_off = records(run, "end") and all("run.json" in now for now in disk.struck)
        assert signs_off or any(words in reported for words in TOLD), disk.operations[-1]
        assert code == 1 or records(run, "checkpoint") or "event log" in reported, (
            "it ends, or has lost of its log alone"
        )
    return disk.begun


def test_a_disk_that_is_full_from_a_write_on(
    undisturbed: Trained, new_run: NewRun, train_here: Train, capfd: pytest.CaptureFixture[str]
) -> None:
    for begin in WRITES:
        run = new_run(SHORT)
        assert fill(run, begin, train_here, capfd), begin
        resumed_with_room(run, undisturbed(SHORT), train_here)


@pytest.mark.long
def test_a_disk_full_from_each_write_on(
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


def test_a_disk_that_takes_no_end_is_told_by_who_started_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make(tmp_path, upto=30)
    usage, lost = shutil.disk_usage(tmp_path), " lost       exited with code 1 and no end record"
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=0))
    assert f"{lost}: no space is left " in followed(run)
    monkeypatch.undo()
    assert f"{lost}\n" in followed(run)


AT_FIRST = r"fsync .*it00000005.*/manifest\.json"
THREADS = ("hookflow-checkpoint", "hookflow-recorder")


def test_the_training_waits_for_a_disk_that_hangs_and_goes_on_when_it_answers(
    left_alone: RunDir, new_run: NewRun, train_here: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run()
    seen: list[str] = []

    def waits() -> bool:
        return any(
            frame["stage"] == "save" and frame["it"] == 10 for frame in records(run, "frame")
        )

    def hang(operation: str) -> None:
        if threading.current_thread().name == "hookflow-checkpoint" and not seen:
            wait_for(waits)
            live = LogFollower(run)
            live.read_all()
            seen.append(
                assess_health(
                    live.state, "alive", live.state.moved + 60, live.plan, {0: (NO_BINDING, 60.0)}
                ).sentence
            )

    Disk(run.path, monkeypatch, AT_FIRST, hang)
    assert train_here(run) == 0
    assert [text.partition(",")[2] for text in seen] == [" waiting for the disk"], (
        "five iterations on, before the next one is saved"
    )
    assert [saved["it"] for saved in records(run, "checkpoint")] == [5, 10, 15]
    assert_same_end(left_alone, run)


def test_two_signals_end_a_run_whose_disk_never_answers(
    left_alone: RunDir,
    new_run: NewRun,
    train_here: Train,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    run = new_run()
    monkeypatch.setattr(recorder, "GRACE_SECONDS", 0.1)
    monkeypatch.setattr(manager, "ABANDON_GRACE_SECONDS", 0.1)
    answered, sent = threading.Event(), threading.Lock()

    def hang(operation: str) -> None:
        if sent.acquire(blocking=False):
            os.kill(os.getpid(), signal.SIGTERM)
            # Of two at once, one may reach a thread that nobody wakes.
            wait_for(lambda: asked_to_stop() is not None)
            os.kill(os.getpid(), signal.SIGINT)
        if threading.current_thread().name in THREADS and not answered.wait(60):
            answered.set()

    with monkeypatch.context() as patch:
        Disk(run.path, patch, AT_FIRST, hang)
        assert train_here(run) == 143
        assert "the disk does not answer" in capfd.readouterr().err
        answered.set()
        for thread in [each for each in threading.enumerate() if each.name in THREADS]:
            thread.join(60)
    assert train_here(run, resume=True) == 0
    assert_same_end(left_alone, run)


DATA = [
    f'data.{split}={{use="./data_loaders.py:Clouds", loader={{batch_size=8}}}}'
    for split in ("train", "val")
]


def slow(hook: str, seconds: float) -> str:
    return (
        f'hooks.{hook.lower()}={{use="tests.faults.test_disk:{hook}", args={{seconds={seconds}}}}}'
    )


@pytest.mark.long
def test_the_other_ranks_wait_longer_than_a_collective_for_the_disk_of_rank_0(
    new_run: NewRun,
) -> None:
    overrides = [
        slow("SlowDisk", 3.0),
        slow("SlowReads", 3.0),
        *DATA,
        "distributed.timeout=1",
        'run.device="cpu"',
    ]
    run = new_run(*overrides, "run.max_epochs=2")
    assert carry_out(run, 2) == [0, 0], printed(run, 1)
    assert [saved["it"] for saved in records(run, "checkpoint")] == [5, 10]
    run.pipeline.write_text(run.pipeline.read_text().replace("max_epochs = 2", "max_epochs = 3"))
    assert carry_out(run, 2, resume=True) == [0, 0], printed(run, 1)
    assert [saved["it"] for saved in records(run, "checkpoint")] == [5, 10, 15]


def is_pending(training: Training) -> bool:
    """Return whether a signal waits for the process to take it."""
    status = Path(f"/proc/{training.process.pid}/status").read_text()
    return any(
        int(line.split()[1], 16)
        for line in status.splitlines()
        if line.startswith(("SigPnd", "ShdPnd"))
    )


def test_ranks_whose_disk_never_answers_are_reported_and_leave_at_two_signals(
    new_run: NewRun,
) -> None:
    run = new_run(slow("SlowDisk", 600.0), *DATA, 'run.device="cpu"')
    with Ranks(run, 2) as ranks:
        wait_for(
            lambda: any(
                frame["stage"] == "save" and frame["it"] == 10 for frame in records(run, "frame")
            )
        )
        live = LogFollower(run)
        live.read_all()
        health = assess_health(
            live.state, "alive", live.state.moved + 60, live.plan, {0: (NO_BINDING, 60.0)}
        )
        assert health.sentence.endswith(", waiting for the disk")
        for training in ranks.trainings:
            training.signal(signal.SIGTERM)
        # of two signals that are pending, Python handles SIGINT first, which would then not be the
        # second
        wait_for(lambda: not any(map(is_pending, ranks.trainings)))
        time.sleep(1)  # Python calls its handler a little later
        for training in ranks.trainings:
            training.signal(signal.SIGINT)
        first, other = ranks.wait()
        assert first == 143
        assert other in (143, 130), (
            "it may have waited in C, heard SIGINT first, and then lost the first rank"
        )
    assert not CheckpointStore(run.checkpoints).all()


RELOCATES = 'hooks.relocates={use="./process_hooks.py:Relocates", args={to="%s"}}'


def read_only(operation: str) -> None:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


@pytest.mark.usefixtures("written_at_once")
def test_a_moved_directory_is_resumed_so(
    left_alone: RunDir, new_run: NewRun, train_here: Train, tmp_path: Path
) -> None:
    run = new_run(RELOCATES % (tmp_path / "moved"))
    assert train_here(run) == 1
    assert not run.path.exists(), "nothing is made anew where it was"
    moved = RunDir(tmp_path / "moved")
    (end,) = records(moved, "end")
    assert "the run directory is gone" in str(end["reason"])
    assert train_here(moved, resume=True) == 0
    assert_same_end(left_alone, moved)


@pytest.mark.usefixtures("written_at_once")
def test_a_deleted_run_directory_is_told_by_who_started_it(
    trained: Trained, capfd: pytest.CaptureFixture[str]
) -> None:
    run = trained(RELOCATES % "", code=1)
    assert "the run directory is gone" in capfd.readouterr().err
    assert not run.path.exists()
    shown = followed(run)
    assert "exited with code 1 and no end record: its run directory " in shown
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
    assert plain.print_run(run, out, **how) == 1
    (reported,) = [line for line in out.getvalue().splitlines() if " lost  " in line]
    assert f"its run directory was moved to {moved}" in reported
    assert out.getvalue().endswith(f"  the run goes on; watch it: hookflow watch {moved}\n")


def test_a_file_system_that_was_made_read_only_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    undisturbed: Trained, new_run: NewRun, train_here: Train, capfd: pytest.CaptureFixture[str]
) -> None:
    run = new_run(SHORT)
    with pytest.MonkeyPatch.context() as patch:
        Disk(run.path, patch, r"fsync .*it00000010.*/model\.pt", read_only)
        assert train_here(run) == 1
    assert "the checkpoint of iteration 10 could not " in capfd.readouterr().err
    resumed_with_room(run, undisturbed(SHORT), train_here)


def test_it_cannot_be_written_at_first(
    new_run: NewRun, train_here: Train, capfd: pytest.CaptureFixture[str]
) -> None:
    run = new_run()
    with pytest.MonkeyPatch.context() as patch:
        Disk(run.path, patch, 1, read_only)
        assert train_here(run) == 1
    assert capfd.readouterr().err == (
        "hookflow: the run directory cannot be written: [Errno 30] Read-only file system\n"
    )
