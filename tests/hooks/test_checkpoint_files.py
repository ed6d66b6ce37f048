"""Weights in shards: what a stranger's metadata may say, and what is read for it."""

import io
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint import FileSystemWriter, save
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorStorageMetadata,
)

from hookflow.errors import UserError
from hookflow.hooks.checkpoint_files import METADATA_FILE, read_shards, read_weights

WEIGHT = torch.arange(6.0).reshape(3, 2)


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """A checkpoint of one weight, written by PyTorch."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one process alone saves, without a group
        save({"model.weight": WEIGHT}, storage_writer=FileSystemWriter(tmp_path))
    torch.save({"model": {"weight": torch.empty(3, 2, device="meta")}}, tmp_path / "training.pt")
    return tmp_path


def change(folder: Path, edit: Callable[[Metadata], None]) -> None:
    """Write the metadata of a checkpoint anew, as somebody else might."""
    file = folder / METADATA_FILE
    metadata = pickle.loads(file.read_bytes())  # noqa: S301  # written by this test
    edit(metadata)
    file.write_bytes(pickle.dumps(metadata))


def test_the_weights_are_read(shards: Path) -> None:
    assert torch.equal(read_weights(shards, "model")["weight"], WEIGHT)


class Trap:
    """Leaves a mark where it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
        return Path.touch, (self.mark,)


def test_a_tensor_that_is_called_bytes_is_refused_and_no_code_runs(shards: Path) -> None:
    mark = shards / "mark"
    payload = io.BytesIO()
    torch.save(Trap(mark), payload)
    (shards / "__0_0.distcp").write_bytes(payload.getvalue())

    def call_it_bytes(metadata: Metadata) -> None:
        (stored,) = metadata.storage_data.values()
        stored.offset, stored.length = 0, len(payload.getvalue())
        metadata.state_dict_metadata = {"model.weight": BytesStorageMetadata()}
        metadata.storage_data = {MetadataIndex("model.weight"): stored}

    change(shards, call_it_bytes)
    with pytest.raises(UserError, match=r"model\.weight"):
        read_weights(shards, "model")
    assert not mark.exists()


def tensor_of(metadata: Metadata) -> TensorStorageMetadata:
    entry = metadata.state_dict_metadata["model.weight"]
    assert isinstance(entry, TensorStorageMetadata)
    return entry


def drop_the_name(metadata: Metadata) -> None:
    metadata.state_dict_metadata = {}


def drop_the_chunks(metadata: Metadata) -> None:
    tensor_of(metadata).chunks = []


def shorten_the_chunk(metadata: Metadata) -> None:
    tensor_of(metadata).chunks[0].sizes = torch.Size([2, 2])


def repeat_half_of_it(metadata: Metadata) -> None:
    entry = tensor_of(metadata)
    half = type(entry.chunks[0])(torch.Size([0, 0]), torch.Size([3, 1]))
    entry.chunks = [half, half]


def say_another_dtype(metadata: Metadata) -> None:
    tensor_of(metadata).properties.dtype = torch.int64


def say_another_size(metadata: Metadata) -> None:
    tensor_of(metadata).size = torch.Size([2, 3])


def read_another_file(metadata: Metadata) -> None:
    for stored in metadata.storage_data.values():
        stored.relative_path = f"../{stored.relative_path}"


@pytest.mark.parametrize(
    "edit",
    [
        drop_the_name,
        drop_the_chunks,
        shorten_the_chunk,
        repeat_half_of_it,
        say_another_dtype,
        say_another_size,
        read_another_file,
    ],
)
def test_metadata_that_does_not_give_the_whole_tensor_is_refused(
    shards: Path, edit: Callable[[Metadata], None]
) -> None:
    change(shards, edit)
    with pytest.raises(UserError):
        read_weights(shards, "model")


def test_a_name_that_the_shards_lack_is_refused(shards: Path) -> None:
    with pytest.raises(UserError, match=r"model\.bias"):
        read_shards(shards, {"model.bias": torch.empty(2)})
