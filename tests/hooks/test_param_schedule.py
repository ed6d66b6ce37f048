"""Schedules of momentum and weight decay: as torch's one-cycle policy has them, and by the formula."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from hookflow.cli.app import app
from hookflow.errors import UserError, Where
from hookflow.hooks.arguments import wrong_arguments
from hookflow.hooks.builtin.schedules import ParamSchedule
from hookflow.hooks.compile import compile_pipeline
from hookflow.pipeline.load import load
from hookflow.runner.process.launch import propose
from tests.conftest import TESTS, NewRun, records
from tests.hooks.stand_ins import StandIn
from tests.runner.same import final_state
from tests.toy import Net


def settings(hook: ParamSchedule, optimizer: torch.optim.Optimizer, key: str, iters: int = 100) -> list[list[Any]]:
    """Return a setting of every parameter group in each iteration."""
    run: Any = StandIn(Net(), optimizer, max_iters=iters, iters_per_epoch=10)
    hook.before_run(run)
    hook.before_train(run)
    found = []
    for run.iter in range(iters):
        hook.before_train_iter(run)
        found.append([group[key] for group in optimizer.param_groups])
    return found


@pytest.mark.parametrize(("shape", "torchs"), [("cosine", "cos"), ("linear", "linear")])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_momentum_is_that_of_the_one_cycle_policy(shape: Any, torchs: Any, kind: Any) -> None:
    def made() -> torch.optim.Optimizer:
        return kind(Net().parameters(), 0.1, **({"momentum": 0.9} if kind is torch.optim.SGD else {}))  # type: ignore[no-any-return]

    key = "momentum" if kind is torch.optim.SGD else "betas"
    oracle = made()
    cycle = torch.optim.lr_scheduler.OneCycleLR(oracle, 0.1, 100, anneal_strategy=torchs)
    expected = []
    for _ in range(99):
        expected.append(oracle.param_groups[0][key])
        oracle.step()
        cycle.step()
    hook = ParamSchedule(momentum=[(0, 0.95), ("29it", 0.85), (99, 0.95)], shape=shape)
    found = [one for (one,) in settings(hook, made(), key, 99)]
    if key == "betas":
        assert {beta for _, beta in found} == {0.999}
        found, expected = [beta for beta, _ in found], [beta for beta, _ in expected]
    assert found == pytest.approx(expected, rel=1e-9)


def test_weight_decay_goes_by_the_formula_and_stays_where_there_is_none() -> None:
    net = Net()
    groups: list[dict[str, Any]] = [{"params": net.head.parameters()}]
    optimizer = torch.optim.AdamW([*groups, {"params": net.body.parameters(), "weight_decay": 0}], weight_decay=0.04)
    hook = ParamSchedule(weight_decay=[("1ep", 0.04), ("50%", 0.4)])
    found = settings(hook, optimizer, "weight_decay")
    assert {other for _, other in found} == {0}
    for it, (value, _) in enumerate(found):
        way = min(max((it - 10) / 40, 0), 1)
        assert value == pytest.approx(0.04 + 0.36 * (1 - math.cos(math.pi * way)) / 2)


def test_steps_are_a_schedule_too() -> None:
    hook = ParamSchedule(momentum=[(0, 0.5), (3, 0.9)], shape="constant")
    assert settings(hook, torch.optim.SGD(Net().parameters(), 0.1), "momentum", 5) == [[0.5]] * 3 + [[0.9]] * 2


@pytest.mark.parametrize("values", [[], [["30s", 0.9]], [[0, -0.1]], [["soon", 1.0]], [[0]], 0.9])
def test_what_is_no_schedule_is_refused_before_the_run(values: Any) -> None:
    (problem,) = wrong_arguments(ParamSchedule, {"momentum": values}, "param_schedule", lambda _: Where(""))
    assert "momentum" in problem.message


def test_places_must_follow_one_another() -> None:
    hook = ParamSchedule(momentum=[(0, 0.5), ("10%", 0.6), ("1ep", 0.9)])
    with pytest.raises(UserError, match="momentum: positions must increase: 1ep is iteration 10, the one before it 10"):
        settings(hook, torch.optim.SGD(Net().parameters(), 0.1), "momentum")


def test_an_optimizer_without_momentum_is_the_users_mistake() -> None:
    with pytest.raises(UserError, match='the optimizer "optimizer" has no momentum'):
        settings(ParamSchedule(momentum=[(0, 0.5)]), torch.optim.Adagrad(Net().parameters()), "lr")


def test_something_must_be_scheduled() -> None:
    with pytest.raises(UserError, match="neither momentum nor weight_decay is given"):
        ParamSchedule()


def test_a_run_ends_with_the_last_value(new_run: NewRun, train_here: Any) -> None:
    args = 'momentum=[[0, 0.9], ["14it", 0.5]], weight_decay=[[0, 0.1]]'
    run_dir = new_run(f'hooks.other={{use="param_schedule", args={{{args}}}}}', "optimizer.args.weight_decay=0.01")
    assert train_here(run_dir) == 0
    state: Any = final_state(run_dir)["optimizer"]
    (group,) = state["param_groups"]
    assert (group["momentum"], group["weight_decay"], group["initial_weight_decay"]) == (0.5, 0.1, 0.01)
    tested = CliRunner().invoke(app, ["test", str(run_dir.path)], catch_exceptions=False)
    assert tested.exit_code == 0, "which trains nothing, so that no place is an iteration"


def test_it_may_be_added_when_a_run_is_resumed(new_run: NewRun, train_here: Any) -> None:
    run_dir = new_run("run.max_epochs=1", "optimizer.args={lr=0.1, weight_decay=0.1}")
    assert train_here(run_dir) == 0
    added = 'hooks.decay={use="param_schedule", args={weight_decay=[[0, 0.1], ["100%", 0.4]]}}'
    loaded = load(run_dir.pipeline, ("run.max_epochs=2", added), recorded=True)
    propose(loaded, compile_pipeline(loaded, TESTS), run_dir, TESTS)
    assert train_here(run_dir, resume=True, allow_changed_hooks=True) == 0, records(run_dir, "error")
