"""`hookflow fork`: a run, a checkpoint by its name, a file; and the tree that `runs`, `compare` and `rm` know."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import hookflow
from hookflow.events import run_lock
from hookflow.events.rundir import RunDir, all_runs
from hookflow.runner.process.signals import handlers_put_back
from tests.cli.conftest import HEAD, invoke, refused
from tests.conftest import hookflow_here, run_here
from tests.runner.same import final_state

FILE = HEAD + '[hooks.checkpoint]\nuse = "checkpoint"\nargs = { monitor = "accuracy", keep = 9 }\n'
FILE += '[hooks.accuracy]\nuse = "accuracy"\n'


def fork(*arguments: str, code: int = 0) -> str:
    """Fork in this process, and return what is printed to both streams."""
    with handlers_put_back():
        done = hookflow_here("fork", *arguments, "--in-process", cwd=Path.cwd())
    run_lock.release(tuple(run_lock._held))
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def newest() -> RunDir:
    return all_runs(Path("runs"))[0]


@pytest.fixture
def parent(here: Path) -> RunDir:
    Path("p.toml").write_text(FILE)
    assert run_here("p.toml", "--set", "run.seed=5", cwd=here).returncode == 0
    return newest()


def test_a_fork_is_shown_with_its_parent(parent: RunDir) -> None:
    shown = fork(f"{parent.id}:it00000010", "--set", "run.max_epochs=4", "--set", "optimizer.args.lr=0.01")
    assert f"- {parent.id}:it00000010\n+ {parent.id} with run.max_epochs=4 optimizer.args.lr=0.01" in shown
    child = newest()
    assert child.parent() == (parent.id, "it00000010", 10, str(parent.checkpoints / "it00000010"))
    assert final_state(child)["optimizer"]["param_groups"][0]["lr"] == 0.01  # type: ignore[index]
    assert child.describe()["overrides"] == ["run.seed=5", "run.max_epochs=4", "optimizer.args.lr=0.01"]
    fork(child.id, "--set", "run.max_epochs=5")
    third = newest()
    heads, *rows = invoke("runs").splitlines()
    assert "parent" in heads.split()
    assert [parent.id in row for row in rows[:3]] == [False, True, True]
    tree = [line.partition("✓")[0].rstrip() for line in invoke("runs", "--tree").splitlines()[1:4]]
    assert tree == [parent.id, f"└ {child.id}", f"  └ {third.id}"]
    assert [run.id for run in hookflow.runs(filter=f"parent == '{parent.id}'")] == [child.id]
    compared = invoke("compare", parent.id, child.id, third.id, code=1)
    assert "B is a fork of A, from its it00000010 (iteration 10)\nC is a fork of B, from its it00000020" in compared
    data = json.loads(invoke("compare", parent.id, child.id, "--format", "json", code=1))
    assert data["parents"] == [None, child.parent()._asdict()]  # type: ignore[union-attr]
    assert re.search(rf"forked from +{parent.id}:it00000010 \(iteration 10\)", invoke("show", child.id))


def test_a_run_with_forks_is_not_deleted_alone(parent: RunDir) -> None:
    fork(f"{parent.id}:it00000010")
    child = newest()
    assert f"the run {parent.id} has forks: {child.id}\n    delete these, too, or none" in refused(
        "rm", parent.id, "-y"
    )
    invoke("rm", parent.id, child.id, "--yes")
    assert not all_runs(Path("runs"))


def test_a_file_is_taken_as_it_is_now(parent: RunDir) -> None:
    """Without what the command line of the parent had changed, which is shown."""
    Path("other.toml").write_text(
        FILE.replace('name = "mine"', 'name = "other"').replace("max_epochs = 3", "max_epochs = 4")
    )
    shown = fork(
        f"{parent.id}:best", "other.toml", "--without", "accuracy", "--set", "hooks.checkpoint.args.monitor='loss'"
    )
    assert re.search(r"run.seed +5 → 0", shown) and "- accuracy" in shown
    assert newest().path.parent.name == "other"
    assert newest().describe()["overrides"] == ["hooks.checkpoint.args.monitor='loss'", "hooks.accuracy.enabled=false"]


def test_mistakes(parent: RunDir) -> None:
    assert "has done 3, and run.max_epochs is 3" in fork(parent.id, code=2)
    assert 'has no checkpoint "bets"\n    did you mean "best"?' in fork(f"{parent.id}:bets", code=2)
    (parent.checkpoints / "it00000010" / "model.pt").unlink()
    assert "cannot be used: model.pt is missing" in fork(f"{parent.id}:it00000010", code=2)
    assert len(all_runs(Path("runs"))) == 1
