"""A child process in a pseudo-terminal."""

import fcntl
import os
import pty
import select
import struct
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pyte

from tests.support.limits import LIMIT
from tests.support.processes import Spawned

COLUMNS, ROWS = 80, 24


class Terminal:
    """A child process in a pseudo-terminal, and what its screen shows."""

    def __init__(self, *command: str, cwd: Path | None = None, **environment: str) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self.cooked = termios.tcgetattr(slave)
        environment = {**os.environ, "TERM": "xterm-256color", **environment}
        self.child = Spawned(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment,
            cwd=cwd,
            start_new_session=True,
        )
        self._slave = slave
        self._readable = select.poll()  # as select(), for any number of open files
        self._readable.register(self._master, select.POLLIN)
        self.output = b""
        self.screen = pyte.Screen(COLUMNS, ROWS)
        self._stream = pyte.ByteStream(self.screen)

    @property
    def mode(self) -> list[int | list[bytes | int]]:
        return termios.tcgetattr(self._slave)

    def wait_for(self, text: str) -> None:
        """Read until the screen shows the text."""
        self._until(lambda: text in "\n".join(self.screen.display))

    def wait_for_bytes(self, data: bytes, since: int) -> None:
        """Read until these bytes have come."""
        self._until(lambda: data in self.output[since:])

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def drain(self) -> None:
        """Read what there is, and keep none of it but the screen."""
        self._read(0)
        self.output = b""

    def finish(self) -> int:
        """Read to the end of the child and return its exit code."""
        self._until(lambda: self.child.poll() is not None)
        self._read(0.1)
        return self.child.returncode

    def _until(self, condition: Callable[[], bool]) -> None:
        until = time.monotonic() + LIMIT
        while not condition():
            assert time.monotonic() < until, "\n".join(self.screen.display)
            self._read(0.1)

    def _read(self, patience: float) -> None:
        """Read what there is, or comes first; a child that draws fifty
        times a second is never silent.
        """
        while self._readable.poll(patience * 1000):
            patience = 0.0
            data = os.read(self._master, 1 << 16)
            self.output += data
            self._stream.feed(data)
            patience = 0  # what is there, and not what comes for as long as something comes

    def hang_up(self) -> None:
        """Take the terminal away from the child."""
        os.close(self._slave)
        os.close(self._master)

    def close(self) -> None:
        self.child.kill()
        self.child.wait()
        os.close(self._master)
        os.close(self._slave)
