"""Sharpness-aware minimisation, against a loop in plain PyTorch."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from hookflow.runner.loop import update
from tests.conftest import NewRun, Trained, reason, records
from tests.loaders import a_list
from tests.runner.same import final_state


def normed() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Linear(8, 3))


SAM = 'hooks.sam={use="sam", args={rho=0.3}}'
PLAIN = ('data.train.use="./loaders.py:a_list"', "hooks.schedule.enabled=false", "hooks.clip.enabled=false")


def test_sharpness_aware_steps_are_those_of_a_plain_loop(trained: Trained) -> None:
    """To the bit: with batch norms, whose statistics are those of the first pass, and momentum."""
    run_dir = trained(f'model={{use="{__file__}:normed"}}', SAM, *PLAIN)
    model = normed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for inputs, target in a_list() * 3:
        functional.cross_entropy(model(inputs), target).backward()
        norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()  # type: ignore[union-attr]
        before = [p.detach().clone() for p in model.parameters()]
        with torch.no_grad():
            for p in model.parameters():
                p.add_(p.grad * (0.3 / (norm + 1e-12)))
        optimizer.zero_grad()
        model[1].momentum = 0  # type: ignore[index, union-attr]
        functional.cross_entropy(model(inputs), target).backward()
        model[1].momentum = 0.1  # type: ignore[index, union-attr]
        with torch.no_grad():
            for p, value in zip(model.parameters(), before, strict=True):
                p.copy_(value)
        optimizer.step()
        optimizer.zero_grad()
    ours, plain = final_state(run_dir)["model"], model.state_dict()
    for name in plain:
        assert torch.equal(ours[name], plain[name]), name  # type: ignore[index]


def test_sharpness_aware_steps_are_resumed_to_the_bit(resumes_alike: NewRun) -> None:
    resumes_alike(SAM, point="after_backward", at=7)


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        (["run.accumulate=2"], "run.accumulate adds up those of several batches"),
        (
            ['hooks.groups={use="accumulation_schedule", args={batches=[[0, 2]]}}'],
            "another hook adds up those of several batches",
        ),
        (['run.precision="fp16"'], 'run.precision = "fp16" scales the loss'),
        (['task.use="./own_tasks.py:Forgets"'], "the task steps its optimizers itself"),
    ],
)
def test_where_no_batch_can_be_computed_twice_is_a_mistake(trained: Trained, overrides: list[str], why: str) -> None:
    run_dir = trained(SAM, *overrides, code=2)
    assert why in reason(run_dir)
    assert records(run_dir, "end")[-1]["it"] == 0


@pytest.mark.parametrize(
    ("fact", "why"),
    [
        ("records_graphs", "CUDA graphs keep the outputs of one pass alone"),
        ("is_sharded", "FSDP has sharded them"),
    ],
)
def test_what_needs_a_gpu_or_fsdp_is_refused_before_the_first_iteration(
    monkeypatch: pytest.MonkeyPatch, trained: Trained, fact: str, why: str
) -> None:
    monkeypatch.setattr(update, fact, lambda *given: True)
    assert why in reason(trained(SAM, code=2))
