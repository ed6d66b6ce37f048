"""Precise statistics of batch norms: those of one pass over the data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hookflow.hooks.builtin.batch_norm import PreciseBN, moments
from hookflow.zoo.tasks import Classification
from tests.conftest import NewRun, records
from tests.hooks.stand_ins import StandIn
from tests.runner.same import assert_same, final_state
from tests.toy import Net, Points


def given_to_the_norm(net: Net, epoch: int, batches: int) -> Tensor:
    """Return what the toy net's norm is given in so many batches of an epoch, (examples, channels)."""
    points = Points(0, torch.device("cpu")).epoch(epoch)
    with torch.no_grad():
        return torch.cat([net.body[0](next(points)[0]) for _ in range(batches)])


@pytest.mark.parametrize("batches", [3, None])
def test_they_are_the_moments_of_one_pass(batches: int | None) -> None:
    net = Net().train()
    points = Points(0, torch.device("cpu"))
    run: Any = StandIn(net, data={"train": points}, task=Classification(), batch_idx=0)
    before = net.body[1].num_batches_tracked.clone()
    random = torch.get_rng_state()
    with torch.no_grad():
        PreciseBN(batches).before_val(run)
    given = given_to_the_norm(net, 0, batches or len(points))
    torch.testing.assert_close(net.body[1].running_mean, given.mean(0))
    torch.testing.assert_close(net.body[1].running_var, given.var(0))
    assert net.body[1].num_batches_tracked == before
    assert net.training and net.body[3].training and torch.equal(torch.get_rng_state(), random)
    assert not net.body[1]._forward_pre_hooks


@pytest.mark.parametrize(("precision", "dtype"), [("bf16", torch.bfloat16), ("fp32", torch.float32)])
def test_it_computes_in_the_precision_of_the_run(
    new_run: NewRun,
    train_here: Callable[..., int],
    monkeypatch: pytest.MonkeyPatch,
    precision: str,
    dtype: torch.dtype,
) -> None:
    seen: list[torch.dtype] = []
    monkeypatch.setattr(nn.BatchNorm1d, "forward", keeps(nn.BatchNorm1d.forward, seen))
    run_dir = new_run(f'run.precision="{precision}"', "run.max_epochs=1", 'hooks.precise={use="precise_bn"}')
    assert train_here(run_dir) == 0
    assert {*seen} == {dtype}


def keeps(forward: Any, seen: list[torch.dtype]) -> Any:
    def kept(self: nn.Module, inputs: Tensor) -> Tensor:
        seen.append(inputs.dtype)
        return forward(self, inputs)  # type: ignore[no-any-return]

    return kept


def test_images_have_their_moments_by_channel() -> None:
    norm = nn.BatchNorm2d(3).train()
    images = 2 + 3 * torch.randn(8, 3, 5, 5)
    data = type("Data", (), {"epoch": lambda self, epoch: iter(images.split(3)), "__len__": lambda self: 3})()
    task = type("Task", (), {"evaluate": lambda self, run, batch: run.model(batch), "step": None})()
    with torch.no_grad():
        PreciseBN().before_val(StandIn(norm, data={"train": data}, task=task, batch_idx=0))  # type: ignore[arg-type]
    torch.testing.assert_close(norm.running_mean, images.mean((0, 2, 3)))
    torch.testing.assert_close(norm.running_var, images.transpose(0, 1).flatten(1).var(1))


def test_far_from_zero_the_variance_is_still_one() -> None:
    values = 1000 + torch.randn(1000, 1, dtype=torch.float64)
    count = torch.tensor(1000.0, dtype=torch.float64)
    _, variance = moments(count, values.sum(0), values.square().sum(0))
    torch.testing.assert_close(variance, values.var(0))


def test_norms_that_are_frozen_are_left_alone() -> None:
    net = Net().train()
    net.body[1].eval()
    mean = net.body[1].running_mean.clone()
    PreciseBN().before_val(StandIn(net, data={"train": Points(0, torch.device("cpu"))}, batch_idx=0))  # type: ignore[arg-type]
    assert torch.equal(net.body[1].running_mean, mean)


def test_an_average_of_the_weights_is_judged_with_its_own(new_run: NewRun, train_here: Any) -> None:
    run_dir = new_run('hooks.precise={use="precise_bn", args={batches=4}}')
    assert train_here(run_dir) == 0, records(run_dir, "error")
    state: Any = final_state(run_dir)
    net = Net()
    net.load_state_dict(state["model_ema"])
    given = given_to_the_norm(net, 3, 4)
    torch.testing.assert_close(state["model_ema"]["body.1.running_mean"], given.mean(0))
    torch.testing.assert_close(state["model_ema"]["body.1.running_var"], given.var(0))
    assert not torch.equal(state["model"]["body.1.running_mean"], state["model_ema"]["body.1.running_mean"])


def test_the_weights_are_trained_as_without_it(new_run: NewRun, train_here: Any) -> None:
    one, other = new_run('hooks.precise={use="precise_bn"}', "run.val_every='4it'"), new_run("run.val_every='4it'")
    assert train_here(one) == train_here(other) == 0
    assert_same(final_state(one)["optimizer"], final_state(other)["optimizer"])
    assert_same(final_state(one)["random"], final_state(other)["random"])
