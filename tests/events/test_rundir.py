"""Run directories: how their processes are ended, and where the training thread is,
seen from outside.
"""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest

from hookflow.events import commands, now
from hookflow.events.process_life import read_start_time
from hookflow.events.run_lock import release
from hookflow.events.rundir import RunDir, all_runs, process_identity
from hookflow.runner.process.launch import claim
from tests.conftest import NewRun, wait_for
from tests.support.limits import LIMIT


def test_a_run_lives_as_long_as_its_process(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "toy")
    assert run.life() == "not started"
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        run.sign_process(child.pid)
        assert run.life() == "alive"
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert run.life() == "gone", "a zombie trains nothing"
    assert run.life() == "gone"


def test_a_run_whose_starter_has_died_before_it_trained_is_gone(new_run: NewRun) -> None:
    run = new_run()
    assert run.life() == "not started"
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        run.sign(starter=process_identity(child.pid))
        assert run.life() == "not started"
        child.kill()
    assert run.life() == "gone"
    run.sign(starter={**run.describe()["starter"], "host": "far"})
    assert run.life() == "not started", "nobody here can tell"
    for wrong in ({"pid": "1"}, {"pid": -1, "host": 3}, [], 7):
        run.sign(starter=wrong)
        assert run.life() == "not started"


@pytest.mark.parametrize(
    ("fact", "life"),
    [
        ({"pid": -1}, "gone"),
        ({"pid": 2**70}, "gone"),
        ({"process_started": 10**400}, "gone"),
        ({"host": ""}, "remote"),
    ],
)
def test_what_can_be_no_process_of_this_machine_is_none(
    tmp_path: Path, fact: dict[str, object], life: str
) -> None:
    run = RunDir.create(tmp_path, "toy")
    run.sign_process()
    run.sign(**fact)
    assert run.life() == life


def test_a_run_whose_launcher_was_killed_lives_as_long_as_a_rank_holds_it(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "toy")
    run.sign_process(os.getpid())
    run.sign(process_started=0.0)
    run.find_events_path(1).touch()
    assert run.life() == "gone", "there is no lock"
    with run.lock.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        assert run.life() == "alive"
    assert run.life() == "gone"


def test_runs_of_one_second_have_directories_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = iter(["c5f6", "c5f6", "c5f6", "0a1b"])
    monkeypatch.setattr(
        "hookflow.events.rundir.os.urandom", lambda length: bytes.fromhex(next(drawn))
    )
    monkeypatch.setattr("hookflow.events.rundir.time.strftime", lambda form: "20261122-212129")
    names = [RunDir.create(tmp_path, "toy").path.name for _ in range(2)]
    assert names == ["20261122-212129-c5f6", "20261122-212129-0a1b"]


def test_runs_are_listed_newest_first_also_those_of_one_second(tmp_path: Path) -> None:
    names = {"20261122-212129-000b": 0.1, "20261122-212129-000c": 0.3, "20261122-212129-000a": 0.2}
    for name, created in {
        **names,
        "20260101-000000-aaaa": 0.9,
        "20270201-000000-aaaa": 0.0,
    }.items():
        run = RunDir(tmp_path / "toy" / name)
        run.path.mkdir(parents=True)
        run.sign(created=1795382489 + created)
    assert [run.id[3] + run.id[-1] for run in all_runs(tmp_path)] == ["7a", "6c", "6a", "6b", "6a"]


HEARS = """
import os, signal, sys, time
heard = []
def note(number, frame):
    heard.append(number)
    if len(heard) == 2:
        sys.exit(7)
    os.write(1, b"heard\\n")  # print may be interrupted by a handler that prints
signal.signal(signal.SIGTERM, note)
signal.signal(signal.SIGINT, note)
os.write(1, b"ready\\n")
while True:
    time.sleep(0.01)
"""

DEAF = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGINT, signal.SIG_IGN)
sleeping = [sys.executable, "-c", "import time; time.sleep(600)"]
child = subprocess.Popen(sleeping, start_new_session=True)
print(child.pid, flush=True)
time.sleep(600)
"""


Start = Callable[[str], tuple[RunDir, subprocess.Popen[bytes], IO[bytes]]]


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts a process, signs a run for it,
    and returns both with what it prints.
    """
    printing: list[IO[bytes]] = []

    def start(source: str) -> tuple[RunDir, subprocess.Popen[bytes], IO[bytes]]:
        run = RunDir.create(tmp_path, "toy")
        locks = claim(run)
        started = subprocess.Popen(
            [sys.executable, "-c", source], stdout=subprocess.PIPE, pass_fds=locks
        )
        release(locks)
        assert started.stdout is not None
        printing.append(started.stdout)
        run.sign_process(started.pid)
        return run, started, started.stdout

    yield start
    for out in printing:
        out.close()


