"""The state of the random generators of a device."""

import pytest
import torch

from hookflow.runner.device.random_state import random_state, restore_generators, set_random_state


def test_the_generator_of_mps_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a simulated device, whose generator is one of the CPU."""
    simulated = torch.Generator()
    monkeypatch.setattr(torch.mps, "get_rng_state", simulated.get_state)
    monkeypatch.setattr(torch.mps, "set_rng_state", simulated.set_state)
    monkeypatch.setattr(torch.mps, "manual_seed", simulated.manual_seed)
    device = torch.device("mps")
    simulated.manual_seed(7)
    state = random_state(device)
    drawn = torch.rand(3, generator=simulated)
    set_random_state(state, device)
    assert torch.equal(torch.rand(3, generator=simulated), drawn)
    set_random_state(state, device)
    with restore_generators(device, 5):
        assert torch.equal(
            torch.rand(3, generator=simulated),
            torch.rand(3, generator=torch.Generator().manual_seed(5)),
        )
    assert torch.equal(torch.rand(3, generator=simulated), drawn)
    del state["mps"]  # a checkpoint of an earlier version
    set_random_state(state, device)
