"""Where the training thread is, seen from outside; and what else may lie, or lead anywhere, under that name."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hookflow.events import now

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has sealed memory")


@pytest.fixture(params=["memory", pytest.param("file", id="plain file")])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "file":
        monkeypatch.setattr(now.sys, "platform", "other")  # type: ignore[attr-defined]
    return str(request.param)


@pytest.mark.usefixtures("kind")
def test_the_training_thread_is_seen_from_outside(tmp_path: Path) -> None:
    path = tmp_path / "now.bin"
    shared = now.Shared(path)
    assert now.look(path) == (now.NOWHERE, pytest.approx(0, abs=60))
    shared.ids[0], shared.times[0] = 5, time.perf_counter() - 1000
    assert now.look(path) == (5, pytest.approx(1000, abs=60))
    script = f"from pathlib import Path; from hookflow.events import now; print(now.look(Path({str(path)!r}))[0])"
    assert subprocess.check_output([sys.executable, "-c", script], text=True) == "5\n", "by another process, too"


@pytest.mark.usefixtures("kind")
def test_what_an_earlier_attempt_has_left_is_replaced(tmp_path: Path) -> None:
    path, other = tmp_path / "now.bin", tmp_path / "other"
    path.symlink_to(other)
    shared = now.Shared(path)
    assert not other.exists(), "what the link led to is nobody's to write to"
    before, shared = shared, now.Shared(path)
    before.close()
    shared.ids[0] = 7
    assert now.look(path) == (7, pytest.approx(0, abs=60))


def shares(folder: Path) -> int:
    """Return how many files of the memory that is shared in a folder this process has open."""
    links = (path.readlink() for path in Path("/proc/self/fd").iterdir() if path.is_symlink())
    return sum(f"hookflow {folder.stat().st_ino} now.bin" in link.name for link in links)


@LINUX
@pytest.mark.parametrize("closed", [True, False])
def test_the_memory_cannot_be_truncated_and_goes_without_a_trace(tmp_path: Path, closed: bool) -> None:
    path = tmp_path / "now.bin"
    shared = now.Shared(path)
    assert shares(tmp_path) == 2, "the file, and mmap's own of it"
    with pytest.raises(PermissionError):
        os.truncate(path, 0)
    shared.ids[0] = 3
    if closed:
        shared.close()
    else:
        del shared
    assert not path.is_symlink()
    assert now.look(path) is None
    assert shares(tmp_path) == 0


@LINUX
def test_a_copied_run_directory_shows_nothing(tmp_path: Path) -> None:
    run, other = tmp_path / "run", tmp_path / "copy"
    run.mkdir()
    shared = now.Shared(run / "now.bin")
    shutil.copytree(run, other, symlinks=True)
    assert now.look(other / "now.bin") is None, "it is not this one that trains"
    (run / "now.rank1.bin").symlink_to((run / "now.bin").readlink())
    assert now.look(run / "now.rank1.bin") is None, "another machine has other processes of the same numbers"
    run = run.rename(tmp_path / "moved")
    assert now.look(run / "now.bin") is not None
    del shared


@pytest.mark.parametrize("kind", ["none", "dangling", "fifo", "device", "link to a fifo", "folder", "file", "long"])
def test_whatever_else_there_is_does_no_harm(tmp_path: Path, kind: str) -> None:
    path, fifo = tmp_path / "now.bin", tmp_path / "fifo"
    os.mkfifo(fifo)  # whoever opens it would wait; whoever reads /dev/zero would never end
    links = {"dangling": "/proc/1/fd/999", "link to a fifo": fifo, "device": "/dev/zero"}
    if kind in links:
        path.symlink_to(links[kind])
    elif kind == "folder":
        path.mkdir()
    elif kind != "none":
        path.write_bytes(b"short" if kind == "file" else bytes(17))
    assert now.look(fifo if kind == "fifo" else path) is None
