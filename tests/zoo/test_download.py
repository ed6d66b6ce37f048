"""A file fetched from a server that breaks off, lies, or is not there: whole at the end, or absent and said why."""

import multiprocessing
import threading

import pytest

from hookflow.zoo import download as module
from hookflow.zoo.download import DownloadError, alone, download
from tests.limits import LIMIT

MOST = 1 << 22


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    monkeypatch.setattr(module.time, "sleep", lambda seconds: None)


@pytest.fixture
def target(tmp_path):
    return tmp_path / "file.bin"


def left(target):
    return sorted(path.name for path in target.parent.iterdir())


def quiet(text):
    pass


def test_a_file_arrives_whole_and_nothing_else_is_left(server, target):
    download(server.url, target, server.md5, MOST, quiet)
    assert target.read_bytes() == server.content
    assert left(target) == ["file.bin"]


def test_broken_connections_are_gone_on_with_where_they_broke(server, target):
    server.cuts = [100_000, 1, 300_000]
    download(server.url, target, server.md5, MOST, quiet)
    assert target.read_bytes() == server.content
    assert server.asked == [None, "bytes=100000-", "bytes=100001-", "bytes=400001-"]


def test_what_an_earlier_run_left_is_gone_on_with(server, target):
    (target.parent / "file.bin.part").write_bytes(server.content[:5000])
    download(server.url, target, server.md5, MOST, quiet)
    assert target.read_bytes() == server.content
    assert server.asked == ["bytes=5000-"]


def test_a_part_that_was_whole_already_is_only_checked(server, target):
    (target.parent / "file.bin.part").write_bytes(server.content)
    download(server.url, target, server.md5, MOST, quiet)
    assert target.read_bytes() == server.content


def test_a_server_without_ranges_sends_everything_again(server, target):
    server.knows_ranges = False
    server.cuts = [100_000]
    download(server.url, target, server.md5, MOST, quiet)
    assert target.read_bytes() == server.content


@pytest.mark.parametrize("length", [5000, 2_000_000], ids=["shorter", "longer than the file"])
def test_a_part_of_another_file_is_thrown_away(server, target, length):
    (target.parent / "file.bin.part").write_bytes(b"x" * length)
    download(server.url, target, server.md5, MOST, quiet)
    assert target.read_bytes() == server.content


def test_a_wrong_checksum_leaves_nothing(server, target):
    with pytest.raises(DownloadError, match=f"MD5 {server.md5} instead of 0123"):
        download(server.url, target, "0123", MOST, quiet)
    assert left(target) == []


def test_a_server_that_brings_nothing_more_is_given_up_but_its_bytes_are_kept(server, target):
    server.cuts = [7000] + [0] * module.TRIES
    with pytest.raises(DownloadError, match=r"stopped after 7,000 bytes .* goes on from there"):
        download(server.url, target, server.md5, MOST, quiet)
    download(server.url, target, server.md5, MOST, quiet)
    assert target.read_bytes() == server.content


def test_a_server_that_is_not_there_is_asked_once(server, target):
    server.close()
    with pytest.raises(DownloadError, match=r"no answer from .*refused"):
        download(server.url, target, server.md5, MOST, quiet)
    assert left(target) == []


def test_a_server_that_never_answers_is_not_waited_for_long(server, target, monkeypatch):
    monkeypatch.setattr(module, "PATIENCE_S", 0.05)
    given_up = threading.Event()
    monkeypatch.setattr(server, "before_answer", given_up.wait)
    with pytest.raises(DownloadError, match=r"no answer from .*timed out"):
        download(server.url, target, server.md5, MOST, quiet)
    given_up.set()


@pytest.mark.parametrize("status", [404, 503])
def test_a_refusal_is_told(server, target, status):
    server.status = status
    with pytest.raises(DownloadError, match=f"answered {status}"):
        download(server.url, target, server.md5, MOST, quiet)


def test_a_target_that_is_right_is_left_alone_and_a_wrong_one_is_named(server, target):
    target.write_bytes(server.content)
    download(server.url, target, server.md5, MOST, quiet)
    assert server.asked == []
    target.write_bytes(b"half")
    with pytest.raises(DownloadError, match="remove it"):
        download(server.url, target, server.md5, MOST, quiet)


def test_progress_is_told(server, target, monkeypatch):
    monkeypatch.setattr(module, "SAY_EVERY_S", -1.0)
    said = []
    download(server.url, target, server.md5, MOST, said.append)
    assert said[-1] == "1 of 1 MB, 100%"


def _hold(lock, taken, release):
    with alone(lock, quiet):
        taken.set()
        release.wait()


def test_a_second_process_waits_and_says_so(tmp_path):
    context = multiprocessing.get_context("spawn")
    taken, release = context.Event(), context.Event()
    other = context.Process(target=_hold, args=(tmp_path / "lock", taken, release))
    other.start()
    assert taken.wait(LIMIT)

    def say(text):
        said.append(text)
        release.set()  # only now, while we wait

    said = []
    with alone(tmp_path / "lock", say):
        pass
    other.join()
    assert said == [f"waiting for another process that holds {tmp_path / 'lock'}"]
