"""Where CIFAR-10 is not: fetched, or drawn if the pipeline says so, or an error that says what to do."""

import io
import tarfile
import threading

import pytest
import torch

from hookflow.errors import UserError
from hookflow.zoo import cifar10 as module
from hookflow.zoo import cifar10_archive
from hookflow.zoo.cifar10 import FOLDER, RECORD, RECORDS, cifar10


def load(root, say=lambda text: None, **args):
    return cifar10(root=str(root), split="val", limit=20, seed=0, device=torch.device("cpu"), say=say, **args)


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
    monkeypatch.setattr(cifar10_archive, "URL", server.url)
    monkeypatch.setattr(cifar10_archive, "MD5", server.md5)
    monkeypatch.setattr(module, "_failed", {})
    return server


@pytest.fixture
def nowhere(archive):
    archive.status = 404
    return archive


def test_the_archive_is_fetched_unpacked_and_read(archive, tmp_path):
    said = []
    source = load(tmp_path / "new" / "root", said.append)
    (batch,) = source.epoch(0)
    assert batch.classes.tolist() == [7] + [0] * 19
    assert not source.info["synthetic"]
    assert said[0].startswith("fetching CIFAR-10")
    assert [path.name for path in (tmp_path / "new" / "root" / FOLDER).iterdir()] == ["data_batch_5.bin"]
    assert not list(tmp_path.rglob("outside.bin"))


def test_a_folder_that_is_there_is_not_fetched_again(archive, tmp_path):
    load(tmp_path)
    load(tmp_path)
    assert len(archive.asked) == 1


def test_an_archive_put_there_by_hand_is_unpacked_without_the_network(archive, tmp_path):
    (tmp_path / "file.bin").write_bytes(archive.content)
    assert load(tmp_path).info["examples"] == 20
    assert archive.asked == []


def test_unpacking_that_was_killed_halfway_starts_over(archive, tmp_path):
    (tmp_path / f"{FOLDER}.tmp").mkdir()
    (tmp_path / f"{FOLDER}.tmp" / "data_batch_5.bin").write_bytes(b"half")
    assert load(tmp_path).info["examples"] == 20


def test_many_at_once_fetch_once(archive, tmp_path):
    loaded = []
    threads = [threading.Thread(target=lambda: loaded.append(load(tmp_path))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(loaded) == 4
    assert len(archive.asked) == 1


def test_no_pictures_and_no_network_is_an_error_that_says_what_to_do(nowhere, tmp_path):
    with pytest.raises(UserError) as error:
        load(tmp_path)
    for part in (str(tmp_path), str(tmp_path / FOLDER), "answered 404", nowhere.url, 'on_missing = "synthetic"'):
        assert part in str(error.value)


def test_a_download_that_is_not_wanted_is_not_tried(archive, tmp_path):
    with pytest.raises(UserError, match="download = false"):
        load(tmp_path, download=False)
    assert archive.asked == []


def test_a_root_that_cannot_be_written_is_told(archive, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UserError, match=r"the download failed: .*Not a directory"):
        load(tmp_path / "file" / "root")


def test_drawn_pictures_take_their_place_only_when_asked_and_say_so(nowhere, tmp_path):
    said = []
    source = load(tmp_path, said.append, on_missing="synthetic")
    assert source.info["synthetic"]
    assert source.info["examples"] == 20
    assert any("answered 404" in line and "synthetic images take its place" in line for line in said)


def test_a_failed_download_is_not_tried_again_by_the_next_split(nowhere, tmp_path):
    load(tmp_path, on_missing="synthetic")
    load(tmp_path, on_missing="synthetic")
    assert len(nowhere.asked) == 1


def test_a_broken_folder_is_an_error_whatever_on_missing_says(archive, tmp_path):
    (tmp_path / FOLDER).mkdir()
    with pytest.raises(UserError, match=r"data_batch_5\.bin is missing"):
        load(tmp_path, on_missing="synthetic")
    assert archive.asked == []
