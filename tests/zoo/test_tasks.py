"""Tasks, nets and points of the zoo: what they compute, and how they start;
what every source of data keeps to.
"""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional

from hookflow.errors import UserError
from hookflow.zoo.cifar10 import AirNet
from hookflow.zoo.circle import CIRCLE_RADIUS, SPLIT_SIZES, Circle
from hookflow.zoo.hooks import Whiten
from hookflow.zoo.tasks import Classification, LanguageModelling, OwnLoss, Regression
from tests.runner.same import assert_same
from tests.support.image_data import make as images_of
from tests.support.image_data import picture, text


class LeftColumn(nn.Module):
    """Scores the classes by what stands in the leftmost column:
    an image and its mirror get different logits.
    """

    def forward(self, images):
        return images[:, :, :, 0].mean(2)


def trained(model):
    return SimpleNamespace(model=model)


@pytest.fixture
def batch():
    return torch.randn(5, 4, 6, 6, generator=torch.Generator().manual_seed(0)), torch.tensor(
        [0, 1, 2, 3, 0]
    )


def test_a_step_gives_loss_logits_and_target(batch):
    outputs = Classification().step(trained(LeftColumn()), batch)
    logits = batch[0][:, :, :, 0].mean(2)
    assert torch.equal(outputs["logits"], logits)
    assert torch.equal(outputs["target"], batch[1])
    wanted = torch.stack(
        [row.logsumexp(0) - row[c] for row, c in zip(logits, batch[1], strict=True)]
    ).mean()
    assert outputs["loss"].item() == pytest.approx(wanted.item(), rel=1e-5)
    sure = torch.tensor([[100.0, 0.0, 0.0, 0.0]])
    smoothed = Classification(label_smoothing=0.2).step(
        trained(nn.Identity()), (sure, torch.tensor([0]))
    )
    assert smoothed["loss"].item() == pytest.approx(0.2 * 3 / 4 * 100, rel=1e-5), (
        "spread over all classes"
    )
    half = torch.zeros(2, 10, dtype=torch.bfloat16)
    loss = Classification().step(trained(nn.Identity()), (half, torch.tensor([1, 2])))["loss"]
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(math.log(10), rel=1e-6)


class SameMemory(LeftColumn):
    """Gives every output in the memory of the last one,
    as a network does that is compiled to CUDA graphs.
    """

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


@pytest.mark.parametrize(
    ("loss", "wanted"), [("mse", (1 + 9) / 2), ("mae", (1 + 3) / 2), ("huber", (0.5 + 2.5) / 2)]
)
def test_regression_is_the_distance_to_the_target(loss, wanted):
    task, batch = Regression(loss), (torch.tensor([1.0, 3.0]), torch.zeros(2))
    assert task.step(trained(nn.Identity()), batch)["loss"].item() == pytest.approx(wanted)
    outputs = task.evaluate(trained(nn.Identity()), batch)
    assert (outputs["mse"].item(), outputs["mae"].item()) == (5.0, 2.0)
    assert task.metrics({"mse": 9.0}) == {"rmse": 3.0}


def test_a_column_of_predictions_is_held_against_a_row_of_targets():
    batch = torch.tensor([[1.0], [2.0]]), torch.tensor([1.0, 2.0])
    assert Regression().step(trained(nn.Identity()), batch)["loss"].item() == 0


X = torch.zeros(2, 3)


@pytest.mark.parametrize(
    ("task", "batch", "message"),
    [
        (
            Regression(),
            (X, X[:, 0]),
            r"the target of data.val is float32 \(2,\), and the model returns float32 \(2, 3\)",
        ),
        (
            Classification(),
            (X, X[0]),
            r"the target of data.val is float32 \(3,\), the logits are float32 \(2, 3\): ",
        ),
        (
            Classification(),
            (X, torch.tensor([1, 3])),
            r"int64 \(2,\), the logits are .* Target 3 is out of bounds",
        ),
        (
            Classification(),
            (X, ["cat", "dog", "cat"]),
            r"data.val is \[float32 \(2, 3\), \[str, str, …\]\], and this task",
        ),
        (
            Classification(),
            {"x": X, "y": X},
            "a batch of data.val is a dict of x, y, and this task needs inputs and a",
        ),
    ],
)
def test_a_batch_that_a_task_cannot_use_is_named_with_its_data_and_shapes(task, batch, message):
    with pytest.raises(UserError, match=message):
        task.evaluate(SimpleNamespace(model=nn.Identity(), split="val"), batch)


@pytest.mark.parametrize(
    "task", [Classification(), Classification(flip_at_test=True), Regression(), LanguageModelling()]
)
def test_a_model_that_returns_no_tensor_is_refused_by_its_name(task, batch):
    class Pair(nn.Module):
        def forward(self, inputs):
            return inputs, 1

    for step in (task.step, getattr(task, "evaluate", task.step)):
        with pytest.raises(
            UserError, match="the model Pair returns a tuple, and this task needs a tensor"
        ):
            step(trained(Pair()), batch)


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
    assert LanguageModelling().step(trained(Bigram()), tokens.flip(1))[
        "loss"
    ].item() == pytest.approx(50, rel=1e-4)
    pair = torch.tensor([[0, 1, 2]]), torch.tensor([[1, 0, -100]])
    loss = LanguageModelling().step(trained(Bigram()), pair)["loss"].item()
    assert loss == pytest.approx(25, rel=1e-4), (
        "the mean of a right and a wrong one: -100 counts for nothing"
    )
    assert LanguageModelling().metrics({"loss": math.log(10)})["perplexity"] == pytest.approx(10)
    assert LanguageModelling().metrics({"loss": 1e6})["perplexity"] == math.inf


