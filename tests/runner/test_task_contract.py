"""The contract of tasks: a class or a function, the values that it returns, and the mistakes that are reported."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hookflow.events.rundir import RunDir
from hookflow.runner.loop.task import single_numbers
from tests.conftest import Trained, messages, reason, records


@pytest.mark.parametrize(
    ("kind", "method", "message"),
    [
        ("tuple", "step", "a tuple"),
        ("no loss", "step", 'a dict without "loss" (it has losses)'),
        ("number", "step", "a loss that is a float, expected a tensor"),
        ("a loss each", "step", "a loss of shape (8,)"),
        ("no gradient", "step", "does not require a gradient"),
        ("tuple", "evaluate", "a tuple"),
        ("a loss each", "evaluate", "a loss of shape (8,)"),
    ],
)
def test_a_task_that_breaks_its_contract(trained: Trained, kind: str, method: str, message: str) -> None:
    for sanity, it in [("true", 0), ("false", 5)] if method == "evaluate" else [("true", 0)]:
        task = f'task={{use="./watchers.py:BadTask", args={{kind="{kind}", method="{method}"}}}}'
        (end,) = records(trained(task, f"run.sanity={sanity}", code=2), "end")
        assert f"the task's {method} has returned" in str(end["reason"])
        assert message in str(end["reason"])
        assert end["it"] == it


def test_an_evaluation_needs_no_gradient(trained: Trained) -> None:
    detached = 'task={use="./watchers.py:BadTask", args={kind="no gradient", method="evaluate"}}'
    off = [f"hooks.{name}.enabled=false" for name in ("accuracy", "early_stop", "checkpoint")]
    trained(detached, *off)


def test_a_value_that_a_constructor_refuses_says_where(trained: Trained) -> None:
    (error,) = records(trained("model.args.width=-1", code=1), "error")
    assert "linear.py" in str(error["traceback"])


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_numbers_of_16_bits_can_be_summed(half: torch.dtype) -> None:
    total: Any = 0.0
    for _ in range(1000):
        total = total + single_numbers({"mae": torch.tensor(1.0, dtype=half)})["mae"] * 500
    assert float(total) == 500_000
    kept = {"steps": torch.tensor(3), "exact": torch.tensor(0.1, dtype=torch.float64)}
    assert {value.dtype for value in single_numbers(kept).values()} == {torch.int64, torch.float64}


ONE_EPOCH = "run.max_epochs=1"


def task(name: str, args: str = "") -> str:
    return f'task={{use="./own_tasks.py:{name}"{args}}}'


def metrics(run_dir: RunDir) -> dict[str, float]:
    return records(run_dir, "metrics")[-1]["v"]  # type: ignore[return-value]


def test_a_function_or_a_step_alone_is_a_task(trained: Trained) -> None:
    """It trains like the class that does the same. A function takes arguments of the file, a class makes metrics."""
    tasks = [], [task("step")], [task("StepOnly")], [task("step", ", args={weight=0.0}")]
    shipped, function, step, weighted = (metrics(trained(ONE_EPOCH, *each)) for each in tasks)
    assert shipped["loss"] == function["loss"] == step["loss"] > weighted["loss"] == 0
    assert function.keys() >= {"loss", "confidence", "accuracy"}
    assert 1 / 3 < function["confidence"] < 1
    assert step["double"] == 2 * step["loss"]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ('model={use="builtins:dict"}', "model must be a torch.nn.modules.module.Module, and this makes a dict"),
        ('optimizer={use="builtins:dict"}', "optimizer must be a torch.optim.optimizer.Optimizer"),
        ('task={use="builtins:dict"}', "a task needs a method step(run, batch); dict has none"),
        (task("Misspelt"), 'has a method evalute; did you mean "evaluate"?'),
        (task("HalfAState"), "the task HalfAState defines state_dict() and no load_state_dict()"),
        (task("OneArgument"), "the task's step must take the run and the batch: step(run, batch)"),
        (task("step", ", args={wieght=2.0}"), 'task takes no argument "wieght"; did you mean "weight"?'),
    ],
)
def test_what_is_made_must_be_what_it_is_for(trained: Trained, override: str, message: str) -> None:
    assert message in reason(trained(override, code=2)).replace("\n    ", "; ")


def test_a_task_fires_points_of_the_pipeline(trained: Trained) -> None:
    point = 'points={after_densify={follows="before_train_iter", offers=["count"]}}'
    told = 'hooks.told={use="./watchers.py:tells", points=["after_densify"]}'
    assert messages(trained(ONE_EPOCH, task("Densifies"), point, told)) == ["told"] * 5
