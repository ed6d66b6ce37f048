"""Whatever a server answers, a download is the whole file or an error, and no disk is filled."""

from __future__ import annotations

import contextlib
import hashlib
import random
import socket
import socketserver
import threading
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path

import pytest

from hookflow.zoo import cifar10 as module
from hookflow.zoo.cifar10 import download
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
    monkeypatch.setattr(module, "PATIENCE_S", LIMIT)
    with _Server(("127.0.0.1", 0), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def fetched(server: _Server, target: Path, *answers: bytes) -> None:
    """Download from a server that answers so: the file is whole, or not there."""
    server.answers = list(answers)
    try:
        download(f"http://127.0.0.1:{server.server_address[1]}/f", target, MD5, MOST, lambda text: None)
    except (OSError, HTTPException, ValueError):
        assert not target.exists()
    else:
        assert target.read_bytes() == CONTENT


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


@seeds(150)
def test_whatever_it_answers(hostile: _Server, tmp_path: Path, seeds: range) -> None:
    for seed in seeds:
        attack(hostile, tmp_path, seed)
