import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hookflow.events.rundir import RunDir, all_runs


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


@pytest.mark.parametrize("facts", [{"pid": -1}, {"pid": 2**70}, {"process_started": 10**400}])
def test_what_can_be_no_process_is_none(tmp_path: Path, facts: dict[str, int]) -> None:
    run = RunDir.create(tmp_path, "toy")
    run.sign_process()
    run.sign(**facts)
    assert run.life() == "gone"


def test_a_run_whose_launcher_was_killed_lives_as_long_as_a_rank_holds_it(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "toy")
    run.sign_process(os.getpid())
    run.sign(process_started=0.0)
    run.events_of(1).touch()
    assert run.life() == "gone", "there is no lock"
    with run.lock.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        assert run.life() == "alive"
    assert run.life() == "gone"


def test_a_run_of_another_machine_is_told_as_such(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "toy")
    run.sign_process()
    run.sign(host="elsewhere")
    assert run.life() == "remote"


def test_runs_that_begin_in_one_second_have_directories_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = iter(["c5f6", "c5f6", "c5f6", "0a1b"])
    monkeypatch.setattr("hookflow.events.rundir.secrets.token_hex", lambda length: next(drawn))
    monkeypatch.setattr("hookflow.events.rundir.time.strftime", lambda form: "20261122-212129")
    names = [RunDir.create(tmp_path, "toy").path.name for _ in range(2)]
    assert names == ["20261122-212129-c5f6", "20261122-212129-0a1b"]


def test_runs_are_listed_newest_first_also_those_of_one_second(tmp_path: Path) -> None:
    names = {"20261122-212129-000b": 0.1, "20261122-212129-000c": 0.3, "20261122-212129-000a": 0.2}
    for name, created in {**names, "20260101-000000-aaaa": 0.9, "20270201-000000-aaaa": 0.0}.items():
        run = RunDir(tmp_path / "toy" / name)
        run.path.mkdir(parents=True)
        run.sign(created=1795382489 + created)
    assert [run.id[3] + run.id[-1] for run in all_runs(tmp_path)] == ["7a", "6c", "6a", "6b", "6a"]