def test_the_second_signal_ends_a_run_that_listens(
    process: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        commands,
        "STOP_SIGNALS",
        [commands.STOP_SIGNALS[0], *((number, LIMIT) for number, _ in commands.STOP_SIGNALS[1:])],
    )
    run, started, out = process(HEARS)
    assert out.readline() == b"ready\n"
    texts: list[str] = []

    def say(text: str) -> None:
        if texts:
            assert out.readline() in (
                b"heard\n",
                b"",
            ), "a signal that comes before the last one was heard is lost"
        texts.append(text)

    assert commands.stop_now(run, say)
    assert started.wait() == 7
    sent = [f"{name} sent to process {started.pid}" for name in ("SIGTERM", "SIGINT")]
    assert texts == [*sent, "the process has ended"]


def test_a_deaf_one_is_killed_with_those_it_has_started(
    process: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    *asked, killed = (number for number, _ in commands.STOP_SIGNALS)
    monkeypatch.setattr(
        commands, "STOP_SIGNALS", [*((number, 0.1) for number in asked), (killed, LIMIT)]
    )
    run, started, out = process(DEAF)
    child = out.readline()
    assert commands.stop_now(run, lambda _: None)
    assert started.wait() == -signal.SIGKILL
    wait_for(lambda: read_start_time(int(child)) is None)


@pytest.mark.parametrize("how", ["a copy", "of a run that is over"])
def test_a_process_that_does_not_hold_the_lock_is_left_alone(
    process: Start, tmp_path: Path, how: str
) -> None:
    run, started, out = process(HEARS)
    assert out.readline() == b"ready\n"
    other = RunDir(tmp_path / "toy" / "other")
    if how == "a copy":
        shutil.copytree(run.path, other.path)
    else:
        other.path.mkdir()
        release(claim(other))
        other.sign_process(started.pid)
    assert other.life() == "alive", "by its pid and start time"
    texts: list[str] = []
    assert not commands.stop_now(other, texts.append)
    (text,) = texts
    assert text.startswith(f"process {started.pid}, which run.json names, ")
    assert started.poll() is None
    started.kill()
    started.wait()


LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has sealed memory")


@pytest.fixture(params=["memory", pytest.param("file", id="plain file")])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "file":
        monkeypatch.setattr(now.sys, "platform", "other")  # type: ignore[attr-defined]
    return str(request.param)


@pytest.mark.usefixtures("kind")
def test_the_training_thread_is_seen_from_outside(tmp_path: Path) -> None:
    path = tmp_path / "now.bin"
    shared = now.NowMemory(path)
    assert now.read_current_binding(path) == (now.NO_BINDING, pytest.approx(0, abs=60))
    shared.ids[0], shared.times[0] = 5, time.perf_counter() - 1000
    assert now.read_current_binding(path) == (5, pytest.approx(1000, abs=60))
    imports = "from pathlib import Path; from hookflow.events import now"
    script = f"{imports}; print(now.read_current_binding(Path({str(path)!r}))[0])"
    assert subprocess.check_output([sys.executable, "-c", script], text=True) == "5\n", (
        "by another process, too"
    )


@pytest.mark.usefixtures("kind")
def test_what_an_earlier_attempt_has_left_is_replaced(tmp_path: Path) -> None:
    path, other = tmp_path / "now.bin", tmp_path / "other"
    path.symlink_to(other)
    shared = now.NowMemory(path)
    assert not other.exists(), "what the link led to is nobody's to write to"
    before, shared = shared, now.NowMemory(path)
    before.close()
    shared.ids[0] = 7
    assert now.read_current_binding(path) == (7, pytest.approx(0, abs=60))


def shares(folder: Path) -> int:
    """Return how many files of the memory that is shared in a folder this process has open."""
    links = (path.readlink() for path in Path("/proc/self/fd").iterdir() if path.is_symlink())
    return sum(f"hookflow {folder.stat().st_ino} now.bin" in link.name for link in links)


@LINUX
@pytest.mark.parametrize("closed", [True, False])
def test_the_memory_cannot_be_truncated_and_goes_without_a_trace(
    tmp_path: Path, closed: bool
) -> None:
    path = tmp_path / "now.bin"
    shared = now.NowMemory(path)
    assert shares(tmp_path) == 2, "the file, and mmap's own of it"
    with pytest.raises(PermissionError):
        os.truncate(path, 0)
    shared.ids[0] = 3
    if closed:
        shared.close()
    else:
        del shared
    assert not path.is_symlink()
    assert now.read_current_binding(path) is None
    assert shares(tmp_path) == 0


@LINUX
def test_a_copied_run_directory_shows_nothing(tmp_path: Path) -> None:
    run, other = tmp_path / "run", tmp_path / "copy"
    run.mkdir()
    shared = now.NowMemory(run / "now.bin")
    shutil.copytree(run, other, symlinks=True)
    assert now.read_current_binding(other / "now.bin") is None, "it is not this one that trains"
    (run / "now.rank1.bin").symlink_to((run / "now.bin").readlink())
    assert now.read_current_binding(run / "now.rank1.bin") is None, (
        "another machine has other processes of the same numbers"
    )
    run = run.rename(tmp_path / "moved")
    assert now.read_current_binding(run / "now.bin") is not None
    del shared


@pytest.mark.parametrize(
    "kind", ["none", "dangling", "fifo", "device", "link to a fifo", "folder", "file", "long"]
)
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
    assert now.read_current_binding(fifo if kind == "fifo" else path) is None
