"""Reading the binary version: the right bytes in the right places, and every broken folder said to be one."""

import numpy as np
import pytest
import torch

from hookflow.errors import UserError
from hookflow.zoo.cifar10 import FOLDER, RECORD, RECORDS, cifar10


def load(root, **args):
    return cifar10(root=str(root), seed=0, device=torch.device("cpu"), say=lambda text: None, **args)


@pytest.fixture
def folder(tmp_path):
    """A folder of the binary version: ten thousand black images a file, but for the first, whose bytes are known."""
    folder = tmp_path / FOLDER
    folder.mkdir()
    for number, name in enumerate([*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]):
        with (folder / name).open("wb") as file:
            file.write(bytes([number]) + bytes([10]) * 1024 + bytes([20]) * 1024 + bytes(range(256)) * 4)
            file.truncate(RECORD * RECORDS)
    return folder


@pytest.mark.parametrize(
    ("split", "examples", "first"),
    [("train", 40_000, 0), ("val", 10_000, 4), ("test", 10_000, 5)],
    ids=["train", "val", "test"],
)
def test_a_split_is_its_files_in_order(folder, split, examples, first):
    source = load(folder.parent, split=split, augment=False)
    assert source.info["examples"] == examples
    assert not source.info["synthetic"]
    classes = torch.cat([batch.classes for batch in source.epoch(0)])
    assert (classes > 0).sum() == (3 if split == "train" else 1)  # the first of each file carries its file's number
    if split != "train":
        assert classes[0] == first


def test_planes_become_channels_and_rows_stay_rows(folder):
    image = load(folder, split="val").sample(1)[0]
    red, green, blue = image * torch.tensor([0.2470, 0.2435, 0.2616]).view(3, 1, 1)
    assert torch.allclose(red + 0.4914, torch.full((32, 32), 10 / 255), atol=1e-6)
    assert torch.allclose(green + 0.4822, torch.full((32, 32), 20 / 255), atol=1e-6)
    wanted = (torch.arange(1024) % 256).view(32, 32) / 255
    assert torch.allclose(blue + 0.4465, wanted, atol=1e-6)


def test_the_folder_itself_may_be_given_and_a_limit_takes_the_first(folder):
    source = load(folder, split="val", limit=3)
    (batch,) = source.epoch(0)
    assert batch.classes.tolist() == [4, 0, 0]
    assert source.info["batch_size"] == 3


def test_only_training_pictures_are_augmented_unless_said_otherwise(folder):
    flat = load(folder, split="train", limit=64, augment=False)
    assert {batch.images.unique().numel() for batch in flat.epoch(0)} == {3 + 256 + 1}
    assert not torch.equal(
        next(iter(load(folder, limit=64).epoch(0))).images,
        next(iter(flat.epoch(0))).images,
    )


def test_a_missing_file_and_a_short_one_are_both_named(folder):
    (folder / "data_batch_2.bin").unlink()
    with (folder / "data_batch_4.bin").open("r+b") as file:
        file.truncate(1000)
    with pytest.raises(UserError) as error:
        load(folder.parent)
    assert "data_batch_2.bin is missing" in str(error.value)
    assert "data_batch_4.bin has 1,000 bytes instead of 30,730,000" in str(error.value)


def test_files_of_other_splits_need_not_be_there(folder):
    (folder / "test_batch.bin").unlink()
    assert load(folder.parent, split="val").info["examples"] == 10_000
    with pytest.raises(UserError, match=r"test_batch\.bin is missing"):
        load(folder.parent, split="test")


def test_an_empty_folder_by_the_archives_name_is_a_broken_one(tmp_path):
    (tmp_path / FOLDER).mkdir()
    with pytest.raises(UserError, match=r"data_batch_5\.bin is missing"):
        load(tmp_path, split="val")


def test_bytes_of_something_else_are_not_taken_for_classes(folder):
    np.full(RECORD * RECORDS, 200, np.uint8).tofile(folder / "data_batch_5.bin")
    with pytest.raises(UserError, match="is not CIFAR-10: it has a class 200"):
        load(folder.parent, split="val")
