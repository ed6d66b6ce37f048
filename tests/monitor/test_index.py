"""The index of runs: its rows are those that the logs give, whatever becomes of its file and of the runs."""

import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from hookflow.events.rundir import RunDir
from hookflow.monitor import index
from hookflow.monitor.index import NAME, Index
from hookflow.monitor.summary import read_overview
from tests.cli.test_hostile_runs import permissions_hold
from tests.limits import LIMIT
from tests.monitor.fake_run import Training, append, end, make_ranks, make_several


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make_several(tmp_path / "runs", 3)
    return tmp_path / "runs"


def rows(root: Path) -> list[Mapping[str, Any]]:
    return [{**row.values, **row.config, "curve": row.curve} for row in Index(root).refresh()]


def read_again(monkeypatch: pytest.MonkeyPatch, root: Path) -> list[str]:
    """Return the ids of the runs whose logs are read."""
    read: list[str] = []

    def look(self: Index, path: str, signature: str) -> Any:
        read.append(path.rpartition("/")[2])
        return original(self, path, signature)

    original = Index._look
    with monkeypatch.context() as patch:
        patch.setattr(Index, "_look", look)
        Index(root).refresh()
    return read


def test_a_row_has_what_the_log_and_the_pipeline_say(root: Path) -> None:
    lost, second, first = rows(root)
    assert first["status"] == second["status"] == "finished"
    assert (first["epoch"], first["epochs"], first["iter"], first["iters"]) == (8, 8, 784, 784)
    assert (first["model.args.width"], first["optimizer.args.lr"], first["run.seed"]) == (64, 0.1, 0)
    assert first["metric"] == "accuracy"
    assert first["best.accuracy"] == first["accuracy"] == first["curve"][-1]
    assert {"loss", "lr"} <= first.keys(), "scalars"
    assert first["data"] == "SYNTHETIC"
    assert (lost["status"], lost["iter"] < 784) == ("lost", True)
    assert "the process is gone" in lost["reason"]


def test_the_file_gives_the_same_rows_and_no_log_is_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = rows(root)
    assert (root / NAME).stat().st_mode & 0o777 == 0o600, "as private as the runs"
    assert read_again(monkeypatch, root) == []
    assert rows(root) == before


def test_what_changes_is_read_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lost, second, first = (row.run for row in Index(root).refresh())
    append(lost, [end(t=1.79e9 + 8000, it=300, ep=3, status="stopped", reason="by hand")])
    second.notes.write_text('{"tags": ["good"], "note": "a note"}')
    shutil.rmtree(first.path)
    assert sorted(read_again(monkeypatch, root)) == sorted([lost.id, second.id])
    after = rows(root)
    assert [(row["status"], row["tags"], row["note"]) for row in after] == [
        ("stopped", [], None),
        ("finished", ["good"], "a note"),
    ]
    with sqlite3.connect(root / NAME) as db:
        assert db.execute("SELECT count(*) FROM runs").fetchone() == (2,)


