"""Claims of a run directory, which take the place of locks where the file system knows none."""

import errno
import fcntl
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from hookflow.errors import UserError
from hookflow.events.run_claim import is_claimed, release_claim, take_claim, transfer_claim
from hookflow.events.run_lock import is_locked, release, transfer_claim_to_child, try_lock
from hookflow.events.rundir import RunDir
from hookflow.runner.process.launch import claim

AT_ONCE = 3


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    """A run directory on a file system that knows no locks."""

    def unknown(*provided: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", unknown)
    return RunDir.create(tmp_path, "toy")


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_of_several_resumes_at_once_one_gets_the_run(run: RunDir) -> None:
    for _ in range(20):
        barrier = Barrier(AT_ONCE)

        def take(barrier: Barrier = barrier) -> Path | None:
            barrier.wait()
            return take_claim(run.path)

        with ThreadPoolExecutor(AT_ONCE) as pool:
            futures = [pool.submit(take) for _ in range(AT_ONCE)]
        taken = [path for future in futures if (path := future.result()) is not None]
        assert len(taken) == 1
        release_claim(taken[0])
        assert not is_claimed(run.path)


def test_a_run_is_claimed_as_long_as_the_process_that_trains_it_lives(
    run: RunDir, child: subprocess.Popen[bytes]
) -> None:
    """From the moment that it is started on: it has not yet signed the run."""
    assert not is_locked(run.path)
    locks = claim(run)
    assert is_locked(run.path)
    transfer_claim_to_child(locks, child.pid)
    release(locks)
    assert is_locked(run.path)
    assert try_lock(run.path) is None
    with pytest.raises(UserError, match="is already running"):
        claim(run)
    child.kill()
    child.wait()
    assert not is_locked(run.path)
    release(claim(run))
    assert not list(run.path.glob("claim.*"))


def test_a_rank_shares_what_is_claimed(run: RunDir) -> None:
    locks = claim(run)
    shared = try_lock(run.path, shared=True)
    assert shared is not None
    release(shared)
    assert is_locked(run.path)
    release(locks)
    assert not is_locked(run.path)


def test_a_copy_of_a_run_is_not_claimed(
    run: RunDir, child: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    path = take_claim(run.path)
    assert path is not None
    transfer_claim(path, child.pid)
    copy = tmp_path / "copy"
    shutil.copytree(run.path, copy, symlinks=True)
    assert is_claimed(run.path)
    assert not is_claimed(copy)
    assert take_claim(copy) is not None


@pytest.mark.parametrize(
    "target", ["x", "pid=1 started=0 folder=0 host=", f"pid={10**17} started=1 folder=1 host=far"]
)
def test_a_claim_that_names_no_process_of_this_machine_is_passed_over(
    run: RunDir, target: str
) -> None:
    (run.path / "claim.7").symlink_to(target)
    (run.path / "claim.8").touch()
    assert not is_claimed(run.path)
    (run.path / "claim.8").unlink()
    path = take_claim(run.path)
    assert path == run.path / "claim.8"
    assert list(run.path.glob("claim.*")) == [path]
