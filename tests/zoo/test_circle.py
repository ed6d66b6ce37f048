"""The tutorial's data: always the same points."""

import torch

from hookflow.zoo.circle import RADIUS, SPLITS, Circle


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