def test_a_run_that_goes_on_is_read_on_and_not_kept(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    going = RunDir(root / "cifar" / "20260922-000000-ffff")
    going.path.mkdir()
    going.sign(id=going.id, created=1.79e9)
    going.sign_process()
    training = Training(time.time()).records()
    append(going, *(next(training) for _ in range(30)))
    listed = Index(root)
    before = listed.refresh()[0].values["iter"]
    append(going, *(next(training) for _ in range(30)))
    (glance,) = listed._glances.values()
    at = glance._tails[0].at
    assert listed.refresh()[0].values["iter"] > before > 0
    assert glance._tails[0].at > at > 0, "it was read on"
    (root / "cifar" / "none").mkdir()
    assert read_again(monkeypatch, root) == [going.id]
    assert Index(root).refresh()[0].values["status"] == "running"


def test_a_run_of_another_machine_that_is_silent_is_read_when_its_log_grows(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = RunDir(root / "cifar" / "20260922-000000-ffff")
    away.path.mkdir()
    away.sign(id=away.id, created=1.79e9, pid=1, host="elsewhere")
    training = Training(1.79e9).records()
    append(away, *(next(training) for _ in range(30)))
    before = Index(root).refresh()[0].values
    assert before["status"] == "stalled"
    assert before["reason"].startswith("no progress since 2026-")
    assert read_again(monkeypatch, root) == []
    append(away, *(next(training) for _ in range(30)))
    assert read_again(monkeypatch, root) == [away.id]
    assert Index(root).refresh()[0].values["iter"] > before["iter"]


DAMAGES: dict[str, Callable[[Path], object]] = {
    "garbage": lambda file: file.write_bytes(os.urandom(5000)),
    "torn": lambda file: file.write_bytes(file.read_bytes()[:5000]),
    "a page of zeros": lambda file: file.write_bytes(file.read_bytes()[:4096] + bytes(4096)),
    "empty": lambda file: file.write_bytes(b""),
    "another version": lambda file: execute(file, "PRAGMA user_version = 99"),
    "another table": lambda file: execute(file, "DROP TABLE runs", "CREATE TABLE runs (x)"),
    "no values": lambda file: execute(file, "UPDATE runs SET row = '{\"values\": 3}'"),
    "values of other types": lambda file: execute(
        file, 'UPDATE runs SET row = replace(row, \'"ranks":1\', \'"ranks":"1"\')'
    ),
    "no JSON of a pipeline": lambda file: execute(file, "UPDATE runs SET config = 'x'"),
    "no JSON": lambda file: execute(file, "UPDATE runs SET row = 'x'"),
}


def execute(file: Path, *statements: str) -> None:
    with sqlite3.connect(file) as db:
        for statement in statements:
            db.execute(statement)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_made_anew(root: Path, damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = rows(root)
    DAMAGES[damage](root / NAME)
    assert {row.get("run.seed") for row in Index(root).refresh()} == {row["run.seed"] for row in before}
    assert rows(root) == before
    assert read_again(monkeypatch, root) == [], "it was written again"


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to(path)])
def test_something_else_in_its_place(root: Path, make: Callable[[Path], None]) -> None:
    make(root / NAME)
    assert len(rows(root)) == 3


def test_a_folder_that_may_not_be_written(root: Path) -> None:
    root.chmod(0o500)
    with permissions_hold():
        assert len(rows(root)) == 3
    root.chmod(0o700)
    assert not (root / NAME).exists()
    before = rows(root)
    (root / NAME).chmod(0)
    with permissions_hold():
        assert rows(root) == before


def test_a_mount_that_is_gone_costs_no_rows(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = rows(root)
    with monkeypatch.context() as patch:
        patch.setattr(index, "run_paths", lambda root, unreadable, known: unreadable("gone") or iter(()))
        assert rows(root) == []
    assert read_again(monkeypatch, root) == []
    assert rows(root) == before


def test_several_processes_at_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They list, kill the file and write it, while runs end; nobody fails, and at the end the file is right."""
    code = (
        "import sys; from pathlib import Path; from hookflow.monitor.index import NAME, Index\n"
        "root, number = Path(sys.argv[1]), int(sys.argv[2])\n"
        "for k in range(15):\n"
        "    assert len(Index(root).refresh()) == 3\n"
        "    (root / 'cifar' / '20260921-141320-0000' / f'note{number}.{k}').touch()\n"
        "    if number == 0 and k % 5 == 0: (root / NAME).write_bytes(b'x' * 5000)\n"
    )
    command = [sys.executable, "-W", "error", "-c", code, str(root)]
    children = [subprocess.Popen([*command, str(number)], stderr=subprocess.PIPE, text=True) for number in range(4)]
    for child in children:
        _, errors = child.communicate(timeout=LIMIT)
        assert (child.returncode, errors) == (0, "")
    before = rows(root)
    assert len(before) == 3
    assert read_again(monkeypatch, root) == []


def test_another_rank_that_fails_late_is_seen(tmp_path: Path) -> None:
    run = make_ranks(tmp_path, 2, upto=40)
    append(run, [end(t=1.79e9 + 100, it=300, ep=3, status="failed", exit=1, reason="rank 1 was killed")])
    (before,) = Index(tmp_path).refresh()
    where = {"hook": "ema", "point": "after_train_iter", "type": "ValueError", "action": "raise"}
    texts = {"text": "too bad", "traceback": "", "at": "", "causes": ""}
    append(run, [{"k": "error", "t": 1.79e9 + 99, "it": 300, "ep": 3, **where, **texts}], rank=1)
    (after,) = Index(tmp_path).refresh()
    assert before.values["status"] == after.values["status"] == "failed"
    assert "rank 1" in after.values["reason"] and "ValueError: too bad" in after.values["reason"]


@pytest.mark.parametrize(
    ("it", "reason", "shown"), [(300, "no hope", "stopped early: no hope"), (784, "no hope", ""), (300, "", "")]
)
def test_a_run_that_a_hook_ended_early_is_finished(tmp_path: Path, it: int, reason: str, shown: str) -> None:
    (run,) = make_several(tmp_path, 1, upto=60)
    append(run, [end(t=1.79e9 + 8000, it=it, ep=3, reason=reason)])
    seen = read_overview(run, time.time())
    assert (seen.health.condition, seen.reason) == ("finished", shown)
