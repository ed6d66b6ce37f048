"""Fetches a file over HTTP so that it is whole or absent: checked, resumed after a break, one process at a time."""

from __future__ import annotations

import fcntl
import hashlib
import http.client
import re
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

PATIENCE_S = 10.0
"""How long to wait for a connection, or for the next bytes on one."""

TRIES = 3
"""How many connections in a row may break without having brought a byte."""

CHUNK = 1 << 18
SAY_EVERY_S = 2.0

NUMBER = r"[0-9]{1,18}"
"""A number that a server states; another one says nothing."""

BROKEN = (urllib.error.URLError, http.client.HTTPException, ssl.SSLError, TimeoutError, ConnectionError, ValueError)
"""The errors of a connection (ValueError: an answer that leads to no address); another OSError is the disk's."""


class TooLongError(Exception):
    """The server sends more than the file can have."""


class DownloadError(Exception):
    """Why the file could not be fetched, in words for people."""


def download(url: str, target: Path, md5: str, most: int, say: Callable[[str], None]) -> None:
    """Fetch `url` into `target`, which stands there only when it is whole and its MD5 sum is right.

    It has at most `most` bytes: a server that sends more is not listened to, and nothing of it is kept.

    A target that is there and right is left alone. A partial download stays in `<target>.part`; the next call continues
    it. `say` takes lines about the progress. Raises DownloadError, and OSError when the disk refuses.
    """
    if target.exists():
        if _md5(target) != md5:
            raise DownloadError(f"{target} is not the file that {url} should be: remove it")
        return
    part = target.with_name(target.name + ".part")
    resumed = part.exists()
    _complete(url, part, most, say)
    if resumed and _md5(part) != md5:  # what was left from before was of another file: once more, from the start
        part.unlink()
        _complete(url, part, most, say)
    if (result := _md5(part)) != md5:
        part.unlink()
        raise DownloadError(f"what {url} sent is not the file: MD5 {result} instead of {md5}")
    part.replace(target)


@contextmanager
def alone(lock: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Hold `lock` against other processes; waits while another holds it. It is let go when its holder dies."""
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another process that holds {lock}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _complete(url: str, part: Path, most: int, say: Callable[[str], None]) -> None:
    """Fetch what `part` lacks, over as many connections as it takes."""
    fruitless = 0
    while True:
        had = _size(part)
        try:
            if _transfer(url, part, most, say):
                return
            reason = "the connection broke"
        except urllib.error.HTTPError as error:
            raise DownloadError(f"{url} answered {error.code} {error.reason}") from error
        except TooLongError:
            part.unlink()
            raise DownloadError(f"{url} sends more than the {most:,} bytes that the file has at most") from None
        except BROKEN as error:
            reason = str(getattr(error, "reason", error)) or type(error).__name__
        size = _size(part)
        fruitless = 0 if size > had else fruitless + 1
        if not size:
            raise DownloadError(f"no answer from {url}: {reason}")
        if fruitless == TRIES:
            raise DownloadError(f"{url} stopped after {size:,} bytes ({reason}); the next run goes on from there")
        time.sleep(fruitless)


def _transfer(url: str, part: Path, most: int, say: Callable[[str], None]) -> bool:
    """Append to `part` what one connection brings. Return whether the file is complete then."""
    start = _size(part)
    headers = {"Range": f"bytes={start}-"} if start else {}
    request = urllib.request.Request(url, headers=headers)  # noqa: S310  # the caller's, not the user's
    try:
        answer = urllib.request.urlopen(request, timeout=PATIENCE_S)  # noqa: S310  # as above
    except urllib.error.HTTPError as error:
        if start and error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return True  # there is nothing beyond what we have
        raise
    with answer, part.open("ab") as file:
        if not _goes_on_at(start, answer.headers.get("Content-Range", "")):
            file.truncate(start := 0)
        length = re.fullmatch(NUMBER, answer.headers.get("Content-Length", ""))
        total = start + int(length[0]) if length else None
        done = start
        text = time.monotonic()
        if total is not None and total > most:
            raise TooLongError
        while data := answer.read(CHUNK):
            done += len(data)
            if done > most:
                raise TooLongError
            file.write(data)
            if time.monotonic() - text > SAY_EVERY_S:
                text = time.monotonic()
                say(_progress(done, total))
    return total is None or done >= total


def _goes_on_at(start: int, content_range: str) -> bool:
    """Say whether the server resumes where we stopped; one that knows no ranges sends everything again."""
    match = re.match(rf"bytes ({NUMBER})-", content_range)
    return match is not None and int(match[1]) == start


def _progress(done: int, total: int | None) -> str:
    return f"{done / 1e6:.0f} of {total / 1e6:.0f} MB, {done / total:.0%}" if total else f"{done / 1e6:.0f} MB"


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _md5(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "md5").hexdigest()
