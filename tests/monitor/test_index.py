"""Runs of a folder: by what people call them, the list of them, and its index,
whatever becomes of its file.
"""

import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from hookflow.cli.runs import runs
from hookflow.errors import UserError
from hookflow.events.rundir import RunDir
from hookflow.monitor import index
from hookflow.monitor.index import INDEX_FILE_NAME, Index
from hookflow.monitor.recording import Recording
from hookflow.monitor.summary import read_run_summary
from hookflow.service.runs import find_run, has_begun, has_checkpoint
from tests.monitor.conftest import read
from tests.monitor.fake_run import (
    Training,
    append,
    end,
    gone,
    make,
    make_ranks,
    make_several,
    record,
)
from tests.support.file_permissions import permissions_hold
from tests.support.limits import LIMIT


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

    original = Index._read_log
    with monkeypatch.context() as patch:
        patch.setattr(Index, "_read_log", look)
        Index(root).refresh()
    return read


def test_a_row_has_what_the_log_and_the_pipeline_say_and_is_kept(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost, second, first = rows(root)
    assert first["status"] == second["status"] == "finished"
    assert (first["epoch"], first["epochs"], first["iter"], first["iters"]) == (8, 8, 784, 784)
    assert (first["model.args.width"], first["optimizer.args.lr"], first["run.seed"]) == (
        64,
        0.1,
        0,
    )
    assert first["metric"] == "accuracy"
    assert first["best.accuracy"] == first["accuracy"] == first["curve"][-1]
    assert {"loss", "lr"} <= first.keys(), "scalars"
    assert first["data"] == "SYNTHETIC"
    assert (lost["status"], lost["iter"] < 784) == ("lost", True)
    assert "the process is gone" in lost["reason"]
    before = rows(root)
    assert (root / INDEX_FILE_NAME).stat().st_mode & 0o777 == 0o600, "as private as the runs"
    assert read_again(monkeypatch, root) == []
    assert rows(root) == before
    before = rows(root)
    with monkeypatch.context() as patch:
        patch.setattr(
            index, "run_paths", lambda root, unreadable, known: unreadable("gone") or iter(())
        )
        assert rows(root) == []
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
    with closing(sqlite3.connect(root / INDEX_FILE_NAME)) as db:
        assert db.execute("SELECT count(*) FROM runs").fetchone() == (2,)


def test_a_run_that_goes_on_is_read_on_and_not_kept(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    going = RunDir(root / "cifar" / "20260922-000000-ffff")
    going.path.mkdir()
    going.sign(id=going.id, created=1.79e9)
    going.sign_process()
    training = Training(time.time()).records()
    append(going, *(next(training) for _ in range(30)))
    listed = Index(root)
    before = listed.refresh()[0].values["iter"]
    append(going, *(next(training) for _ in range(30)))
    (reader,) = listed._readers.values()
    at = reader._readers[0].at
    assert listed.refresh()[0].values["iter"] > before > 0
    assert reader._readers[0].at > at > 0, "it was read on"
    (root / "cifar" / "none").mkdir()
    assert read_again(monkeypatch, root) == [going.id]
    assert Index(root).refresh()[0].values["status"] == "running"


def test_a_silent_run_of_another_machine_is_read_when_it_grows(
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


def test_a_run_that_was_just_resumed_is_where_its_checkpoint_was(root: Path) -> None:
    lost = next(row.run for row in Index(root).refresh() if row.values["status"] == "lost")
    lines = lost.events.read_text().splitlines()
    first = json.loads(lines[0])
    far = next(row.values["iter"] for row in Index(root).refresh() if row.id == lost.id)
    begun = {**first, "t": first["t"] + 500, "it": 98, "ep": 1, "resumed_from": "it00000098"}
    append(lost, [begun])
    resumed = read_run_summary(lost, begun["t"]).state
    assert (resumed.it, resumed.ep) == (98, 1) and far > 98
    later = {"k": "scalars", "t": begun["t"] + 1, "it": 99, "ep": 1, "v": {"loss": 1.25}}
    append(lost, [later, record("frame", begun["t"] + 1, 99, 1)])
    again = read_run_summary(lost, begun["t"] + 1).state
    assert (again.it, again.scalars["loss"].last) == (99, 1.25)


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
    "tags that are none": lambda file: execute(
        file, "UPDATE runs SET row = json_set(row, '$.tags', 7)"
    ),
    "a metric that is a list": lambda file: execute(
        file, "UPDATE runs SET row = json_set(row, '$.loss', json('[1]'))"
    ),
    "a value is missing": lambda file: execute(
        file, "UPDATE runs SET row = json_remove(row, '$.duration')"
    ),
    "bytes": lambda file: execute(file, "UPDATE runs SET config = x'00ff'"),
    "a text that is no UTF-8": lambda file: execute(
        file, "UPDATE runs SET config = CAST(x'ffff' AS TEXT)"
    ),
    "a view without an end": lambda file: execute(
        file,
        "DROP TABLE runs",
        "CREATE VIEW runs AS WITH RECURSIVE n(k) AS (VALUES(1) UNION ALL SELECT k + 1 FROM n)"
        " SELECT '' || k AS path, '' AS signature, '{}' AS row, '' AS config, '' AS curve FROM n"
        " WHERE k < 0",
    ),
    "a trigger without an end": lambda file: execute(
        file,
        "DELETE FROM runs",
        "CREATE TRIGGER t BEFORE INSERT ON runs BEGIN SELECT max(k) FROM (WITH RECURSIVE n(k) AS "
        "(VALUES(1) UNION ALL SELECT k + 1 FROM n) SELECT k FROM n); END",
    ),
    "a huge column": lambda file: execute(
        file,
        "DROP TABLE runs",
        "CREATE TABLE runs (path TEXT, signature TEXT, row TEXT, config TEXT, "
        "curve TEXT AS (hex(zeroblob(400000000))))",
        "INSERT INTO runs VALUES ('a', '', '{}', '')",
    ),
}


def execute(file: Path, *statements: str) -> None:
    with closing(sqlite3.connect(file)) as db, db:
        for statement in statements:
            db.execute(statement)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_made_anew(
    root: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = rows(root)
    DAMAGES[damage](root / INDEX_FILE_NAME)
    assert {row.get("run.seed") for row in Index(root).refresh()} == {
        row["run.seed"] for row in before
    }
    assert rows(root) == before
    assert read_again(monkeypatch, root) == [], "it was written again"


def test_a_folder_whose_name_is_no_utf_8_hides_no_other_run(root: Path) -> None:
    before = rows(root)
    odd = Path(os.fsdecode(bytes(root / "cifar") + b"/\xff-odd"))
    shutil.copytree(next((root / "cifar").iterdir()), odd)
    every = rows(root)
    assert len(every) == len(before) + 1
    assert [row for row in every if row["id"] != odd.name] == before
    shutil.rmtree(odd)
    assert rows(root) == before


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to(path)])
def test_something_else_in_its_place(root: Path, make: Callable[[Path], None]) -> None:
    make(root / INDEX_FILE_NAME)
    assert len(rows(root)) == 3


def test_a_folder_that_may_not_be_written(root: Path) -> None:
    root.chmod(0o500)
    with permissions_hold():
        assert len(rows(root)) == 3
    root.chmod(0o700)
    assert not (root / INDEX_FILE_NAME).exists()
    before = rows(root)
    (root / INDEX_FILE_NAME).chmod(0)
    with permissions_hold():
        assert rows(root) == before


def test_several_processes_at_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They list, kill the file and write it, while runs end; nobody fails,
    and at the end the file is right.
    """
    code = (
        "import sys; from pathlib import Path; from hookflow.monitor.index import INDEX_FILE_NAME,"
        " Index\nroot, number = Path(sys.argv[1]), int(sys.argv[2])\nfor k in range(8):\n    assert"
        " len(Index(root).refresh()) == 3\n    (root / 'cifar' / '20260921-141320-0000' /"
        " f'note{number}.{k}').touch()\n    if number == 0 and k % 5 == 0: (root /"
        " INDEX_FILE_NAME).write_bytes(b'x' * 5000)\n"
    )
    command = [sys.executable, "-W", "error", "-c", code, str(root)]
    children = [
        subprocess.Popen([*command, str(number)], stderr=subprocess.PIPE, text=True)
        for number in range(4)
    ]
    for child in children:
        _, errors = child.communicate(timeout=LIMIT)
        assert (child.returncode, errors) == (0, "")
    before = rows(root)
    assert len(before) == 3
    assert read_again(monkeypatch, root) == []


def test_another_rank_that_fails_late_is_seen(tmp_path: Path) -> None:
    run = make_ranks(tmp_path, 2, upto=40)
    append(
        run,
        [end(t=1.79e9 + 100, it=300, ep=3, status="failed", exit=1, reason="rank 1 was killed")],
    )
    (before,) = Index(tmp_path).refresh()
    append(
        run, [record("error", 1.79e9 + 99, 300, 3, hook="ema", point="after_train_iter")], rank=1
    )
    (after,) = Index(tmp_path).refresh()
    assert before.values["status"] == after.values["status"] == "failed"
    assert "rank 1" in after.values["reason"] and "ValueError: too bad" in after.values["reason"]


@pytest.mark.parametrize(
    ("it", "reason", "shown"),
    [(300, "no hope", "stopped early: no hope"), (784, "no hope", ""), (300, "", "")],
)
def test_a_run_that_a_hook_ended_early_is_finished(
    tmp_path: Path, it: int, reason: str, shown: str
) -> None:
    (run,) = make_several(tmp_path, 1, upto=60)
    append(run, [end(t=1.79e9 + 8000, it=it, ep=3, reason=reason)])
    seen = read_run_summary(run, time.time())
    assert (seen.health.condition, seen.reason) == ("finished", shown)


def signed(named: Path, name: str, identity: str) -> RunDir:
    run = RunDir(named / name / identity)
    run.path.mkdir(parents=True)
    run.sign(id=identity, name=name)
    return run


@pytest.fixture
def named(tmp_path: Path) -> Path:
    """Three runs of two names; the newest is `mnist/20260923-…`."""
    signed(tmp_path, "cifar", "20260921-141320-a3f9")
    signed(tmp_path, "cifar", "20260922-080000-b111")
    signed(tmp_path, "mnist", "20260923-080000-c222")
    return tmp_path


@pytest.mark.parametrize(
    ("wanted", "identity"),
    [
        (None, "20260923-080000-c222"),
        ("latest", "20260923-080000-c222"),
        ("cifar", "20260922-080000-b111"),
        ("20260921-141320-a3f9", "20260921-141320-a3f9"),
        ("a3f9", "20260921-141320-a3f9"),
        ("20260921", "20260921-141320-a3f9"),
    ],
)
def test_a_run_is_found(named: Path, wanted: str | None, identity: str) -> None:
    assert find_run(wanted, named).id == identity
    assert (
        find_run(str(named / "mnist" / "20260923-080000-c222"), named).id == "20260923-080000-c222"
    )
    called_latest = signed(named, "latest", "20260901-080000-d333")
    assert find_run("latest", named) == called_latest


def test_a_run_that_was_refused_before_it_trained_is_passed_over_where_another_goes_by_its_name(
    tmp_path: Path,
) -> None:
    trained, refused = make(tmp_path, upto=60), signed(tmp_path, "cifar", "20260930-080000-b111")
    refused.events.write_text('{"k":"end","t":1.0,"it":0,"ep":0,"status":"failed","exit":2}\n')
    for wanted in (None, "cifar"):
        assert find_run(wanted, tmp_path, having=has_begun) == trained
        assert find_run(wanted, tmp_path) == refused
    assert find_run("b111", tmp_path, having=has_begun) == refused
    refused.checkpoints.joinpath("it00000000").mkdir(parents=True)
    assert find_run(None, tmp_path, having=has_begun) == refused


def test_who_needs_a_checkpoint_gets_the_newest_run_of_a_name_that_has_one(tmp_path: Path) -> None:
    first = make(tmp_path, upto=60)
    early = RunDir(first.path.rename(first.path.with_name("20260901-080000-d444")))
    early.sign(id=early.id)
    late = make(tmp_path, upto=80)
    assert find_run("cifar", tmp_path, having=has_checkpoint) == late, "none has one"
    early.checkpoints.joinpath("it00000005").mkdir(parents=True)
    assert find_run("cifar", tmp_path, having=has_checkpoint) == early
    assert find_run(late.id, tmp_path, having=has_checkpoint) == late


def test_a_wrong_name_is_answered_with_what_there_is_and_with_files_where_it_could_be_theirs(
    named: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    def message(wanted: str | None, folder: Path, or_file: bool = True) -> str:
        with pytest.raises(UserError) as caught:
            find_run(wanted, folder, or_file=or_file)
        return str(caught.value)

    empty = Path("runs")
    assert re.search(
        r"there are no runs in .*\n.*, or name their folder \(--dir\)", message(None, empty, False)
    )
    runs(dir=empty)
    assert "no runs in" in capsys.readouterr().out
    for wanted, says in (
        ("cifr", 'did you mean "cifar"?'),
        ("2026", "any of 3 runs"),
        ("zzzzzz", "`hookflow runs` lists"),
    ):
        assert says in message(wanted, named, False)
    nothing = 'RUN: there is no file "quads", and there are no runs in runs\n    '
    assert (
        message("quads", empty)
        == nothing + "start one with `hookflow run`, or name their folder (--dir)"
    )
    assert message("zzzzzz", named).startswith('RUN: there is no file "zzzzzz"')
    Path("quads.toml").touch()
    assert message("quads", empty) == nothing + 'did you mean "quads.toml"?'
    assert message("quad", named).endswith('did you mean "quads.toml"?')
    assert message("cifr", named).endswith('did you mean "cifar"?')


def test_the_list_tells_how_each_run_went(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path, name="whole")
    gone(make(tmp_path, upto=60, name="lost", synthetic=False))
    make(tmp_path, upto=0, name="early")
    runs(dir=tmp_path)
    head, *rows = capsys.readouterr().out.splitlines()
    cells = {row.split()[1]: row for row in rows}
    assert head.split() == [
        "id",
        "name",
        "status",
        "epoch",
        "iter",
        "best.accuracy",
        "updated",
        "data",
        "reason",
    ]
    assert re.search(r"✓ finished  8/8    784   0.9365 .* SYNTHETIC  -$", cells["whole"])
    assert re.search(r"\? lost .* real +the process is gone", cells["lost"])
    assert "○ starting" in cells["early"]


@pytest.mark.parametrize("bad", ["a folder", "a link that leads nowhere", "frames without phases"])
def test_a_bad_log_of_a_rank_hides_nothing(
    tmp_path: Path, bad: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = gone(make_ranks(tmp_path, 3, upto=100))
    log = run.find_events_path(1)
    if bad.startswith("frames"):
        frames = [line for line in log.read_text().splitlines() if line.startswith('{"k":"frame"')]
        log.write_text(
            "\n".join(['{"k":"frame","t":7.0,"it":3,"ep":0,"iters":[1]}'] * 2 + frames * 9) + "\n"
        )
    else:
        log.unlink()
        log.mkdir() if bad == "a folder" else log.symlink_to(tmp_path / "nowhere")
    make(tmp_path, name="whole")
    runs(dir=tmp_path)
    out = capsys.readouterr().out
    assert "✓ finished" in out
    assert "? lost (3 ranks)" in out
    live = read(run)
    assert sorted(live.state.ranks.of) == [0, 2] if log.is_dir() or log.is_symlink() else [0, 1, 2]
    recording = Recording(run)
    recording.seek(recording.last)
    if not bad.startswith("frames"):
        assert f"{run.id}: events.rank1.jsonl cannot be read: " in out
        assert any(
            "events.rank1.jsonl cannot be read" in entry.text
            for entry in live.state.journal.since(0)
        )
