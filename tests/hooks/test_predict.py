"""Outputs of the test data in a file: a row for each example, in their order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from hookflow.errors import UserError, Where
from hookflow.hooks.arguments import wrong_arguments
from hookflow.hooks.builtin.predict import Predict
from tests.conftest import NewRun, records
from tests.toy import Points


def test_a_test_leaves_its_outputs_in_a_file(new_run: NewRun, train_here: Any) -> None:
    predict = 'hooks.predict={use="predict", args={outputs=["logits", "target"]}}'
    run_dir = new_run(predict, "run.test=true", "run.max_epochs=1")
    assert train_here(run_dir) == 0, records(run_dir, "error")
    with np.load(run_dir.path / "predictions.npz") as file:
        logits, target = file["logits"], file["target"]
    expected = [target for _, target in Points(0, torch.device("cpu"), examples=16, split=2).epoch(0)]
    assert target.tolist() == torch.cat(expected).tolist()
    found: Any = records(run_dir, "metrics")[-1]["v"]
    assert (logits.argmax(1) == target).mean() == pytest.approx(found["accuracy"])
    assert "predictions are in predictions.npz" in [record["text"] for record in records(run_dir, "message")]


def test_an_output_that_is_not_there_is_told(new_run: NewRun, train_here: Any) -> None:
    run_dir = new_run('hooks.predict={use="predict", args={outputs=["logit"]}}', "run.test=true", "run.max_epochs=1")
    assert train_here(run_dir) == 2
    assert 'the task\'s outputs have no "logit"' in str(records(run_dir, "end")[0]["reason"])


def test_outputs_that_have_no_rows_are_told_as_outputs() -> None:
    with pytest.raises(UserError, match='outputs are "loss", a Tensor without rows'):
        Predict(["loss"]).after_test_iter({"loss": torch.tensor(1.0)})


@pytest.mark.parametrize("file", ["rows.txt", "../rows.npz", "rows"])
def test_a_file_of_another_kind_is_refused_before_the_run(file: str) -> None:
    args = {"outputs": ["logits"], "file": file}
    (problem,) = wrong_arguments(Predict, args, "predict", lambda _: Where(""))
    assert "file" in problem.message
