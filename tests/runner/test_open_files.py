"""What hooks write to files that they leave open is in them when the
process has ended, on every Python.
"""

from __future__ import annotations

import gc
import gzip
import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import pytest

from hookflow.runner.attempt.main import collect_garbage
from hookflow.runner.process.open_files import close_open_files, flush_open_files
from tests.support.limits import LIMIT

TEXT = "written\n"

OPENERS: dict[str, Callable[[Path], IO[Any]]] = {
    "text": lambda path: path.open("w"),
    "text over a large buffer": lambda path: path.open("w", buffering=1 << 20),
    "binary": lambda path: path.open("wb"),
    "read and written": lambda path: path.open("w+b"),
}
COMPRESSED: dict[str, Callable[[Path], IO[Any]]] = {
    "gzip": lambda path: gzip.open(path, "wb"),  # noqa: SIM115
    "text over gzip": lambda path: gzip.open(path, "wt"),  # noqa: SIM115
}


def write(file: IO[Any]) -> None:
    file.write(TEXT if isinstance(file, io.TextIOBase) else TEXT.encode())


class Circle:
    """An object that only the garbage collector destroys, with an open file."""

    def __init__(self, file: IO[Any]) -> None:
        self.me, self.file = self, file


@pytest.mark.parametrize("opener", OPENERS.values(), ids=OPENERS)
def test_an_open_file_is_written_and_stays_open(
    opener: Callable[[Path], IO[Any]], tmp_path: Path
) -> None:
    with opener(tmp_path / "file") as file:
        write(file)
        flush_open_files()
        assert (tmp_path / "file").read_text() == TEXT
        write(file)
    assert (tmp_path / "file").read_text() == TEXT * 2


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.parametrize("opener", OPENERS.values(), ids=OPENERS)
def test_garbage_is_collected_without_a_loss(
    opener: Callable[[Path], IO[Any]], tmp_path: Path
) -> None:
    gc.disable()
    try:
        write(Circle(opener(tmp_path / "file")).file)
        collect_garbage()
    finally:
        gc.enable()
    assert (tmp_path / "file").read_text() == TEXT


@pytest.mark.parametrize("opener", COMPRESSED.values(), ids=COMPRESSED)
def test_at_the_end_a_compressed_file_has_its_last_bytes(
    opener: Callable[[Path], IO[Any]], tmp_path: Path
) -> None:
    file = opener(tmp_path / "file")
    write(file)
    close_open_files()
    assert gzip.decompress((tmp_path / "file").read_bytes()).decode() == TEXT
    file.close()


class Full(io.BufferedIOBase):
    """A file whose last bytes cannot be written."""

    name = "remote://file"
    is_full = True

    def writable(self) -> bool:
        return not self.closed

    def close(self) -> None:
        if self.is_full:
            raise OSError("no space")
        super().close()


def test_what_cannot_be_written_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    file = Full()
    close_open_files()
    assert "remote://file: OSError: no space" in capsys.readouterr().err
    file.is_full = False
    file.close()


LEAVES = """
import atexit, gc, os, sys
from hookflow.runner.attempt import main, session
session.THREAD_SETTLE_SECONDS, main.EXIT_GRACE_SECONDS = 0.1, float(sys.argv[3])
main.prepare_exit()

class Hook:
    def __init__(self):
        self.me = self
        self.file = open(sys.argv[1], "w")
        atexit.register(self.file.write, "at exit\\n")

hook = Hook()
hook.file.write("early\\n")
gc.freeze()
if sys.argv[2] != "alone":  # there Python itself writes to the pipe in the end
    read, write = os.pipe()
    pipe = open(write, "wb", buffering=1 << 21)
    pipe.write(bytes(1 << 20))  # more than a pipe holds, and nobody reads it
if sys.argv[2] == "thread":
    import threading
    threading.Thread(target=threading.Event().wait).start()
main.leave(3, several=sys.argv[2] == "several")
raise SystemExit(3)
"""


@pytest.mark.parametrize("way", ["alone", "several", "thread"])
def test_each_way_out_of_a_process_writes_open_files(way: str, tmp_path: Path) -> None:
    grace = "0.1" if way == "thread" else str(LIMIT)
    command = [sys.executable, "-c", LEAVES, str(tmp_path / "file"), way, grace]
    child = subprocess.run(command, timeout=LIMIT, check=False)
    assert child.returncode == 3
    assert (tmp_path / "file").read_text() == "early\nat exit\n"
