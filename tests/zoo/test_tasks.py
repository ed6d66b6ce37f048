"""What the tasks that come with hookflow compute."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from hookflow.zoo.tasks import Classification, LanguageModelling, Regression


class LeftColumn(nn.Module):
    """Scores the classes by what stands in the leftmost column: an image and its mirror get different logits."""

    def forward(self, images):
        return images[:, :, :, 0].mean(2)


def trained(model):
    return SimpleNamespace(model=model)


@pytest.fixture
def batch():
    return torch.randn(5, 4, 6, 6, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 3, 0])


def test_a_step_gives_loss_logits_and_target(batch):
    outputs = Classification().step(trained(LeftColumn()), batch)
    logits = batch[0][:, :, :, 0].mean(2)
    assert torch.equal(outputs["logits"], logits)
    assert torch.equal(outputs["target"], batch[1])
    wanted = torch.stack([row.logsumexp(0) - row[c] for row, c in zip(logits, batch[1], strict=True)]).mean()
    assert outputs["loss"].item() == pytest.approx(wanted.item(), rel=1e-5)
    sure = torch.tensor([[100.0, 0.0, 0.0, 0.0]])
    smoothed = Classification(label_smoothing=0.2).step(trained(nn.Identity()), (sure, torch.tensor([0])))
    assert smoothed["loss"].item() == pytest.approx(0.2 * 3 / 4 * 100, rel=1e-5), "spread over all classes"
    half = torch.zeros(2, 10, dtype=torch.bfloat16)
    loss = Classification().step(trained(nn.Identity()), (half, torch.tensor([1, 2])))["loss"]
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(math.log(10), rel=1e-6)


class SameMemory(LeftColumn):
    """Gives every output in the memory of the last one, as a network does that is compiled to CUDA graphs."""

    def forward(self, images):
        if not hasattr(self, "output"):
            self.output = torch.empty(5, 4)
        return self.output.copy_(super().forward(images))


@pytest.mark.parametrize("model", [LeftColumn(), SameMemory()])
def test_flip_at_test_averages_an_image_with_its_mirror_and_leaves_training_alone(batch, model):
    task = Classification(flip_at_test=True)
    mirror = (batch[0].flip(3), batch[1])
    there, back = task.evaluate(trained(model), batch), task.evaluate(trained(model), mirror)
    assert torch.allclose(there["logits"], back["logits"])
    training = [task.step(trained(model), side)["logits"].clone() for side in (batch, mirror)]
    assert not torch.allclose(*training)
    assert torch.allclose(there["logits"], sum(training) / 2)


@pytest.mark.parametrize(("loss", "wanted"), [("mse", (1 + 9) / 2), ("mae", (1 + 3) / 2), ("huber", (0.5 + 2.5) / 2)])
def test_regression_is_the_distance_to_the_target(loss, wanted):
    task, batch = Regression(loss), (torch.tensor([1.0, 3.0]), torch.zeros(2))
    assert task.step(trained(nn.Identity()), batch)["loss"].item() == pytest.approx(wanted)
    outputs = task.evaluate(trained(nn.Identity()), batch)
    assert (outputs["mse"].item(), outputs["mae"].item()) == (5.0, 2.0)
    assert task.metrics({"mse": 9.0}) == {"rmse": 3.0}


def test_a_column_of_predictions_is_held_against_a_row_of_targets_and_another_shape_is_refused():
    batch = torch.tensor([[1.0], [2.0]]), torch.tensor([1.0, 2.0])
    assert Regression().step(trained(nn.Identity()), batch)["loss"].item() == 0
    with pytest.raises(ValueError, match=r"predicts \(2, 3\), and the target has \(2,\)"):
        Regression().step(trained(nn.Identity()), (torch.zeros(2, 3), torch.zeros(2)))


class Bigram(nn.Module):
    """Is sure that each token is followed by the next higher one, of five."""

    def forward(self, tokens):
        return 50 * nn.functional.one_hot((tokens + 1) % 5, 5)


def test_a_language_model_is_asked_for_the_next_token():
    tokens = torch.tensor([[0, 1, 2, 3], [2, 3, 4, 0]])
    outputs = LanguageModelling().step(trained(Bigram()), tokens)
    assert torch.equal(outputs["target"], tokens[:, 1:])
    assert outputs["logits"].shape == (2, 3, 5)
    assert outputs["loss"].item() == pytest.approx(0, abs=1e-6)
    assert LanguageModelling().step(trained(Bigram()), tokens.flip(1))["loss"].item() == pytest.approx(50, rel=1e-4)
    pair = torch.tensor([[0, 1, 2]]), torch.tensor([[1, 0, -100]])
    loss = LanguageModelling().step(trained(Bigram()), pair)["loss"].item()
    assert loss == pytest.approx(25, rel=1e-4), "the mean of a right and a wrong one: -100 counts for nothing"
    assert LanguageModelling().metrics({"loss": math.log(10)})["perplexity"] == pytest.approx(10)
    assert LanguageModelling().metrics({"loss": 1e6})["perplexity"] == math.inf
