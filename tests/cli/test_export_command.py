"""`hookflow export`, and what it rests on: the numbers of a run as rows, those of an abandoned stretch left out."""

from __future__ import annotations

import csv
import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from hookflow.events.log import Appender
from hookflow.events.rundir import RunDir
from hookflow.events.scalars import ScalarRow, scalars
from tests.conftest import NewRun, hookflow_here, records

Train = Callable[..., int]


def written(tmp_path: Path, told: Iterable[dict[str, Any]]) -> RunDir:
    run = RunDir.create(tmp_path / "runs", "told")
    run.sign(id=run.id)
    log = Appender(run.events)
    log.append({"ep": 0, "t": float(k), **record} for k, record in enumerate(told))
    log.close()
    return run


def test_of_a_stretch_that_was_trained_twice_the_later_attempt_counts(tmp_path: Path) -> None:
    run = written(
        tmp_path,
        [
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
        ],
    )
    *rows, abandoned, tested = scalars(run)
    assert rows == [
        ScalarRow(1, 0, 1.0, "loss", 3.0),
        ScalarRow(2, 0, 2.0, "loss", 2.0),
        ScalarRow(2, 0, 2.0, "lr", 0.1),
        ScalarRow(2, 0, 6.0, "val/loss", 8.0),
    ]
    assert (abandoned.iter, abandoned.name, math.isnan(abandoned.value)) == (3, "loss", True)
    assert tested == ScalarRow(3, 0, 9.0, "test/loss", 7.0)
    text = hookflow_here("export", "told", cwd=tmp_path).stdout
    assert text.splitlines()[:2] == ["iteration,epoch,time,name,value", "1,0,1.0,loss,3.0"]
    lines = hookflow_here("export", "told", "--format", "jsonl", cwd=tmp_path).stdout.splitlines()
    assert json.loads(lines[0]) == {"iteration": 1, "epoch": 0, "time": 1.0, "name": "loss", "value": 3.0}
    assert json.loads(lines[4])["value"] is None, "NaN is no JSON"


def test_a_real_run_that_was_resumed(new_run: NewRun, train_here: Train, tmp_path: Path) -> None:
    run_dir = new_run("run.max_iters=9", swap=("max_epochs = 3", ""))
    assert train_here(run_dir) == 0
    assert train_here(run_dir, resume=True) == 0
    done = hookflow_here("export", "--out", "toy.csv", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    with (tmp_path / "toy.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["iteration"]) for row in rows if row["name"] == "loss"] == [2, 4, 6, 8]
    accuracy = [float(row["value"]) for row in rows if row["name"] == "val/accuracy"]
    assert accuracy == [record["v"]["accuracy"] for record in records(run_dir, "metrics")]  # type: ignore[index]


def test_the_rows_need_neither_torch_nor_the_screen() -> None:
    code = "import sys, hookflow.events.log; print({'torch', 'textual', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_a_folder_cannot_be_written_to(tmp_path: Path) -> None:
    written(tmp_path, [{"k": "run", "it": 0}])
    done = hookflow_here("export", "--out", ".", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "cannot be written: Is a directory" in done.stderr
