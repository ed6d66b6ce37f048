"""Runs whose weights have another type than float32, beside the same loop in PyTorch."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy

from hookflow.errors import UserError
from hookflow.runner.numerics.precision import choose_precision
from tests.conftest import NewRun, Trained
from tests.runner.same import assert_same, final_state
from tests.runner.test_shared_model import NET, OFF, Fixed
from tests.toy import Points

TYPES = {"bf16-true": torch.bfloat16, "fp64": torch.float64}


@pytest.mark.parametrize("name", TYPES)
def test_weights_optimizer_and_batches_have_the_type(trained: Trained, name: str) -> None:
    off = ("hooks.clip.enabled=false", *OFF)
    run_dir = trained(NET, f"run.precision='{name}'", "run.max_epochs=2", *off)
    net, data = Fixed().to(TYPES[name]), Points(0, torch.device("cpu"))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(2):
        for inputs, target in data.epoch(epoch):
            optimizer.zero_grad()
            logits = net(inputs.to(TYPES[name]))
            cross_entropy(logits.float() if name == "bf16-true" else logits, target).backward()
            optimizer.step()
    state = final_state(run_dir)
    assert_same(state["model"], net.state_dict())
    buffers = [item["momentum_buffer"] for item in state["optimizer"]["state"].values()]  # type: ignore[index]
    assert {buffer.dtype for buffer in buffers} == {TYPES[name]}


@pytest.mark.parametrize("name", TYPES)
def test_they_resume_to_the_bit(resumes_alike: NewRun, name: str) -> None:
    resumes_alike(f"run.precision='{name}'", point="after_train_iter", at=7)


def test_mps_has_no_float64() -> None:
    with pytest.raises(UserError, match="MPS has no float64"):
        choose_precision("fp64", torch.device("mps"), print)