@pytest.fixture
def net():
    return AirNet((8, 16, 16), num_classes=7)


@pytest.fixture
def images():
    """Smooth images: neighbouring pixels and channels are alike, as in a photograph."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(300, 3, 12, 12, generator=generator)
    return functional.avg_pool2d(noise, 3, stride=1) * 3 + noise[:, :1, 1:-1, 1:-1]


def run(model, images, done=0):
    return SimpleNamespace(
        model=model, iter=done, data={"train": SimpleNamespace(sample=lambda count: images)}
    )


def test_the_net_gives_logits_starts_as_it_should_and_trains_all_but_whitening_and_scales(
    net,
) -> None:
    for side in (32, 16):
        assert net(torch.randn(2, 3, side, side)).shape == (2, 7)
    assert sum(p.numel() for p in AirNet((64, 256, 256)).parameters()) == pytest.approx(
        1.97e6, rel=0.01
    )
    conv = net.groups[1].conv1
    x = torch.randn(1, 8, 9, 9)
    assert torch.allclose(conv(x)[:, :8], x, atol=1e-6)
    assert not torch.allclose(conv(x)[:, 8:], x, atol=0.1)
    fixed = {name for name, p in net.named_parameters() if not p.requires_grad}
    assert fixed == {"whiten.weight"} | {
        f"groups.{g}.norm{n}.weight" for g in range(3) for n in (1, 2)
    }
    net(torch.randn(4, 3, 32, 32)).sum().backward()
    assert all(p.grad is not None for name, p in net.named_parameters() if name not in fixed)


def test_whitened_outputs_are_decorrelated_and_no_resumed_run_whitens_again(net, images) -> None:
    before = net.whiten.weight.clone()
    Whiten().before_train(run(net, images, done=1))
    assert torch.equal(net.whiten.weight, before)
    Whiten().before_train(run(net, images))
    out = functional.conv2d(images, net.whiten.weight).permute(1, 0, 2, 3).flatten(1)[:12]
    covariance = out @ out.T / out.shape[1]
    assert torch.allclose(covariance - covariance.diag().diag(), torch.zeros(12, 12), atol=1e-3)
    assert ((covariance.diag() > 0.9) & (covariance.diag() < 1.001)).all()
    assert torch.equal(net.whiten.weight[:12], -net.whiten.weight[12:])
    with pytest.raises(UserError, match="a convolution named whiten; Linear has none"):
        Whiten().before_train(run(nn.Linear(2, 2), images))


def circle(split="train", seed=0, **args):
    return Circle(split=split, seed=seed, device=torch.device("cpu"), **args)


def whole(source, epoch=0):
    points, inside = zip(*source.epoch(epoch), strict=True)
    return torch.cat(points), torch.cat(inside)


def test_half_of_the_points_lie_in_the_circle_and_the_splits_are_unlike():
    train, val = circle(), circle("val")
    points, inside = whole(train)
    assert points.shape == (SPLIT_SIZES["train"], 2)
    assert torch.equal(inside, (points.norm(dim=1) < CIRCLE_RADIUS).long())
    assert 0.45 < inside.float().mean() < 0.55
    assert train.info["synthetic"]
    assert (len(val), val.info["examples"]) == (4, 256)
    assert not torch.isin(whole(val)[0][:, 0], points[:, 0]).any()


SOURCES = {
    "circle": lambda seed, folder: circle(batch_size=100, seed=seed),
    "images": lambda seed, folder: images_of(seed=seed),
    "a picture": lambda seed, folder: picture(seed=seed),
    "a text": lambda seed, folder: text(folder, seed=seed),
}


@pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES)
def test_an_epoch_is_a_function_of_the_seed_and_its_number_and_can_be_entered_anywhere(
    make, tmp_path
):
    whole = list(make(0, tmp_path).epoch(2))
    assert len(whole) == len(make(0, tmp_path)) > 2
    torch.manual_seed(99)
    before = torch.get_rng_state()
    assert_same(list(make(0, tmp_path).epoch(2, 2)), whole[2:])
    assert torch.equal(torch.get_rng_state(), before), "the global generator is left alone"
    for other in (make(1, tmp_path).epoch(2), make(0, tmp_path).epoch(3)):
        with pytest.raises(AssertionError):
            assert_same(list(other), whole)


@pytest.mark.parametrize(("weigh_by", "count"), [("labels", 4), ("next_labels", 3)])
def test_a_loss_of_the_models_own_weighs_the_labels_that_count(weigh_by, count) -> None:
    labels = torch.tensor([[1, 2, -100], [-100, 3, 4]])
    task = OwnLoss(weigh_by=weigh_by)
    assert task.batch_weight is not None and task.batch_weight({"labels": labels}) == count
    assert OwnLoss().batch_weight is None, "examples are what counts without it"


def test_a_classification_weighs_the_targets_that_count() -> None:
    images = torch.zeros(3, 2)
    task = Classification()
    assert task.batch_weight((images, torch.tensor([1, -100, 0]))) == 2
    assert task.batch_weight((images, torch.full((3, 4), 0.25))) == 3, "shares of classes"
    assert task.batch_weight((images, torch.tensor([[0, -100], [1, 1], [2, -100]]))) == 4, (
        "a class a pixel"
    )
    assert task.batch_weight({"images": images}) == 3, "of a task that is derived from it"
