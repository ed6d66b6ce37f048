"""Whatever a server answers, a download is the whole file or a DownloadError, and no disk is filled."""

from __future__ import annotations

import contextlib
import hashlib
import random
import socket
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hookflow.zoo import download as module
from hookflow.zoo.download import DownloadError, download
from tests.garbling import seeds
from tests.limits import LIMIT

CONTENT = bytes(range(256)) * 16
MD5 = hashlib.md5(CONTENT).hexdigest()
MOST = 1 << 14
WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(CONTENT), CONTENT)
NUMBERS = [b"abc", b"-5", b"", b"9" * 5_000, b"1e3", b"0x10", b"4096, 4096", "٣".encode(), b"99999999999", b"0"]
LINES = [
    b"Transfer-Encoding: chunked",
    b"Content-Encoding: gzip",
    b"Content-Range: bytes 0-4095/4096",
    b"Content-Range: bytes %s-" % (b"9" * 5_000),
    b"Content-Range: bytes x-y/z",
    b"Location: http://[",
    b"Location: file:///etc/passwd",
    b"Location: http://127.0.0.1:99999999/",
    b"no colon in it",
    b": no name",
    b"X: " + b"x" * 70_000,
    b"\x00\xff\x1b[31m: \x1b]0;owned\x07",
    *(b"Content-Length: " + number for number in NUMBERS),
]
STATUS = [
    b"HTTP/1.1 206 Partial",
    b"HTTP/1.1 302 Found",
    b"HTTP/1.1 416 No",
    b"HTTP/1.1 500 \x1b[31mred",
    b"HTTP/9",
    b"",
]
ENDLESS = b"x" * 65_536


class _Server(socketserver.ThreadingTCPServer):
    """Answers each connection with the next of its answers; after those with the last; ENDLESS goes on for ever."""

    allow_reuse_address = True
    daemon_threads = True
    answers: list[bytes]

    def next_answer(self) -> bytes:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


class _Handler(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        assert isinstance(self.server, _Server)
        with contextlib.suppress(OSError):
            self.request.recv(65_536)
            answer = self.server.next_answer()
            self.request.sendall(answer)
            while answer.endswith(ENDLESS):
                self.request.sendall(ENDLESS)
            self.request.shutdown(socket.SHUT_WR)


@pytest.fixture
def hostile(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Server]:
    monkeypatch.setattr(module.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(module, "PATIENCE_S", LIMIT)
    with _Server(("127.0.0.1", 0), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def fetched(server: _Server, target: Path, *answers: bytes) -> str:
    """Download from a server that answers so; return why that failed. Nothing but a beginning may be left then."""
    server.answers = list(answers)
    try:
        download(f"http://127.0.0.1:{server.server_address[1]}/f", target, MD5, MOST, lambda text: None)
    except DownloadError as error:
        assert not target.exists()
        return str(error)
    assert target.read_bytes() == CONTENT
    return ""


def attack(server: _Server, folder: Path, seed: int) -> None:
    chance = random.Random(seed)
    answers = [mutated(chance) for _ in range(chance.randrange(1, 4))]
    fetched(server, folder / "f", *answers, *([WHOLE] if chance.random() < 0.3 else []))
    for path in folder.iterdir():
        assert path.name in ("f", "f.part")
        assert path.stat().st_size <= MOST, f"seed {seed}"
        path.unlink()


def mutated(chance: random.Random) -> bytes:
    """Return an answer with something wrong in it."""
    head, _, body = WHOLE.partition(b"\r\n\r\n")
    status, *lines = head.split(b"\r\n")
    if chance.random() < 0.2:
        status = chance.choice(STATUS)
    for _ in range(chance.randrange(3)):
        lines.insert(chance.randrange(len(lines) + 1), chance.choice(LINES))
    if chance.random() < 0.4:
        lines = [line for line in lines if not line.startswith(b"Content-Length")]
    body = chance.choice([body, body[: chance.randrange(len(body))], body + body, b"", b"zz\r\n", ENDLESS])
    whole = b"\r\n".join([status, *lines]) + chance.choice([b"\r\n\r\n", b"\r\n\r\n", b"\n\n", b""]) + body
    return whole[: chance.randrange(len(whole) + 1)] if chance.random() < 0.2 else whole


@pytest.mark.parametrize("number", NUMBERS, ids=range(len(NUMBERS)))
def test_a_length_that_is_none(hostile: _Server, tmp_path: Path, number: bytes) -> None:
    said = fetched(hostile, tmp_path / "f", b"HTTP/1.1 200 OK\r\nContent-Length: %s\r\n\r\n%s" % (number, CONTENT))
    assert said == "" or "more than" in said or "not the file" in said or "no answer" in said


@pytest.mark.parametrize("stated", [b"", b"Content-Length: 99999999999\r\n"], ids=["endless", "stated"])
def test_more_than_the_file_has_is_not_kept(hostile: _Server, tmp_path: Path, stated: bytes) -> None:
    said = fetched(hostile, tmp_path / "f", b"HTTP/1.1 200 OK\r\n%s\r\n%s" % (stated, ENDLESS))
    assert "sends more than the 16,384 bytes that the file has at most" in said
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("to", [b"http://[", b"file:///etc/passwd", b"gopher://x/", b"http://127.0.0.1:99999999/", b""])
def test_a_redirection_to_nowhere(hostile: _Server, tmp_path: Path, to: bytes) -> None:
    assert fetched(hostile, tmp_path / "f", b"HTTP/1.1 302 Found\r\nLocation: %s\r\n\r\n" % to)


@seeds(150)
def test_whatever_it_answers(hostile: _Server, tmp_path: Path, seeds: range) -> None:
    for seed in seeds:
        attack(hostile, tmp_path, seed)
