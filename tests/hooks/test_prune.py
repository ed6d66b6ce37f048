"""Pruning, against `torch.nn.utils.prune`."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, Literal

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from hookflow.errors import UserError
from hookflow.hooks.builtin.freeze import Prune
from hookflow.runner.checkpoint.store import read
from tests.conftest import Trained
from tests.hooks.stand_ins import StandIn


def theirs(model: nn.Sequential, scope: str, amount: float) -> None:
    places = [(model[0], "weight"), (model[2], "weight")]
    if scope == "global":
        prune.global_unstructured(places, prune.L1Unstructured, amount=amount)
    else:
        for module, name in places:
            prune.l1_unstructured(module, name, amount=amount)


@pytest.mark.parametrize("scope", ["global", "layer"])
def test_it_trains_what_pytorchs_pruning_trains(scope: Literal["global", "layer"]) -> None:
    torch.manual_seed(1)
    ours = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3))
    other = deepcopy(ours)
    inputs, targets = torch.randn(16, 4), torch.randint(3, (16,))
    optimizers = [torch.optim.SGD(model.parameters(), 0.1, momentum=0.9) for model in (ours, other)]
    run: Any = StandIn(ours, optimizers[0])
    hook = Prune(params=["*.weight"], amount=0.4, begin=1, end=1, scope=scope)
    hook.before_train(run)
    for run.iter in range(6):
        for model, optimizer in zip((ours, other), optimizers, strict=True):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), targets).backward()
            if model is ours:
                hook.after_backward()
            optimizer.step()
        hook.after_optimizer_step(run)
        if run.iter == 0:
            theirs(other, scope, 0.4)
    for layer in (0, 2):
        expected = other[layer].weight_orig * other[layer].weight_mask  # type: ignore[operator]
        assert torch.equal(expected == 0, ours[layer].weight == 0)  # type: ignore[arg-type]
        torch.testing.assert_close(ours[layer].weight, expected)


def test_the_share_follows_the_cubic_schedule_and_what_is_pruned_stays_so() -> None:
    model = nn.Linear(50, 20)
    run: Any = StandIn(model, torch.optim.SGD(model.parameters(), 0.1))
    hook = Prune(params=["weight"], amount=0.8, begin=4, end=12, every=4)
    hook.before_train(run)
    zeros, before = [], torch.zeros(20, 50, dtype=torch.bool)
    for run.iter in range(16):
        with torch.no_grad():
            model.weight += torch.randn(20, 50)
        hook.after_optimizer_step(run)
        assert not (before & (model.weight != 0)).any()
        before = model.weight == 0
        zeros.append(int(before.sum()))
    assert zeros == [0] * 7 + [round(800 * (1 - 0.5**3))] * 4 + [800] * 5


def test_a_resumed_run_prunes_alike_and_the_weights_keep_their_names(resumes_alike: Any) -> None:
    made = 'hooks.prune={use="prune", args={params=["*.weight"], amount=0.5, begin="1ep", end="2ep", every=2}}'
    run_dir = resumes_alike(made, point="after_train_iter", at=8)
    state = read(run_dir.checkpoints / "last")
    assert state["hooks"]["prune"]["chosen_at"] == 10
    assert not any("_orig" in name or "_mask" in name for name in state["model"])


def test_an_end_before_the_beginning_and_a_glob_without_a_match_are_refused(trained: Trained) -> None:
    trained('hooks.prune={use="prune", args={params=["no.such"]}}', code=2)
    hook = Prune(params=["weight"], begin="80%", end="20%")
    hook.name = "thin"
    with pytest.raises(UserError, match='hook "thin" would end at iteration 4, before it begins at 16'):
        hook.before_train(StandIn(nn.Linear(2, 2)))  # type: ignore[arg-type]
