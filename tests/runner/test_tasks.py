"""A user's own task: a class or a function, and what becomes of what it returns."""

from __future__ import annotations

import pytest

from hookflow.events.rundir import RunDir
from tests.conftest import NewRun, Train, Trained, messages, reason, records

ONE_EPOCH = "run.max_epochs=1"


def task(name: str, args: str = "") -> str:
    return f'task={{use="./own_tasks.py:{name}"{args}}}'


def metrics(run_dir: RunDir) -> dict[str, float]:
    return records(run_dir, "metrics")[-1]["v"]  # type: ignore[return-value]


@pytest.mark.parametrize("name", ["step", "StepOnly"])
def test_a_function_or_a_step_alone_is_a_task(trained: Trained, name: str) -> None:
    run_dir = trained(ONE_EPOCH, task(name))
    assert metrics(run_dir).keys() >= {"loss", "confidence", "accuracy"}
    assert 1 / 3 < metrics(run_dir)["confidence"] < 1


def test_it_trains_like_the_class_that_does_the_same(new_run: NewRun, train_here: Train) -> None:
    own, shipped = new_run(ONE_EPOCH, task("step")), new_run(ONE_EPOCH)
    assert train_here(own) == train_here(shipped) == 0
    assert metrics(own)["loss"] == metrics(shipped)["loss"]


def test_a_function_takes_arguments_of_the_file(new_run: NewRun, train_here: Train) -> None:
    plain, weighted = new_run(ONE_EPOCH, task("step")), new_run(ONE_EPOCH, task("step", ", args={weight=0.0}"))
    assert train_here(plain) == train_here(weighted) == 0
    assert metrics(weighted)["loss"] == 0 < metrics(plain)["loss"]


def test_a_task_makes_more_of_the_means(trained: Trained) -> None:
    run_dir = trained(ONE_EPOCH, task("StepOnly"))
    assert metrics(run_dir)["double"] == 2 * metrics(run_dir)["loss"]


@pytest.mark.parametrize(
    ("override", "said"),
    [
        (task("Misspelt"), 'has a method evalute; did you mean "evaluate"?'),
        (task("HalfAState"), "the task HalfAState defines state_dict() and no load_state_dict()"),
        (task("OneArgument"), "the task's step must take the run and the batch: step(run, batch)"),
        (task("step", ", args={wieght=2.0}"), 'task takes no argument "wieght"; did you mean "weight"?'),
    ],
)
def test_what_is_no_task_is_told(trained: Trained, override: str, said: str) -> None:
    run_dir = trained(override, code=2)
    assert said in reason(run_dir).replace("\n    ", "; ")


def test_a_task_fires_points_of_the_pipeline(trained: Trained) -> None:
    point = 'points={after_densify={follows="before_train_iter", offers=["count"]}}'
    told = 'hooks.told={use="./watchers.py:tells", points=["after_densify"]}'
    run_dir = trained(ONE_EPOCH, task("Densifies"), point, told)
    assert messages(run_dir) == ["told"] * 5
