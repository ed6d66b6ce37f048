"""The dashboard in a real terminal: it paints, and gives the terminal back when it is told to go."""

import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pyte
import pytest

from tests.conftest import wait_for
from tests.limits import LIMIT
from tests.monitor.fake_run import make
from tests.processes import Spawned

COLUMNS, ROWS = 80, 24


class Terminal:
    """A child process in a pseudo-terminal, and what its screen shows."""

    def __init__(self, *command: str, cwd: Path | None = None, **environment: str) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self.cooked = termios.tcgetattr(slave)
        environment = {**os.environ, "TERM": "xterm-256color", **environment}
        self.child = Spawned(
            command, stdin=slave, stdout=slave, stderr=slave, env=environment, cwd=cwd, start_new_session=True
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
        """Read what there is, or comes first; a child that draws fifty times a second is never silent."""
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


@pytest.fixture
def dashboard(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Terminal]:
    run = make(tmp_path, upto=100)
    run.sign_process()
    terminal = Terminal(sys.executable, "-m", "hookflow", "watch", str(run.path), **getattr(request, "param", {}))
    yield terminal
    terminal.close()


@pytest.mark.parametrize(
    ("dashboard", "number"),
    [({"NO_COLOR": "1"}, signal.SIGTERM), ({"COLORTERM": "truecolor"}, signal.SIGHUP)],
    indirect=["dashboard"],
)
def test_a_signal_ends_it_and_the_terminal_is_as_before(dashboard: Terminal, number: signal.Signals) -> None:
    dashboard.wait_for("SYNTHETIC DATA")
    dashboard.wait_for("[g] graph")
    assert b"\x1b[?1049h" in dashboard.output
    dashboard.child.send_signal(number)
    assert dashboard.finish() == 0
    assert dashboard.output.rindex(b"\x1b[?1049l") > dashboard.output.rindex(b"\x1b[?1049h")
    assert dashboard.output.rindex(b"\x1b[?25h") > dashboard.output.rindex(b"\x1b[?25l")
    assert dashboard.mode == dashboard.cooked
    assert dashboard.output.rindex(b"\x1b[?1003l") > dashboard.output.rindex(b"\x1b[?1003h"), "no mere motion"
    assert dashboard.output.rindex(b"\x1b[?1000l") > dashboard.output.rindex(b"\x1b[?1000h")
    assert "the run goes on; watch it:" in dashboard.output.decode()


@pytest.mark.parametrize("dashboard", [{"TERM": "xterm"}], indirect=True)
def test_stopped_it_goes_on_with_as_many_threads_and_gives_the_terminal_back(dashboard: Terminal) -> None:
    dashboard.wait_for("ema")
    process = psutil.Process(dashboard.child.pid)
    threads = process.num_threads()
    stops: tuple[signal.Signals | str, ...] = (signal.SIGSTOP, signal.SIGTSTP, "\x1a")
    for stop in (*stops, *stops):
        began = len(dashboard.output)
        wait_for(lambda: dashboard.mode != dashboard.cooked)  # until then a key is lost
        dashboard.press(stop) if isinstance(stop, str) else dashboard.child.send_signal(stop)
        wait_for(lambda: process.status() == psutil.STATUS_STOPPED)
        dashboard.child.send_signal(signal.SIGCONT)
        dashboard.wait_for_bytes(b"\x1b[?1049h", began)
        dashboard.wait_for("ema")
    wait_for(lambda: process.num_threads() <= threads + 1)  # the executor's may be under way
    dashboard.press("qd")
    assert dashboard.finish() == 0
    assert dashboard.mode == dashboard.cooked
    assert "Traceback" not in dashboard.output.decode()
