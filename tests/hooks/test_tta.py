"""Test-time augmentation: the mean over views, by hand; and the network as it was afterwards."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hookflow.errors import UserError, Where
from hookflow.hooks.arguments import wrong_arguments
from hookflow.hooks.builtin.predict import TTA, views
from tests.conftest import NewRun, records
from tests.hooks.stand_ins import StandIn
from tests.runner.same import assert_same, curve, final_state


def test_views_are_those_by_hand() -> None:
    image = torch.arange(9.0).reshape(1, 1, 3, 3)
    rows = [view[0, 0].tolist() for view in views(image, ["hflip"])]
    assert rows == [[[0, 1, 2], [3, 4, 5], [6, 7, 8]], [[2, 1, 0], [5, 4, 3], [8, 7, 6]]]
    rows = [view[0, 0].tolist() for view in views(image, ["shift(1)"])]
    assert rows[1:] == [[[4, 3, 4], [1, 0, 1], [4, 3, 4]], [[4, 5, 4], [7, 8, 7], [4, 5, 4]]]
    rows = [view[0, 0].tolist() for view in views(image, ["vflip"])]
    assert rows[1] == [[6, 7, 8], [3, 4, 5], [0, 1, 2]]
    assert views(image, ["rot90"])[1][0, 0].tolist() == [[2, 5, 8], [1, 4, 7], [0, 3, 6]]


def test_transforms_are_composed() -> None:
    image = torch.randn(2, 3, 4, 4)
    found = views(image, ["hflip", "shift(2)"])
    assert len(found) == 6
    assert torch.equal(found[1], image.flip(3))
    (_, *shifted) = views(image.flip(3), ["shift(2)"])
    assert all(map(torch.equal, found[4:], shifted))


def test_outputs_are_the_mean_over_all_views_and_the_network_is_put_back() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
    images = torch.randn(5, 3, 2, 2)
    alone = net(images)
    hook, run = TTA(["hflip", "vflip"]), StandIn(net)
    inside = hook.around_val(run)  # type: ignore[arg-type]
    next(inside)
    both = net(images)
    list(inside)
    expected = (alone + net(images.flip(3)) + net(images.flip(2)) + net(images.flip(3).flip(2))) / 4
    torch.testing.assert_close(both, expected)
    assert "forward" not in vars(net)
    assert torch.equal(net(images), alone)


def test_a_run_is_judged_by_the_views_and_trained_without(new_run: NewRun, train_here: Any) -> None:
    splits = [f'data.{split}={{use="./loaders.py:images"}}' for split in ("train", "val", "test")]
    images = 'model.use="./loaders.py:ConvNet"', *splits, "run.max_epochs=2"
    tta = 'hooks.tta={use="tta", args={transforms=["hflip"]}}'
    flips = 'task={use="hookflow.zoo.tasks:Classification", args={flip_at_test=true}}'  # which does that alone
    one, other = new_run(tta, *images), new_run(flips, *images)
    assert train_here(one) == train_here(other) == 0, records(one, "error")
    assert curve(one) == curve(other)
    assert_same(final_state(one)["model"], final_state(other)["model"])


class Two(nn.Module):
    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        return images, images


def test_what_has_no_mean_is_told() -> None:
    net = Two()
    around = TTA(["hflip"]).around_test(StandIn(net))  # type: ignore[arg-type]
    next(around)
    with pytest.raises(UserError, match="the network must return one tensor, not a tuple"):
        net(torch.zeros(1, 1, 2, 2))


@pytest.mark.parametrize("transform", ["flip", "shift(0)", "shift(-1)", "shift", 3])
def test_what_is_no_transform_is_refused_before_the_run(transform: Any) -> None:
    (problem,) = wrong_arguments(TTA, {"transforms": [transform]}, "tta", lambda _: Where(""))
    assert "transform" in problem.message
