"""Mixed batches, against the formulas of their papers."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from hookflow.errors import UserError
from hookflow.hooks.builtin.mixing import CutMix, Mixup, Resize
from tests.conftest import Trained
from tests.hooks.stand_ins import StandIn


class Replaced:
    """What a hook has put in the place of a batch."""

    def __init__(self) -> None:
        self.batch: Any = None

    def replace_batch(self, batch: Any) -> None:
        self.batch = batch


def mixed(hook: Mixup, inputs: torch.Tensor, targets: torch.Tensor) -> tuple[Any, float, torch.Tensor]:
    """Return the new batch, and the weight and the order that the same generator gives."""
    torch.manual_seed(3)
    random.seed(3)
    run: Any = Replaced()
    hook.before_train_iter(run, (inputs, targets))
    torch.manual_seed(3)
    random.seed(3)
    share = random.betavariate(hook.alpha, hook.alpha)
    return run.batch, share, torch.randperm(len(inputs))


def test_mixup_is_the_mean_of_pairs() -> None:
    inputs, targets = torch.randn(6, 3, 4, 4), torch.tensor([0, 1, 2, 0, 1, 2])
    (new, soft), share, order = mixed(Mixup(classes=3, alpha=0.4), inputs, targets)
    assert torch.equal(new, share * inputs + (1 - share) * inputs[order])
    hard = torch.eye(3)[targets]
    assert torch.equal(soft, share * hard + (1 - share) * hard[order])
    logits = torch.randn(6, 3)
    loss = torch.nn.functional.cross_entropy(logits, soft)
    both = [torch.nn.functional.cross_entropy(logits, each) for each in (targets, targets[order])]
    assert torch.allclose(loss, share * both[0] + (1 - share) * both[1])


def test_cutmix_takes_a_box_and_counts_its_pixels() -> None:
    inputs, targets = torch.arange(6.0)[:, None, None, None].expand(6, 3, 8, 8), torch.tensor([0, 1, 2, 0, 1, 2])
    (new, soft), share, order = mixed(CutMix(classes=3), inputs, targets)
    foreign = new != inputs
    moved = order != torch.arange(6)
    assert torch.equal(new[foreign], inputs[order][foreign])
    boxes = {tuple(map(tuple, each.nonzero()[:, 1:].tolist())) for each in foreign[moved]}
    assert len(boxes) == 1, "the same in all channels and examples"
    area = foreign[moved][0, 0].float().mean()
    assert 0 < area <= 1 - share + 0.01
    hard = torch.eye(3)[targets]
    assert torch.allclose(soft, (1 - area) * hard + area * hard[order])


def test_both_may_follow_one_another_and_a_share_stays_as_it_is() -> None:
    inputs, soft = torch.randn(4, 5), torch.full((4, 3), 1 / 3)
    (_, again), *_ = mixed(CutMix(classes=3), inputs, soft)
    assert torch.allclose(again, soft)
    run: Any = Replaced()
    Mixup(classes=3, probability=0.0).before_train_iter(run, (inputs, soft))
    assert run.batch is None


def test_a_batch_of_another_form_is_refused(trained: Trained) -> None:
    hook = Mixup(classes=3)
    hook.name = "mix"
    with pytest.raises(UserError, match='hook "mix" mixes batches of inputs and classes, and this is a dict'):
        hook.before_train_iter(Replaced(), {"image": torch.zeros(2), "label": torch.zeros(2)})  # type: ignore[arg-type]


@pytest.mark.parametrize("more", [(), ("run.accumulate=2",)])
def test_a_resumed_run_mixes_the_same_examples(resumes_alike: Any, more: tuple[str, ...]) -> None:
    mixes = ('hooks.mix={use="mixup", args={classes=3}}', 'hooks.cut={use="cutmix", args={classes=3}, after=["mix"]}')
    resumes_alike(*mixes, *more, point="after_train_iter", at=4 if more else 7)


@pytest.mark.parametrize(("done", "sides"), [(0, (4, 6)), (8, (6, 8)), (16, (8, 12)), (19, (8, 12))])
def test_images_grow_with_the_run_and_are_interpolated_as_pytorch_does(done: int, sides: tuple[int, int]) -> None:
    hook, images, targets = Resize(multiple=2), torch.randn(3, 2, 8, 12), torch.arange(3)
    run: Any = StandIn(iter=done, replaced=None)
    run.replace_batch = lambda batch: setattr(run, "replaced", batch)
    hook.before_train(run)
    hook.before_train_iter(run, (images, targets))
    if sides == (8, 12):
        assert run.replaced is None
        return
    new, same = run.replaced
    expected = torch.nn.functional.interpolate(images, sides, mode="bilinear", antialias=True)
    assert torch.equal(new, expected)
    assert same is targets
    hook.name = "grow"
    with pytest.raises(UserError, match='hook "grow" resizes'):
        hook.before_train_iter(run, (targets, targets))
