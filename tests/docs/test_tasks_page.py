"""docs/tasks.md: its examples train, its table has all that a run offers, the shipped tasks give what it says."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from hookflow.errors import UserError
from hookflow.hooks.run import Run
from hookflow.runner.loop.run import Run as Offered
from hookflow.zoo import tasks
from tests.conftest import TESTS, hookflow_here, records
from tests.end_to_end.test_run import only_run

PAGE = (TESTS.parent / "docs" / "tasks.md").read_text("utf-8")
FILES = {name: text for text, name in re.findall(r"```\w+\n(# (\S+)\n.*?)```", PAGE, re.DOTALL)}


MEASURED = {"function.toml": {"loss", "mae"}, "class.toml": {"loss", "mse", "rmse"}, "gan.toml": {"real_score"}}


@pytest.mark.usefixtures("train_here")  # which puts the handlers of signals back
@pytest.mark.parametrize(("pipeline", "metrics"), MEASURED.items())
def test_the_examples_train(pipeline: str, metrics: set[str], tmp_path: Path) -> None:
    assert {name for name in FILES if name.endswith(".toml")} == {"base.toml", *MEASURED}
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    done = hookflow_here("run", pipeline, "--in-process", "--set", "run.threads=1", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert records(only_run(tmp_path), "metrics")[-1]["v"].keys() == metrics  # type: ignore[attr-defined]


def test_all_that_a_run_offers_is_listed() -> None:
    promised = {name for name in {*vars(Run), *Run.__annotations__} if not name.startswith("_")}
    listed = re.findall(r"^\| `run\.(\w+)[^|]*` \| \S", PAGE, re.MULTILINE)
    assert sorted(listed) == sorted({*promised, "backward", "step"})
    assert all(hasattr(Offered, name) for name in promised - Run.__annotations__.keys())


def told(task: str, column: int) -> set[str]:
    (row,) = re.findall(rf"^\| `hookflow\.zoo\.tasks:{task}` .*$", PAGE, re.MULTILINE)
    return set(re.findall(r"`(\w+)`", row.split(" | ")[column].partition(";")[0]))


TOKENS = torch.arange(6).reshape(2, 3)
X = torch.ones(2, 3)


class Computes(nn.Linear):
    """A model with the interface of those of transformers: arguments by name, an output with `loss` and `logits`."""

    def __init__(self) -> None:
        super().__init__(3, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        logits = super().forward(x)
        return SimpleNamespace(loss=None if labels is None else (logits - labels).square().mean(), logits=logits)

    def generate(self, x: torch.Tensor, new: int) -> torch.Tensor:
        return torch.full((len(x), new), 7)


def test_a_model_that_computes_its_loss_generates_and_predicts_with_ids() -> None:
    task, model = tasks.OwnLoss(extra=["id"], generate={"new": 3}, max_length=4, pad=9), Computes()
    run: Any = SimpleNamespace(model=model)
    batch = {"x": X, "labels": torch.ones(2, 1), "id": torch.tensor([5, 6])}
    outputs = task.evaluate(run, batch)
    assert outputs["loss"] == (model(X).logits - 1).square().mean()
    assert outputs["generated"].tolist() == [[7, 7, 7, 9]] * 2
    del batch["labels"]
    assert {name: rows.tolist() for name, rows in task.predict(run, batch).items()} == {
        "id": [5, 6],
        "generated": [[7, 7, 7, 9]] * 2,
    }
    assert tasks.OwnLoss(extra=["id"]).predict(run, batch).keys() == {"id", "logits"}
    with pytest.raises(UserError, match='the key "labels"'):
        task.step(run, batch)
    with pytest.raises(UserError, match="raise max_length"):
        tasks.OwnLoss(extra=["id"], generate={"new": 3}, max_length=2).evaluate(run, {**batch, "labels": X[:, :1]})


@pytest.mark.parametrize(
    ("task", "model", "batch"),
    [
        (tasks.Classification(), nn.Linear(3, 4), (X, torch.tensor([0, 1]))),
        (tasks.Regression(), nn.Linear(3, 1), (X, torch.ones(2))),
        (tasks.LanguageModelling(), nn.Embedding(6, 6), TOKENS),
        (tasks.OwnLoss(), Computes(), {"x": X, "labels": torch.ones(2, 1)}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_tasks_that_come_along(task: Any, model: nn.Module, batch: Any) -> None:
    class HasModel:
        pass

    run: Any = HasModel()
    run.model = model
    name = type(task).__name__
    assert task.step(run, batch).keys() == told(name, 2)
    evaluated = getattr(task, "evaluate", task.step)(run, batch)
    means = {key: value.item() for key, value in evaluated.items() if not value.ndim}
    assert {*means, *(task.metrics(means) if hasattr(task, "metrics") else ())} == told(name, 3)


def test_none_of_them_is_left_out() -> None:
    there = {name for name, kind in vars(tasks).items() if getattr(kind, "__module__", "") == tasks.__name__}
    listed = re.findall(r"^\| `hookflow\.zoo\.tasks:(\w+)`", PAGE, re.MULTILINE)
    assert set(listed) == {name for name in there if hasattr(vars(tasks)[name], "step")}
