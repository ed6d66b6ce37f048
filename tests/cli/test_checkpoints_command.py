"""`hookflow checkpoints`: what is listed, and what is found to be damaged."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import NewRun, hookflow, hookflow_here

Train = Callable[..., int]


@pytest.fixture
def trained(new_run: NewRun, train_here: Train) -> Path:
    run_dir = new_run("run.max_epochs=2", "hooks.checkpoint.args={monitor='accuracy', keep=2, top=2}")
    assert train_here(run_dir) == 0
    return run_dir.path


def test_they_are_listed_with_their_names(trained: Path, tmp_path: Path) -> None:
    done = hookflow_here("checkpoints", "toy", cwd=tmp_path)
    heads, newest, older = done.stdout.splitlines()
    assert done.returncode == 0
    assert heads.split() == ["checkpoint", "names", "iter", "epoch", "metrics", "size", "age", "state"]
    assert newest.split()[0] == "it00000010"
    assert "last" in newest.split()[1].split(",")
    assert newest.split()[2:4] == ["10", "2"]
    assert "accuracy=" in newest
    assert older.split()[0] == "it00000005"
    assert "best" in newest + older
    assert "best-2" in newest + older
    assert [line.split()[-1] for line in (newest, older)] == ["whole", "whole"]


def test_the_epoch_is_the_one_it_was_saved_in_counted_from_1(
    new_run: NewRun, train_here: Train, tmp_path: Path
) -> None:
    run_dir = new_run(
        "run.max_epochs=2", "hooks.checkpoint={args={keep=9}, points=[{at='after_train_iter', every='3it'}]}"
    )
    assert train_here(run_dir) == 0
    told = hookflow_here("checkpoints", "toy", "--dir", str(run_dir.path.parents[1]), cwd=tmp_path).stdout.splitlines()
    columns = told[0].split()
    assert {row.split()[0]: row.split()[columns.index("epoch")] for row in told[1:]} == {
        "it00000003": "1",
        "it00000006": "2",
        "it00000009": "2",
        "it00000010": "2",
    }
    head = hookflow("val", str(run_dir.checkpoints / "it00000003"), cwd=tmp_path).stdout.splitlines()[0]
    assert head.endswith("(iteration 3, epoch 1)")


def test_a_flipped_byte_is_found_by_reading(trained: Path, tmp_path: Path) -> None:
    weights = trained / "checkpoints" / "it00000010" / "model.pt"
    data = bytearray(weights.read_bytes())
    data[len(data) // 2] ^= 1
    weights.write_bytes(data)
    assert hookflow_here("checkpoints", "toy", cwd=tmp_path).returncode == 0, "its size is right"
    done = hookflow_here("checkpoints", "toy", "--verify", cwd=tmp_path)
    assert done.returncode == 1
    assert "unusable: model.pt is not what was written" in done.stdout.splitlines()[1]
    assert done.stdout.splitlines()[2].endswith("verified")


def test_what_is_not_there_is_found_without_reading(trained: Path, tmp_path: Path) -> None:
    (trained / "checkpoints" / "it00000010" / "manifest.json").unlink()
    (trained / "checkpoints" / "it00000005" / "model_ema.pt").unlink()
    done = hookflow_here("checkpoints", "toy", "--format", "json", cwd=tmp_path)
    newest, older = json.loads(done.stdout)
    assert done.returncode == 1
    assert (newest["it"], newest["damage"]) == (None, "manifest.json is missing")
    assert (older["it"], older["damage"]) == (5, "model_ema.pt is missing")


def test_a_run_without_any_says_so(new_run: NewRun, tmp_path: Path) -> None:
    new_run()
    done = hookflow_here("checkpoints", "toy", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout.startswith("no checkpoints in ")


def test_what_is_not_finished_is_told(trained: Path, tmp_path: Path) -> None:
    (trained / "checkpoints" / ".it00000011.1").mkdir()
    assert hookflow_here("checkpoints", "toy", cwd=tmp_path).stdout.splitlines()[-1].startswith("1 more not finished: ")
