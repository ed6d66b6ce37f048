"""Activation checkpointing: less is kept, and nothing comes out differently."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from hookflow.errors import UserError
from hookflow.hooks.builtin.memory import ActivationCheckpoint, outermost
from tests.conftest import NewRun, records
from tests.hooks.stand_ins import StandIn
from tests.runner.same import assert_same, curve, final_state
from tests.toy import Net


def test_a_run_ends_with_the_same_bits(new_run: NewRun, train_here: Any) -> None:
    """The net has dropout and a batch norm."""
    other = new_run('hooks.recompute={use="activation_checkpoint", args={match=["body"]}}')
    plain = new_run()
    assert train_here(plain) == train_here(other) == 0, records(other, "error")
    assert curve(plain) == curve(other)
    for part in ("model", "model_ema", "optimizer", "random"):
        assert_same(final_state(plain)[part], final_state(other)[part], part)


def test_gradients_are_the_same_and_activations_are_computed_again() -> None:
    found: list[Any] = []
    calls: list[int] = []
    for match in ([], ["0"]):

        def called(*_: Any, hooked: int = len(match)) -> None:
            calls.append(hooked)

        torch.manual_seed(1)
        net = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Tanh()), nn.Linear(4, 1))
        net[0][0].register_forward_hook(called)
        hook, run = ActivationCheckpoint(match), StandIn(net)
        hook.before_run(run)  # type: ignore[arg-type]
        loss = net(torch.randn(8, 4)).square().mean()
        loss.backward()
        with torch.no_grad():
            net(torch.randn(8, 4))
        hook.after_run()
        assert "forward" not in vars(net[0])
        gradients = {name: p.grad for name, p in net.named_parameters()}
        found.append({"loss": loss.detach(), **gradients, **net.state_dict()})
    assert_same(*found)
    assert calls == [0, 0, 1, 1, 1]


def test_of_modules_inside_one_another_the_outermost_is_wrapped() -> None:
    net = Net()
    assert outermost(net, ["body*"]) == [net.body]
    assert outermost(net, ["body.?", "head"]) == [*net.body, net.head]
    with pytest.raises(UserError, match='no module of the network matches "boddy"'):
        outermost(net, ["boddy"])
