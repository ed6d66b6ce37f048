"""`hookflow checkpoints` and `export`: what a run has stored, and what of it is damaged."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import pytest

from hookflow.errors import UserError
from hookflow.events.log import Appender
from hookflow.events.rundir import RunDir
from hookflow.service.runs import ScalarRow, scalars
from tests.cli.conftest import invoke
from tests.conftest import NewRun, records


def test_checkpoints_are_listed_with_their_names(run: RunDir) -> None:
    heads, newest, older = invoke("checkpoints", "toy").splitlines()
    assert heads.split() == ["checkpoint", "names", "iter", "epoch", "metrics", "size", "age", "state"]
    assert [newest.split()[k] for k in (0, 2, 3)] == ["it00000010", "10", "2"]
    assert [older.split()[k] for k in (0, 2, 3)] == ["it00000005", "5", "1"], "the epoch it was saved in"
    assert "last" in newest.split()[1].split(",")
    assert "accuracy=" in newest
    assert "best" in newest + older
    assert "best-2" in newest + older
    assert [line.split()[-1] for line in (newest, older)] == ["whole", "whole"]
    (run.checkpoints / ".it00000011.1").mkdir()
    assert invoke("checkpoints", "toy").splitlines()[-1].startswith("1 more not finished: ")


def test_a_flipped_byte_is_found_by_reading(run: RunDir) -> None:
    weights = run.checkpoints / "it00000010" / "model.pt"
    data = bytearray(weights.read_bytes())
    data[len(data) // 2] ^= 1
    weights.write_bytes(data)
    invoke("checkpoints", "toy")  # its size is right
    lines = invoke("checkpoints", "toy", "--verify", code=1).splitlines()
    assert "unusable: model.pt is not what was written" in lines[1]
    assert lines[2].endswith("verified")


def test_what_is_not_there_is_found_without_reading(run: RunDir) -> None:
    (run.checkpoints / "it00000010" / "manifest.json").unlink()
    (run.checkpoints / "it00000005" / "model_ema.pt").unlink()
    newest, older = json.loads(invoke("checkpoints", "toy", "--format", "json", code=1))
    assert (newest["it"], newest["damage"]) == (None, "manifest.json is missing")
    assert (older["it"], older["damage"]) == (5, "model_ema.pt is missing")


@pytest.mark.usefixtures("here")
def test_a_run_without_any_says_so(new_run: NewRun) -> None:
    new_run()
    assert invoke("checkpoints", "toy").startswith("no checkpoints in ")


def test_of_a_stretch_that_was_trained_twice_the_later_attempt_counts(here: Path) -> None:
    lines: list[dict[str, Any]] = [
        {"k": "run", "it": 0, "resumed_from": None},
        {"k": "scalars", "it": 1, "v": {"loss": 3.0}},
        {"k": "scalars", "it": 2, "v": {"loss": 2.0, "lr": 0.1}},
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
    log = Appender(run.events)
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
    assert invoke("export", "logged").splitlines()[:2] == ["iteration,epoch,time,name,value", "1,0,1.0,loss,3.0"]
    exported = invoke("export", "logged", "--format", "jsonl").splitlines()
    assert json.loads(exported[0]) == {"iteration": 1, "epoch": 0, "time": 1.0, "name": "loss", "value": 3.0}
    assert json.loads(exported[4])["value"] is None, "NaN is no JSON"
    with pytest.raises(UserError, match="cannot be written: Is a directory"):
        invoke("export", "--out", ".")


def test_a_real_run_is_exported(run: RunDir) -> None:
    assert invoke("export", "--out", "toy.csv") == ""
    with Path("toy.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["iteration"]) for row in rows if row["name"] == "loss"] == [2, 4, 6, 8, 10]
    accuracy = [float(row["value"]) for row in rows if row["name"].endswith("/accuracy")]
    assert accuracy == [record["v"]["accuracy"] for record in records(run, "metrics")]  # type: ignore[index]
