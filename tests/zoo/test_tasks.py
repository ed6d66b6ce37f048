"""What the classification task computes."""

import math

import pytest
import torch
from torch import nn

from hookflow.zoo.tasks import Classification


class LeftColumn(nn.Module):
    """Scores the classes by what stands in the leftmost column: a picture and its mirror get different logits."""

    def forward(self, pictures):
        return pictures[:, :, :, 0].mean(2)


@pytest.fixture
def batch():
    return torch.randn(5, 4, 6, 6, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 3, 0])


def test_a_step_gives_loss_logits_and_target(batch):
    outputs = Classification().step(LeftColumn(), batch)
    logits = batch[0][:, :, :, 0].mean(2)
    assert torch.equal(outputs["logits"], logits)
    assert torch.equal(outputs["target"], batch[1])
    wanted = torch.stack([row.logsumexp(0) - row[c] for row, c in zip(logits, batch[1], strict=True)]).mean()
    assert outputs["loss"].item() == pytest.approx(wanted.item(), rel=1e-5)


def test_label_smoothing_spreads_its_share_over_all_classes():
    sure = torch.tensor([[100.0, 0.0, 0.0, 0.0]])
    outputs = Classification(label_smoothing=0.2).step(nn.Identity(), (sure, torch.tensor([0])))
    assert outputs["loss"].item() == pytest.approx(0.2 * 3 / 4 * 100, rel=1e-5)


def test_flip_at_test_averages_a_picture_with_its_mirror_and_leaves_training_alone(batch):
    task, model = Classification(flip_at_test=True), LeftColumn()
    mirror = (batch[0].flip(3), batch[1])
    there, back = task.evaluate(model, batch), task.evaluate(model, mirror)
    assert torch.allclose(there["logits"], back["logits"])
    assert not torch.allclose(task.step(model, batch)["logits"], task.step(model, mirror)["logits"])


def test_the_loss_is_float32_whatever_the_logits_are():
    logits = torch.zeros(2, 10, dtype=torch.bfloat16)
    loss = Classification().step(nn.Identity(), (logits, torch.tensor([1, 2])))["loss"]
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(math.log(10), rel=1e-6)
