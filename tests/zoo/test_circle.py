"""The tutorial's data and net: always the same points, and learnt in a second."""

from types import SimpleNamespace

import torch

from hookflow.zoo.circle import RADIUS, SPLITS, Circle, Net
from hookflow.zoo.tasks import Classification


def circle(split="train", seed=0, **args):
    return Circle(split=split, seed=seed, device=torch.device("cpu"), **args)


def whole(source, epoch=0):
    points, inside = zip(*source.epoch(epoch), strict=True)
    return torch.cat(points), torch.cat(inside)


def test_half_of_the_points_lie_in_the_circle_and_the_splits_are_unlike():
    train, val = circle(), circle("val")
    points, inside = whole(train)
    assert points.shape == (SPLITS["train"], 2)
    assert torch.equal(inside, (points.norm(dim=1) < RADIUS).long())
    assert 0.45 < inside.float().mean() < 0.55
    assert train.info["synthetic"]
    assert (len(val), val.info["examples"]) == (4, 256)
    assert not torch.isin(whole(val)[0][:, 0], points[:, 0]).any()


def test_an_epoch_is_a_function_of_the_seed_and_its_number_and_can_be_entered_anywhere():
    source = circle(batch_size=100)
    assert len(source) == len(list(source.epoch(3))) == 10
    assert torch.equal(whole(source, 3)[0], whole(circle(batch_size=100), 3)[0])
    assert not torch.equal(whole(source, 3)[0], whole(source, 4)[0])
    assert not torch.equal(whole(source)[0], whole(circle(batch_size=100, seed=1))[0])
    (_, last), (_, entered) = list(source.epoch(3))[9], next(source.epoch(3, start=9))
    assert torch.equal(last, entered)


def test_the_net_learns_it():
    torch.manual_seed(0)
    net, source, task = Net(), circle(batch_size=32), Classification()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
    for epoch in range(4):
        for batch in source.epoch(epoch):
            optimizer.zero_grad()
            task.step(SimpleNamespace(model=net), batch)["loss"].backward()
            optimizer.step()
    points, inside = whole(circle("val"))
    assert (net(points).argmax(1) == inside).float().mean() > 0.9
