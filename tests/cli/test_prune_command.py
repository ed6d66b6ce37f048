"""`hookflow prune`: which checkpoints are deleted, and which stay whatever is asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from hookflow.events.run_lock import release, try_lock
from hookflow.events.rundir import RunDir
from tests.cli.conftest import invoke, refused
from tests.monitor.fake_run import append, end, make_several

SAVED = ("it00000010", "it00000020", "it00000030", "exception-it00000031")


@pytest.fixture
def several(here: Path) -> list[RunDir]:
    """Three runs that are over, each with three checkpoints, the first of them the best, and one after an error."""
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
    heads, *rows = (line.split() for line in invoke("prune", first.id, second.id, "--yes").splitlines())
    assert heads == ["run", "name", "delete", "size", "stay"]
    assert [(row[0], row[2], row[-1]) for row in rows] == [(first.id, "1", "2"), (second.id, "1", "2")]
    for run in (first, second):
        assert left(run) == {*SAVED, "best", "last"} - {SAVED[1]}
    assert left(third) == {*SAVED, "best", "last"}
    assert invoke("prune", first.id, "--yes") == "no checkpoint of 1 run is to be deleted\n"


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


def test_a_run_that_goes_on_is_left_out(several: list[RunDir]) -> None:
    first, second, third = several
    locks = try_lock(first.path)
    assert locks is not None
    assert f"the run {first.id} goes on" in refused("prune", first.id, second.id, "--yes")
    assert f"{first.id} goes on: it is left out" in invoke("prune", "--yes")
    release(locks)
    assert left(first) == {*SAVED, "best", "last"}
    assert SAVED[1] not in left(second) | left(third)


def test_nothing_is_deleted_without_a_question(several: list[RunDir]) -> None:
    assert "add --yes" in refused("prune")
    assert left(several[0]) == {*SAVED, "best", "last"}
