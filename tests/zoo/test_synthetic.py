"""The synthetic images: what they say of themselves, that they are always the same, and how hard they are."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from hookflow.zoo.airbench import AirNet
from hookflow.zoo.hooks import whitening
from hookflow.zoo.images import Options, synthetic
from hookflow.zoo.tasks import Classification


def drawn(split="train", say=lambda text: None, limit=None, **args):
    options = {"batch_size": 256, "augment": None, "sizes": (), "seed": 0, "rank": 0, "world": 1, **args}
    return synthetic(Options(split=split, device=torch.device("cpu"), **options), limit, say)


def test_they_say_what_they_are():
    said = []
    source = drawn("val", said.append, 7)
    assert source.info["synthetic"]
    assert "says nothing about CIFAR-10" in source.info["note"]
    assert said == ["SYNTHETIC val: generating 7 images"]


def test_the_classes_are_balanced_and_the_splits_are_unlike():
    sizes = {split: torch.cat([b.classes for b in drawn(split, augment=False).epoch(0)]) for split in ("val", "test")}
    assert all(torch.bincount(classes).tolist() == [100] * 10 for classes in sizes.values())
    assert not torch.equal(drawn("val").sample(10), drawn("test").sample(10))


def test_the_pictures_do_not_depend_on_the_runs_seed_nor_on_the_global_generator():
    torch.manual_seed(1)
    first = drawn("val", seed=0).sample(100)
    torch.manual_seed(2)
    assert torch.equal(first, drawn("val", seed=5).sample(100))


def _accuracy(model, source):
    model.eval()
    with torch.no_grad():
        right = [(model(b.images).argmax(1) == b.classes).sum().item() for b in source.epoch(0)]
    return sum(right) / source.info["examples"]


def _train(model, source, epochs, groups, lr):
    optimizer = torch.optim.SGD(groups, lr=lr, momentum=0.9, nesterov=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, [group["lr"] for group in optimizer.param_groups], epochs * len(source), cycle_momentum=False
    )
    for epoch in range(epochs):
        for batch in source.epoch(epoch):
            optimizer.zero_grad()
            Classification().step(SimpleNamespace(model=model), batch)["loss"].backward()
            optimizer.step()
            schedule.step()


@pytest.mark.long
def test_a_linear_model_fails_and_a_small_net_succeeds():
    training, validation = drawn("train", batch_size=100), drawn("val", batch_size=500)
    torch.manual_seed(0)
    linear = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 10))
    _train(linear, drawn("train", batch_size=100, limit=2000, augment=False), 3, linear.parameters(), 0.003)
    assert 0.1 < _accuracy(linear, validation) < 0.5
    net = AirNet((8, 32, 64))
    with torch.no_grad():
        net.whiten.weight.copy_(whitening(training.sample(2000), net.whiten.weight.shape))
    shifts = [p for name, p in net.named_parameters() if "norm" in name and p.requires_grad]
    others = [p for name, p in net.named_parameters() if "norm" not in name and p.requires_grad]
    _train(net, training, 5, [{"params": shifts, "lr": 3.0}, {"params": others, "lr": 0.2}], 0.2)
    assert _accuracy(net, validation) > 0.9
