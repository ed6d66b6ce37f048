"""`hookflow.runs` and `hookflow.load_run`: what a run has recorded, and its checkpoints."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import hookflow
from hookflow.api.recorded import RecordedRun
from tests.conftest import TOY
from tests.toy import Net


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RecordedRun:
    runs = tmp_path_factory.mktemp("recorded") / "runs"
    return hookflow.train(hookflow.load(TOY, {"run.threads": 1}), "none", runs=runs)


def test_a_run_is_found_by_what_it_is_called(run: RecordedRun, tmp_path: Path) -> None:
    folder = run.dir.parent.parent
    for called in ("latest", run.id, run.id[-4:], "toy", run.dir):
        assert hookflow.load_run(called, folder).dir == run.dir
    (only,) = hookflow.runs(folder)
    assert repr(only) == f"<Run toy {run.id}: finished>"
    assert hookflow.runs(tmp_path / "none") == []
    with pytest.raises(hookflow.UserError, match=r'no run "tyo" in .*\n.*did you mean "toy"'):
        hookflow.load_run("tyo", folder)
    assert run.plan.order == hookflow.load(TOY).plan.order


def test_scalars_are_columns(run: RecordedRun) -> None:
    columns = run.scalars()
    assert [*columns] == ["iter", "epoch", "time", "name", "value"]
    assert len({len(column) for column in columns.values()}) == 1
    assert {"loss", "lr", "grad_norm", "val/accuracy", "val/loss"} <= {*columns["name"]}
    loss = run.scalars("loss")
    assert loss["iter"] == [2, 4, 6, 8, 10, 12, 14]
    assert loss["epoch"] == [0, 0, 1, 1, 1, 2, 2]
    assert all(isinstance(value, float) for value in loss["value"] + loss["time"])
    assert run.metrics["val"]["accuracy"] == run.scalars("val/accuracy")["value"][-1]
    for name, meant in (("losss", "loss"), ("accuracy", "val/accuracy")):
        with pytest.raises(hookflow.UserError, match=f'never logged "{name}"\n    did you mean "{meant}"'):
            run.scalars("loss", name)


def test_checkpoints_are_listed_and_loaded(run: RecordedRun) -> None:
    last, *_ = run.checkpoints
    assert (last.iter, last.epoch) == (15, 3)
    assert "last" in last.names
    assert last.metrics == run.metrics["val"]
    assert run.checkpoint() == last == run.checkpoint(last.path.name)
    assert run.checkpoint("best").metrics["accuracy"] == max(run.scalars("val/accuracy")["value"])
    net = last.load_into(Net())
    assert torch.equal(net.head.weight, torch.load(last.path / "model.pt", weights_only=True)["head.weight"])
    average = last.load_into(Net(), "ema")
    assert not torch.equal(average.head.weight, net.head.weight)


def test_what_cannot_be_loaded_is_told(run: RecordedRun, tmp_path: Path) -> None:
    with pytest.raises(hookflow.UserError, match=r'has no checkpoint "bets"\n.*did you mean "best"'):
        run.checkpoint("bets")
    with pytest.raises(hookflow.UserError, match=r'has no weights "model_eam"\n.*did you mean "model_ema"'):
        run.checkpoint().load_into(Net(), "eam")
    with pytest.raises(RuntimeError, match="size mismatch"):
        run.checkpoint().load_into(Net(16))
    damaged = replace(run.checkpoint(), path=shutil.copytree(run.checkpoint().path, tmp_path / "damaged"))
    os.truncate(damaged.path / "model.pt", 10)
    with pytest.raises(hookflow.UserError, match=r"cannot be used: model\.pt has 10 bytes"):
        damaged.load_into(Net())


def test_reading_a_run_imports_no_torch(run: RecordedRun) -> None:
    attributes = "run.scalars(), run.metrics, run.plan, run.status, run.checkpoints"
    code = f"import sys, hookflow; run = hookflow.load_run({str(run.dir)!r}); {attributes}"
    code += "; assert not {'torch', 'textual'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)
