"""hookflow predict: what a checkpoint predicts, by the average that its run judges, is written to a file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from hookflow.cli.app import app
from hookflow.errors import UserError
from hookflow.events.rundir import RunDir
from hookflow.hooks.builtin.predict import WRITERS, Predictions
from tests.conftest import NewRun, records
from tests.runner.same import final_state
from tests.toy import Net, Points

Train = Callable[..., int]


@pytest.fixture
def trained(new_run: NewRun, train_here: Train) -> RunDir:
    """A run whose hooks look at outputs, and one of which changes every batch."""
    doubles = 'hooks.doubles={use="./steerers.py:Doubles"}'
    run_dir = new_run("run.max_epochs=1", doubles)
    assert train_here(run_dir) == 0, records(run_dir, "error")
    return run_dir


def predicted(run_dir: RunDir, out: Path, *options: str) -> dict[str, Any]:
    command = ["predict", str(run_dir.path), "--out", str(out), *options]
    result = CliRunner().invoke(app, [*command, "--format", "json"], catch_exceptions=False)
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)  # type: ignore[no-any-return]


def expected(run_dir: RunDir, inputs: torch.Tensor) -> torch.Tensor:
    """Return the logits of the averaged weights, by hand."""
    net = Net()
    net.load_state_dict(final_state(run_dir)["model_ema"])  # type: ignore[arg-type]
    with torch.no_grad():
        return net.eval()(2 * inputs)  # type: ignore[no-any-return]


def test_the_averaged_weights_predict_every_example_in_order(trained: RunDir, tmp_path: Path) -> None:
    points = Points(0, torch.device("cpu"), examples=16, split=2)
    inputs = torch.cat([batch for batch, _ in points.epoch(0)])
    logits = expected(trained, inputs)
    for ending in WRITERS:
        told = predicted(trained, tmp_path / "made" / f"rows{ending}")
        assert told["shapes"] == {"logits": [16, 3], "predicted": [16]}
        assert (told["split"], told["it"], told["data"]["examples"]) == ("test", 5, 16)
    with np.load(tmp_path / "made" / "rows.npz") as file:
        arrays = dict(file)
    torch.testing.assert_close(torch.from_numpy(arrays["logits"]), logits)
    assert arrays["predicted"].tolist() == logits.argmax(1).tolist()
    lines = [json.loads(line) for line in (tmp_path / "made" / "rows.jsonl").read_text().splitlines()]
    assert [line["predicted"] for line in lines] == logits.argmax(1).tolist()
    tensors = torch.load(tmp_path / "made" / "rows.pt", weights_only=True)
    assert torch.equal(tensors["logits"], torch.from_numpy(arrays["logits"]))


def test_the_data_need_no_targets(trained: RunDir, tmp_path: Path) -> None:
    told = predicted(trained, tmp_path / "rows.npz", "--split", "val", "--set", 'data.val.use="./toy.py:Unlabelled"')
    assert told["shapes"]["predicted"] == [16]


def test_in_words(trained: RunDir, tmp_path: Path) -> None:
    command = ["predict", str(trained.path), "--out", str(tmp_path / "rows.npz"), "--split", "val"]
    head, on, file = CliRunner().invoke(app, command, catch_exceptions=False).stdout.splitlines()
    assert head == f"val of toy {trained.id}, it00000005 (iteration 5, epoch 1)"
    assert on == "on 16 examples of SYNTHETIC points"
    assert file == f"  {tmp_path / 'rows.npz'}: logits 16 × 3, predicted 16"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--out", "rows.txt"], 'unknown format ".txt"'),
        (["--set", 'task.use="./own_tasks.py:step"'], "the task is a function, and defines no predict()"),
    ],
)
def test_what_cannot_be_predicted_is_told(trained: RunDir, options: list[str], said: str) -> None:
    with pytest.raises(UserError) as raised:
        CliRunner().invoke(app, ["predict", str(trained.path), *options], catch_exceptions=False)
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("batches", "said"),
    [
        ([torch.zeros(3)], "has returned a Tensor"),
        ([{}], "has returned nothing"),
        ([{"a": torch.zeros(())}], '"a", a Tensor without rows'),
        ([{"a": torch.zeros(3), "b": torch.zeros(2)}], '"a" of 3 rows and "b" of 2 rows'),
        ([{"a": torch.zeros(3)}, {"b": torch.zeros(3)}], "has returned b, and for a batch before a"),
    ],
)
def test_what_is_no_rows_is_told(batches: list[Any], said: str) -> None:
    rows = Predictions("the task's predict has returned")
    with pytest.raises(UserError) as raised:
        for batch in batches:
            rows.add(batch)
    assert said in str(raised.value)


def test_hooks_inside_the_network_fire_in_their_stages(new_run: NewRun, train_here: Train, tmp_path: Path) -> None:
    keys = 'points=["forward"], modules=["head"], stages=["train", "val", "test"]'
    run_dir = new_run("run.max_epochs=1", f'hooks.halves={{use="./module_watchers.py:halves", {keys}}}')
    assert train_here(run_dir) == 0, records(run_dir, "error")
    predicted(run_dir, tmp_path / "rows.pt")
    logits = torch.load(tmp_path / "rows.pt", weights_only=True)["logits"]
    inputs = torch.cat([batch for batch, _ in Points(0, torch.device("cpu"), examples=16, split=2).epoch(0)])
    torch.testing.assert_close(logits, expected(run_dir, inputs / 2) / 2)
