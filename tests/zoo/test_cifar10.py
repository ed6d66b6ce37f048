"""CIFAR-10: the right bytes in the right places, broken folders named, and the archive fetched where there is none."""

import io
import tarfile
import threading

import numpy as np
import pytest
import torch

from hookflow.errors import UserError
from hookflow.zoo import cifar10 as module
from hookflow.zoo.cifar10 import FOLDER, RECORD, cifar10

RECORDS = 100
"""Images of a file, where the real ones have ten thousand."""


@pytest.fixture(autouse=True)
def _small_files(monkeypatch):
    assert module.RECORDS == 10_000
    monkeypatch.setattr(module, "RECORDS", RECORDS)


def load(root, say=lambda text: None, **args):
    return cifar10(root=str(root), seed=0, device=torch.device("cpu"), say=say, **args)


@pytest.fixture
def folder(tmp_path):
    """A folder of the binary version: a hundred black images a file, but for the first, whose bytes are known."""
    folder = tmp_path / FOLDER
    folder.mkdir()
    for number, name in enumerate([*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]):
        with (folder / name).open("wb") as file:
            file.write(bytes([number]) + bytes([10]) * 1024 + bytes([20]) * 1024 + bytes(range(256)) * 4)
            file.truncate(RECORD * RECORDS)
    return folder


@pytest.mark.parametrize(
    ("split", "examples", "first"),
    [("train", 400, 0), ("val", 100, 4), ("test", 100, 5)],
    ids=["train", "val", "test"],
)
def test_a_split_is_its_files_in_order(folder, split, examples, first):
    source = load(folder.parent, split=split, augment=False, batch_size=50)
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
    assert "data_batch_4.bin has 1,000 bytes instead of 307,300" in str(error.value)


def test_files_of_other_splits_need_not_be_there(folder):
    (folder / "test_batch.bin").unlink()
    assert load(folder.parent, split="val").info["examples"] == 100
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


def load_some(root, say=lambda text: None, **args):
    return load(root, split="val", limit=20, say=say, **args)


@pytest.fixture
def archive(server, monkeypatch):
    """A server of an archive with one batch of black images, the first of class 7."""
    packed = io.BytesIO()
    batch = bytes([7]) + bytes(RECORD * RECORDS - 1)
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as tar:
        for name, data in ((f"{FOLDER}/data_batch_5.bin", batch), ("../outside.bin", b"x"), ("/abs.bin", b"x")):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
        link = tarfile.TarInfo(f"{FOLDER}/data_batch_4.bin")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/hostname"
        tar.addfile(link)
    server.content = packed.getvalue()
    monkeypatch.setattr(module, "URL", server.url)
    monkeypatch.setattr(module, "MD5", server.md5)
    monkeypatch.setattr(module, "_failed", {})
    return server


@pytest.fixture
def nowhere(archive):
    archive.status = 404
    return archive


def test_the_archive_is_fetched_unpacked_and_read(archive, tmp_path):
    said = []
    source = load_some(tmp_path / "new" / "root", said.append)
    (batch,) = source.epoch(0)
    assert batch.classes.tolist() == [7] + [0] * 19
    assert not source.info["synthetic"]
    assert said[0] == f"fetching {archive.url}"
    assert [path.name for path in (tmp_path / "new" / "root" / FOLDER).iterdir()] == ["data_batch_5.bin"]
    assert not list(tmp_path.rglob("outside.bin"))


def test_a_wrong_checksum_leaves_nothing(server, tmp_path):
    with pytest.raises(OSError, match=f"MD5 sum {server.md5} instead of 0123"):
        module.download(server.url, tmp_path / "file.bin", "0123", 1 << 22, print)
    assert not list(tmp_path.iterdir())


def test_more_than_the_file_may_have_is_not_kept(server, tmp_path):
    with pytest.raises(OSError, match="sends more than the 5 bytes that the file has at most"):
        module.download(server.url, tmp_path / "file.bin", server.md5, 5, print)
    assert not list(tmp_path.iterdir())


def test_a_server_that_never_answers_is_given_up(archive, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "PATIENCE_S", 0.05)
    given_up = threading.Event()
    monkeypatch.setattr(archive, "before_answer", given_up.wait)
    with pytest.raises(UserError, match=r"the download failed: .*timed out"):
        load_some(tmp_path)
    given_up.set()


def test_an_archive_put_there_by_hand_is_unpacked_without_the_network(archive, tmp_path):
    (tmp_path / "file.bin").write_bytes(archive.content)
    assert load_some(tmp_path).info["examples"] == 20
    assert archive.requests == 0


def test_an_archive_of_something_else_is_refused_and_stays(archive, tmp_path):
    (tmp_path / "file.bin").write_bytes(b"mine")
    with pytest.raises(UserError, match=r"file.bin has the MD5 sum"):
        load_some(tmp_path)
    assert (tmp_path / "file.bin").read_bytes() == b"mine"


def test_unpacking_that_was_killed_halfway_starts_over(archive, tmp_path):
    (tmp_path / f"{FOLDER}.tmp").mkdir()
    (tmp_path / f"{FOLDER}.tmp" / "data_batch_5.bin").write_bytes(b"half")
    assert load_some(tmp_path).info["examples"] == 20


def test_many_at_once_fetch_once(archive, tmp_path):
    loaded = []
    threads = [threading.Thread(target=lambda: loaded.append(load_some(tmp_path))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(loaded) == 4
    assert archive.requests == 1


def test_no_pictures_and_no_network_is_an_error_that_says_what_to_do(nowhere, tmp_path):
    with pytest.raises(UserError) as error:
        load_some(tmp_path)
    for part in (str(tmp_path), str(tmp_path / FOLDER), "Error 404", nowhere.url, 'on_missing = "synthetic"'):
        assert part in str(error.value)


def test_a_download_that_is_not_wanted_is_not_tried(archive, tmp_path):
    with pytest.raises(UserError, match="download = false"):
        load_some(tmp_path, download=False)
    assert archive.requests == 0


def test_a_root_that_cannot_be_written_is_told(archive, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UserError, match=r"the download failed: .*Not a directory"):
        load_some(tmp_path / "file" / "root")


def test_drawn_pictures_take_their_place_only_when_asked_and_say_so(nowhere, tmp_path):
    said = []
    source = load_some(tmp_path, said.append, on_missing="synthetic")
    assert source.info["synthetic"]
    assert source.info["examples"] == 20
    assert any("Error 404" in line and "synthetic images take its place" in line for line in said)


def test_a_failed_download_is_not_tried_again_by_the_next_split(nowhere, tmp_path):
    load_some(tmp_path, on_missing="synthetic")
    load_some(tmp_path, on_missing="synthetic")
    assert nowhere.requests == 1


def test_a_broken_folder_is_an_error_whatever_on_missing_says(archive, tmp_path):
    (tmp_path / FOLDER).mkdir()
    with pytest.raises(UserError, match=r"data_batch_5\.bin is missing"):
        load_some(tmp_path, on_missing="synthetic")
    assert archive.requests == 0
