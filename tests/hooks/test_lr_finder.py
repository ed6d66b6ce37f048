"""The learning-rate range test: its sweep, what it suggests, and that it leaves nothing behind."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from hookflow.errors import UserError
from hookflow.hooks.builtin.lr_finder import LRFinder, steepest, swept
from hookflow.hooks.builtin.spike_guard import SpikeGuard
from tests.conftest import NewRun, records
from tests.hooks.stand_ins import StandIn
from tests.runner.same import assert_same, final_state
from tests.toy import Net

FINDER = 'hooks.finder={use="lr_finder", args={start=1e-4, end=1.0, iters=12}}'


def test_the_sweep_is_exponential() -> None:
    rates = [swept(1e-4, 1.0, step, 5) for step in range(5)]
    assert rates == pytest.approx([1e-4, 1e-3, 1e-2, 1e-1, 1.0])


def test_it_suggests_where_the_loss_falls_fastest() -> None:
    rates = [10.0**k for k in range(-6, 2)]
    assert steepest(rates, [3, 3, 2.9, 2, 1, 0.9, 2, 9]) == pytest.approx(1e-3)
    assert steepest(rates, [1, 1, 1, 2, 3, 4, 5, 6]) is None
    assert steepest(rates, [3, 2, 1, math.inf, math.nan, 1, 1, 1]) == pytest.approx(1e-5)


def test_the_noise_of_the_first_losses_suggests_nothing() -> None:
    rates = [swept(1e-6, 1.0, step, 40) for step in range(40)]
    found = steepest(rates, [9.0, 6.0, 3.0] + [2.5] * 27 + [1.5] * 10)
    assert found is not None
    assert rates[27] < found < rates[32]


def test_a_sweep_is_logged_and_told_and_leaves_no_trace(new_run: NewRun, train_here: Any) -> None:
    groups = 'optimizer.groups=[{match="head.*", args={lr=0.02}}]'
    run_dir = new_run(FINDER, groups, "hooks.log.points=['after_train_iter']", "hooks.ema.enabled=false")
    assert train_here(run_dir) == 0, records(run_dir, "error")
    logged: Any = {}
    for record in records(run_dir, "scalars"):
        logged.setdefault(record["it"], {}).update(record["v"])
    assert [logged[it]["lr_finder/lr"] for it in range(1, 13)] == pytest.approx(
        [10 ** (-4 + k * 4 / 11) for k in range(12)]
    )
    assert logged[12]["lr"] == pytest.approx(1.0)
    (told,) = (str(r["text"]) for r in records(run_dir, "message") if "learning rate" in str(r["text"]))
    assert told.startswith(("suggested learning rate", "no learning rate to suggest"))
    assert told.endswith("the sweep ended at 1.000")
    assert records(run_dir, "end")[0]["it"] == 12
    state: Any = final_state(run_dir)
    torch.manual_seed(0)
    assert_same(dict(state["model"]), dict(Net().state_dict()))
    assert not state["optimizer"]["state"]
    assert [group["initial_lr"] for group in state["optimizer"]["param_groups"]] == [0.02, 0.1]


def test_it_stops_where_the_loss_diverges(new_run: NewRun, train_here: Any) -> None:
    run_dir = new_run(FINDER, "hooks.finder.args.end=1e8", "hooks.clip.enabled=false", "run.on_nan='ignore'")
    assert train_here(run_dir) == 0, records(run_dir, "error")
    (told,) = (str(r["text"]) for r in records(run_dir, "message") if "learning rate" in str(r["text"]))
    assert "the sweep diverged at" in told
    assert records(run_dir, "end")[0]["it"] < 12  # type: ignore[operator]


def test_the_loss_of_several_ranks_is_weighted_by_their_examples() -> None:
    def summed(mine: torch.Tensor) -> torch.Tensor:
        return mine + torch.tensor([9.0, 1.0])  # the other rank has a loss of 9, of one example

    run: Any = StandIn(Net(), world=2, batch_size=3, sum=summed)
    for hook, after in [(finder := LRFinder(), finder.after_train_iter), (guard := SpikeGuard(), guard.after_forward)]:
        after(run, {"loss": torch.tensor(1.0)})
        assert [*hook.losses] == pytest.approx([3.0])
        with pytest.raises(UserError, match='needs the output "loss" of the task'):
            after(run, {})


@pytest.mark.parametrize(
    ("change", "said"),
    [("hooks.finder.args.iters=40", "sweeps over 40 iterations, and the run has only 15")],
)
def test_a_run_that_is_too_short_is_told(new_run: NewRun, train_here: Any, change: str, said: str) -> None:
    run_dir = new_run(FINDER, change)
    assert train_here(run_dir) == 2
    assert said in str(records(run_dir, "end")[0]["reason"])


def test_it_sweeps_upwards(new_run: NewRun) -> None:
    with pytest.raises(UserError, match="start must be below end"):
        new_run(FINDER, "hooks.finder.args.end=1e-5")


def test_a_modules_extra_state_is_put_back(new_run: NewRun, train_here: Any) -> None:
    run_dir = new_run(FINDER, 'model.use="./toy.py:Counts"')
    assert train_here(run_dir) == 0
    state: Any = final_state(run_dir)
    assert state["model"]["_extra_state"] == {"calls": 0}
