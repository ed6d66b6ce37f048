"""`hookflow checkpoints`, `prune` and `fork`: what a run has stored, what of it is deleted,
and what begins with it.
"""

import json
import math
import re
import shutil
from errno import ENOSPC
from os import strerror
from pathlib import Path
from typing import Any

import pytest

import hookflow
from hookflow.events.deletion import BACK_LINK
from hookflow.events.log import LogAppender
from hookflow.events.run_lock import release, try_lock
from hookflow.events.rundir import RunDir, all_runs
from hookflow.service.runs import ScalarRow, scalars
from tests.cli.conftest import HEAD, invoke, refused
from tests.conftest import NewRun, hookflow_here, run_here
from tests.faults.disk import Disk
from tests.monitor.fake_run import append, end, make_several
from tests.runner.same import final_state


def test_checkpoints_are_listed_with_their_names_and_damage(run: RunDir) -> None:
    heads, newest, older = invoke("checkpoints", "toy").splitlines()
    assert heads.split() == [
        "checkpoint",
        "names",
        "iter",
        "epoch",
        "metrics",
        "size",
        "age",
        "state",
    ]
    assert [newest.split()[k] for k in (0, 2, 3)] == ["it00000010", "10", "2"]
    assert [older.split()[k] for k in (0, 2, 3)] == [
        "it00000005",
        "5",
        "1",
    ], "the epoch it was saved in"
    assert "last" in newest.split()[1].split(",")
    assert "accuracy=" in newest
    assert "best" in newest + older
    assert "best-2" in newest + older
    assert [line.split()[-1] for line in (newest, older)] == ["whole", "whole"]
    (run.checkpoints / ".it00000011.1").mkdir()
    assert invoke("checkpoints", "toy").splitlines()[-1].startswith("1 more not finished: ")
    weights = run.checkpoints / "it00000010" / "model.pt"
    data = bytearray(weights.read_bytes())
    data[len(data) // 2] ^= 1
    weights.write_bytes(data)
    invoke("checkpoints", "toy")  # its size is right
    lines = invoke("checkpoints", "toy", "--verify", code=1).splitlines()
    assert "unusable: model.pt " in lines[1]
    assert lines[2].endswith("verified")
    (run.checkpoints / "it00000010" / "manifest.json").unlink()
    (run.checkpoints / "it00000005" / "model_ema.pt").unlink()
    newest, older = json.loads(invoke("checkpoints", "toy", "--format", "json", code=1))
    assert (newest["it"], newest["damage"]) == (None, "manifest.json is missing")
    assert (older["it"], older["damage"]) == (5, "model_ema.pt is missing")


@pytest.mark.usefixtures("here")
def test_a_run_without_any_says_so(new_run: NewRun) -> None:
    new_run()
    assert invoke("checkpoints", "toy").startswith("no checkpoints in ")


def test_of_a_stretch_that_was_trained_twice_the_later_attempt_counts(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[dict[str, Any]] = [
        {"k": "run", "it": 0, "resumed_from": None},
        {"k": "scalars", "it": 1, "v": {"loss": 3.0}},
        {"k": "scalars", "it": 2, "v": {"lr": 0.1, "loss": 2.0}},  # in the order in which they came
        {"k": "metrics", "it": 2, "split": "val", "v": {"loss": 9.0}, "seconds": 1.0},
        {"k": "scalars", "it": 3, "v": {"loss": 1.0}},
        {"k": "run", "it": 0, "resumed_from": "it00000002.1"},
        {"k": "metrics", "it": 2, "split": "val", "v": {"loss": 8.0}, "seconds": 1.0},
        {"k": "scalars", "it": 3, "v": {"loss": math.nan}},
        {"k": "unheard", "it": 3},
        {"k": "metrics", "it": 3, "split": "test", "v": {"loss": 7.0}, "seconds": 1.0},
    ]
    run = RunDir.create(here / "runs", "logged")
    run.sign(id=run.id)
    log = LogAppender(run.events)
    log.append({"ep": 0, "t": float(k), **record} for k, record in enumerate(lines))
    log.close()
    *rows, abandoned, tested = scalars(run)
    assert rows == [
        ScalarRow(1, 0, 1.0, "loss", 3.0),
        ScalarRow(2, 0, 2.0, "loss", 2.0),
        ScalarRow(2, 0, 2.0, "lr", 0.1),
        ScalarRow(2, 0, 6.0, "val/loss", 8.0),
    ]
    assert (abandoned.iter, abandoned.name, math.isnan(abandoned.value)) == (3, "loss", True)
    assert tested == ScalarRow(3, 0, 9.0, "test/loss", 7.0)
    assert invoke("export", "logged").splitlines()[:2] == [
        "iteration,epoch,time,name,value",
        "1,0,1.0,loss,3.0",
    ]
    exported = invoke("export", "logged", "--format", "jsonl").splitlines()
    assert json.loads(exported[0]) == {
        "iteration": 1,
        "epoch": 0,
        "time": 1.0,
        "name": "loss",
        "value": 3.0,
    }
    assert json.loads(exported[4])["value"] is None, "NaN is no JSON"
    assert "cannot be written: Is a directory" in refused("export", "--out", ".")
    Path("old.csv").write_text("old")
    for out, struck in ("old.csv", "^write"), ("new.csv", "^write"), ("board", "^write .*tfevents"):
        with monkeypatch.context() as patch:
            Disk(here, patch, struck)
            why = refused("export", "--out", out, *("-f", "tensorboard") * (out == "board"))
        assert why == f"{out}: cannot be written: {strerror(ENOSPC)}"
    assert {path.name: path.read_text() for path in here.glob("*.*")} == {"old.csv": "old"}
    assert not any(Path("board").iterdir())
    Path("link.csv").symlink_to("old.csv")
    Path("old.csv").chmod(0o640)
    invoke("export", "--out", "link.csv")
    assert Path("link.csv").is_symlink() and Path("old.csv").stat().st_mode & 0o777 == 0o640


SAVED = ("it00000010", "it00000020", "it00000030", "exception-it00000031")


@pytest.fixture
def several(here: Path) -> list[RunDir]:
    """Three runs that are over, each with three checkpoints, the first of them the best,
    and one after an error.
    """
    runs = make_several(here / "runs", 3, upto=100)
    for run in runs:
        append(run, [end(t=1.79e9 + 100)])
        for name in SAVED:
            (run.checkpoints / name).mkdir(parents=True)
            (run.checkpoints / name / "model.pt").write_bytes(bytes(1000))
        for name, target in {"best": SAVED[0], "last": SAVED[2]}.items():
            (run.checkpoints / name).symlink_to(target)
    return runs


def left(run: RunDir) -> set[str]:
    return {path.name for path in run.checkpoints.iterdir()}


def test_the_newest_and_those_with_a_name_stay(several: list[RunDir]) -> None:
    first, second, third = several
    heads, *rows = (
        line.split() for line in invoke("prune", first.id, second.id, "--yes").splitlines()
    )
    assert heads == ["run", "name", "delete", "size", "stay"]
    assert [(row[0], row[2], row[-1]) for row in rows] == [
        (first.id, "1", "2"),
        (second.id, "1", "2"),
    ]
    for run in (first, second):
        assert left(run) == {*SAVED, "best", "last"} - {SAVED[1]}
    assert left(third) == {*SAVED, "best", "last"}
    assert invoke("prune", first.id, "--yes").startswith("no checkpoint of 1 run ")


def test_all_are_deleted_with_their_names_and_the_run_stays(several: list[RunDir]) -> None:
    invoke("prune", "--all", "--filter", "run.seed == 1", "--yes")
    assert [left(run) == set() for run in several] == [False, True, False]
    assert invoke("runs").count("finished") == 3


def test_what_a_fork_began_with_stays_and_the_newest_of_its_parent(several: list[RunDir]) -> None:
    first, second, third = several
    path = first.checkpoints / SAVED[1]
    second.sign(parent={"run": first.id, "checkpoint": SAVED[1], "it": 20, "path": str(path)})
    invoke("prune", "--all", "--yes")
    assert left(first) == {SAVED[1], SAVED[2], "last"}
    assert left(second) == left(third) == set()


def test_nothing_is_deleted_without_a_question_nor_of_a_run_that_goes_on(
    several: list[RunDir],
) -> None:
    assert "add --yes" in refused("prune")
    assert left(several[0]) == {*SAVED, "best", "last"}
    first, second, third = several
    locks = try_lock(first.path)
    assert locks is not None
    assert f"the run {first.id} goes on" in refused("prune", first.id, second.id, "--yes")
    assert f"the run {first.id} goes on" in invoke("prune", "--yes")
    release(locks)
    assert left(first) == {*SAVED, "best", "last"}
    assert SAVED[1] not in left(second) | left(third)


def copy_of(run: RunDir, *, out_dir: Path | None = None) -> RunDir:
    """Copy a run directory; with `out_dir`, the run keeps its checkpoints there,
    and the copy has a link to them.
    """
    if out_dir is not None:
        elsewhere = out_dir / run.path.parent.name / run.id
        elsewhere.parent.mkdir(parents=True)
        run.checkpoints.rename(elsewhere)
        run.checkpoints.symlink_to(elsewhere)
        (elsewhere / BACK_LINK).symlink_to(run.path)
    path = run.path.with_name("20260101-000000-c0de")
    shutil.copytree(run.path, path, symlinks=True)
    copy = RunDir(path)
    copy.sign(id=copy.id)
    return copy


def test_a_copy_with_checkpoints_of_its_own_is_pruned_alone(several: list[RunDir]) -> None:
    copy = copy_of(several[0])
    invoke("prune", copy.id, "--all", "--yes")
    assert left(copy) == set()
    assert left(several[0]) == {*SAVED, "best", "last"}


def test_the_checkpoints_of_another_run_are_not_pruned_through_a_copy(
    several: list[RunDir], here: Path
) -> None:
    first = several[0]
    copy = copy_of(first, out_dir=here / "elsewhere")
    assert str(first.path) in refused("prune", copy.id, "--all", "--yes")
    assert left(first) == {*SAVED, "best", "last", BACK_LINK}
    locks = try_lock(first.path)
    assert locks is not None
    invoke("prune", "--all", "--yes")
    assert left(first) == {*SAVED, "best", "last", BACK_LINK}, "neither while their own run goes on"
    release(locks)
    assert f"{copy.id} belong to {first.path}" in invoke("prune", "--all", "--yes")
    assert left(first) == {BACK_LINK}


def test_a_link_to_a_run_is_that_run(several: list[RunDir], here: Path) -> None:
    first, second, _ = several
    link = here / "others" / "toy" / "link"
    link.parent.mkdir(parents=True)
    link.symlink_to(first.path)
    path = first.checkpoints / SAVED[1]
    second.sign(parent={"run": first.id, "checkpoint": SAVED[1], "it": 20, "path": str(path)})
    locks = try_lock(first.path)
    assert locks is not None
    assert f"the run {first.id} goes on" in refused("prune", str(link), "--all", "--yes")
    release(locks)
    invoke("prune", str(link), "--all", "--yes")
    assert left(first) == {
        SAVED[1],
        SAVED[2],
        "last",
    }, "what a fork in the run's own folder began with stays"


def test_of_a_checkpoint_that_is_linked_to_another_disk_the_link_is_deleted(
    several: list[RunDir], here: Path
) -> None:
    first = several[0]
    (first.checkpoints / SAVED[1]).rename(here / SAVED[1])
    (first.checkpoints / SAVED[1]).symlink_to(here / SAVED[1])
    invoke("prune", first.id, "--all", "--yes")
    assert left(first) == set()
    assert (here / SAVED[1] / "model.pt").is_file()


def test_a_run_is_deleted_with_the_checkpoints_that_it_keeps_elsewhere(
    several: list[RunDir], here: Path
) -> None:
    first = several[0]
    elsewhere = here / "elsewhere"
    copy = copy_of(first, out_dir=elsewhere)
    invoke("rm", copy.id, "--yes")
    assert left(first) == {*SAVED, "best", "last", BACK_LINK}, "they are not the copy's"
    invoke("rm", first.id, "--yes")
    assert [*elsewhere.iterdir()] == []


def test_of_a_link_to_a_run_the_link_is_deleted(several: list[RunDir], here: Path) -> None:
    link = several[0].path.with_name("20260101-000000-1111")
    link.symlink_to(several[0].path)
    invoke("rm", str(link), "--yes")
    assert not link.is_symlink()
    assert left(several[0]) == {*SAVED, "best", "last"}


def test_a_run_with_a_long_name_is_deleted(several: list[RunDir]) -> None:
    folder = several[0].path.parent.with_name("n" * 230)
    several[0].path.parent.rename(folder)
    invoke("rm", several[0].id, "--yes")
    assert not (folder / several[0].id).exists()


FILE = HEAD + '[hooks.checkpoint]\nuse = "checkpoint"\nargs = { monitor = "accuracy", keep = 9 }\n'
FILE += '[hooks.accuracy]\nuse = "accuracy"\n'


def fork(*arguments: str, code: int = 0) -> str:
    """Fork in this process, and return what is printed to both streams."""
    done = hookflow_here("fork", *arguments, "--in-process", cwd=Path.cwd(), code=code)
    return done.stdout + done.stderr


def newest() -> RunDir:
    return all_runs(Path("runs"))[0]


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a pipeline, and a run of it that has ended."""
    folder = tmp_path_factory.mktemp("forks")
    (folder / "p.toml").write_text(FILE)
    run_here("p.toml", "--set", "run.seed=5", cwd=folder, code=0)
    return folder


@pytest.fixture
def parent(begun: Path, here: Path) -> RunDir:
    """A copy of that run, in the current folder."""
    shutil.copytree(begun, here, symlinks=True, dirs_exist_ok=True)
    return newest()


def test_a_fork_is_shown_with_its_parent(parent: RunDir) -> None:
    shown = fork(
        f"{parent.id}:it00000010", "--set", "run.max_epochs=4", "--set", "optimizer.args.lr=0.01"
    )
    assert (
        f"- {parent.id}:it00000010\n+ {parent.id} with run.max_epochs=4 optimizer.args.lr=0.01"
        in shown
    )
    child = newest()
    assert child.parent() == (parent.id, "it00000010", 10, str(parent.checkpoints / "it00000010"))
    assert final_state(child)["optimizer"]["param_groups"][0]["lr"] == 0.01  # type: ignore[index]
    assert child.describe()["overrides"] == [
        "run.seed=5",
        "run.max_epochs=4",
        "optimizer.args.lr=0.01",
    ]
    fork(child.id, "--set", "run.max_epochs=5")
    third = newest()
    heads, *rows = invoke("runs").splitlines()
    assert "parent" in heads.split()
    assert [parent.id in row for row in rows[:3]] == [False, True, True]
    tree = [line.partition("✓")[0].rstrip() for line in invoke("runs", "--tree").splitlines()[1:4]]
    assert tree == [parent.id, f"└ {child.id}", f"  └ {third.id}"]
    assert [run.id for run in hookflow.runs(filter=f"parent == '{parent.id}'")] == [child.id]
    compared = invoke("compare", parent.id, child.id, third.id, code=1)
    assert (
        "B is a fork of A, from its it00000010 (iteration 10)\nC is a fork of B, from its"
        " it00000020" in compared
    )
    data = json.loads(invoke("compare", parent.id, child.id, "--format", "json", code=1))
    assert data["parents"] == [None, child.parent()._asdict()]  # type: ignore[union-attr]
    assert re.search(
        rf"forked from +{parent.id}:it00000010 \(iteration 10\)", invoke("show", child.id)
    )
    alone = refused("rm", parent.id, "-y")
    assert f"{parent.id} has forks: {child.id}\n" in alone
    invoke("rm", parent.id, child.id, third.id, "--yes")
    assert not all_runs(Path("runs"))


def test_a_file_is_taken_as_it_is_now(parent: RunDir) -> None:
    """Without what the command line of the parent had changed, which is shown."""
    Path("other.toml").write_text(
        FILE.replace('name = "mine"', 'name = "other"').replace("max_epochs = 3", "max_epochs = 4")
    )
    shown = fork(
        f"{parent.id}:best",
        "other.toml",
        "--without",
        "accuracy",
        "--set",
        "hooks.checkpoint.args.monitor='loss'",
    )
    assert re.search(r"run.seed +5 → 0", shown) and "- accuracy" in shown
    assert newest().path.parent.name == "other"
    assert newest().describe()["overrides"] == [
        "hooks.checkpoint.args.monitor='loss'",
        "hooks.accuracy.enabled=false",
    ]


def test_mistakes(parent: RunDir) -> None:
    assert "has done 3, and run.max_epochs is 3" in fork(parent.id, code=2)
    assert '"bets"\n    did you mean "best"?' in fork(f"{parent.id}:bets", code=2)
    (parent.checkpoints / "it00000010" / "model.pt").unlink()
    assert "cannot be used: model.pt is missing" in fork(f"{parent.id}:it00000010", code=2)
    assert len(all_runs(Path("runs"))) == 1
