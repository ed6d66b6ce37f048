"""Batches are pure functions of seed, epoch and index; augmentation shifts and flips; synthetic images are learnt."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from hookflow.zoo.cifar10 import MEAN, STD, Batch, Images, Options, synthetic
from tests.conftest import records

CPU = torch.device("cpu")


def make(examples=50, *, batch_size=16, training=True, augment=True, sizes=(), seed=3, side=8, rank=0, world=1):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (examples, side, side, 3), dtype=np.uint8)
    return Images(
        torch.from_numpy(images),
        torch.arange(examples),  # a class of its own for each, to tell them apart
        Options("train" if training else "val", batch_size, augment, sizes, seed, CPU, rank, world),
        name="",
        note="",
        synthetic=True,
    )


def same(ours, theirs):
    return len(ours) == len(theirs) and all(
        torch.equal(a.images, b.images) and torch.equal(a.classes, b.classes) for a, b in zip(ours, theirs, strict=True)
    )


def test_an_epoch_is_a_function_of_its_seed_and_number_alone_and_can_be_entered_anywhere():
    whole = list(make().epoch(2))
    torch.manual_seed(99)
    before = torch.random.get_rng_state()
    assert same(whole[1:], list(make().epoch(2, start=1)))
    assert torch.equal(torch.random.get_rng_state(), before), "the global generator is left alone"
    assert not same(whole, list(make(seed=4).epoch(2)))
    assert not same(whole, list(make().epoch(1)))


def test_training_leaves_out_what_fills_no_batch_and_validation_keeps_it():
    training, validation = make(), make(training=False, augment=False)
    batches = list(training.epoch(0))
    assert [len(batch.classes) for batch in batches] == [16, 16, 16]
    assert len(torch.cat([batch.classes for batch in batches]).unique()) == 48, "each image is shown once"
    assert batches[0].images.is_contiguous(memory_format=torch.channels_last)
    assert [len(batch.classes) for batch in validation.epoch(0)] == [16, 16, 16, 2]
    assert (len(training), len(validation)) == (3, 4)
    assert torch.cat([batch.classes for batch in validation.epoch(0)]).tolist() == list(range(50))


def test_ranks_share_every_batch_augmented_as_it_would_be():
    """Two of 50 are left over in validation, too few for three ranks: the batch before has them."""
    for training, sizes in ((True, [16, 16, 16]), (False, [16, 16, 18])):
        alone = make(training=training)
        parts = [make(training=training, rank=rank, world=3) for rank in range(3)]
        shares = [list(part.epoch(1)) for part in parts]
        assert [len(share) for share in shares] == [len(sizes)] * 3
        assert [[part.global_batch_size(index) for index in range(3)] for part in parts] == [sizes] * 3
        assert [[part.batch_size(k) for k in range(3)] for part in parts] == [
            [len(batch.classes) for batch in share] for share in shares
        ]
        whole = [torch.cat(all_of) for all_of in zip(*alone.epoch(1), strict=True)]
        for rank, share in enumerate(shares):
            begins = [sum(sizes[:k]) for k in range(3)]
            expected = [Batch(*(of[b : b + n][rank::3] for of in whole)) for b, n in zip(begins, sizes, strict=True)]
            assert same(share, expected)


def test_a_sample_is_the_first_pictures_as_they_are():
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (50, 8, 8, 3), dtype=np.uint8)
    wanted = (images[:7] / 255 - np.array(MEAN)) / np.array(STD)
    for augment in (True, False):
        got = make(augment=augment).sample(7).permute(0, 2, 3, 1).numpy()
        np.testing.assert_allclose(got, wanted, atol=1e-5)


def _reflected_shifts(image):
    """Every shift by up to two pixels of an image (3, side, side), and its mirror's, by shift and side."""
    side = image.shape[1]
    padded = np.pad(image, ((0, 0), (2, 2), (2, 2)), mode="reflect")
    for down in range(5):
        for right in range(5):
            window = padded[:, down : down + side, right : right + side]
            yield (down, right, False), window
            yield (down, right, True), window[:, :, ::-1]


def _augmentation(batch: Batch, originals) -> dict[int, tuple[int, int, bool]]:
    """Say for each class (so, image) in the batch how it was augmented."""
    result = {}
    for image, number in zip(batch.images.numpy(), batch.classes.tolist(), strict=True):
        (result[number],) = [how for how, w in _reflected_shifts(originals[number]) if np.allclose(w, image)]
    return result


def test_augmentation_shifts_within_a_reflected_border_and_flips_alternately():
    source = make(200, batch_size=200)
    originals = source.sample(200).numpy()
    epochs = [_augmentation(next(iter(source.epoch(epoch))), originals) for epoch in range(3)]
    for epoch in epochs:
        assert {how[:2] for how in epoch.values()} == {(d, r) for d in range(5) for r in range(5)}
        assert 60 < sum(flipped for *_, flipped in epoch.values()) < 140
    for before, after in pairwise(epochs):
        assert all(before[number][2] != after[number][2] for number in range(200))


def test_pictures_grow_epoch_by_epoch_and_stay_what_they_are():
    source, full = make(sizes=[4, 6, 8]), make()
    for epoch, side in enumerate([4, 6, 8, 8]):
        for small, large in zip(source.epoch(epoch), full.epoch(epoch), strict=True):
            assert small.images.shape == (16, 3, side, side)
            assert torch.equal(small.classes, large.classes)
            assert torch.allclose(small.images.mean((2, 3)), large.images.mean((2, 3)), atol=0.1)
    assert torch.equal(small.images, large.images)


def drawn(split, seed=0, say=lambda text: None, limit=None):
    return synthetic(Options(split, 256, False, (), seed, CPU, 0, 1), limit, say)


def test_synthetic_images_say_so_and_depend_on_their_split_alone():
    lines = []
    few = drawn("val", say=lines.append, limit=7)
    assert few.info["synthetic"]
    assert "says nothing about CIFAR-10" in few.info["note"]
    assert lines == ["SYNTHETIC val: generating 7 images"]
    sources = drawn("val"), drawn("val", seed=5), drawn("test")
    for source in sources:
        assert torch.cat([batch.classes for batch in source.epoch(0)]).bincount().tolist() == [100] * 10
    one, other_seed, other_split = (source.sample(100) for source in sources)
    assert torch.equal(one, other_seed)
    assert not torch.equal(one, other_split)


@pytest.mark.long
def test_synthetic_images_can_be_learnt(trained):
    pipeline = Path(__file__).parents[2] / "pipelines" / "cifar.toml"
    offline = [f"data.{split}.args.download=false" for split in ("train", "val", "test")]
    run_dir = trained("run.device=cpu", *offline, pipeline=pipeline)
    assert records(run_dir, "metrics")[-1]["v"]["accuracy"] > 0.85
