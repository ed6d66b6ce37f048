"""The dashboard in a real terminal: it paints,
and gives the terminal back when it is told to go.
"""

import base64
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.conftest import wait_for
from tests.monitor.fake_run import make
from tests.support.terminal import Terminal


@pytest.fixture
def dashboard(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Terminal]:
    run = make(tmp_path, upto=100)
    run.sign_process()
    terminal = Terminal(
        sys.executable, "-m", "hookflow", "watch", str(run.path), **getattr(request, "param", {})
    )
    yield terminal
    terminal.close()


@pytest.mark.parametrize(
    ("dashboard", "number"),
    [({"NO_COLOR": "1"}, signal.SIGTERM), ({"COLORTERM": "truecolor"}, signal.SIGHUP)],
    indirect=["dashboard"],
)
def test_a_signal_ends_it_and_the_terminal_is_as_before(
    dashboard: Terminal, number: signal.Signals
) -> None:
    dashboard.wait_for("SYNTHETIC")
    dashboard.wait_for("hooks by cost")
    assert dashboard.output.startswith(b"hookflow watch"), "before anything heavy is imported"
    assert dashboard.output.index(b"reading runs") < dashboard.output.index(b"\x1b[?1049h"), (
        "a line from the first on"
    )
    dashboard.child.send_signal(number)
    assert dashboard.finish() == 0
    assert dashboard.output.rindex(b"\x1b[?1049l") > dashboard.output.rindex(b"\x1b[?1049h")
    assert dashboard.output.rindex(b"\x1b[?25h") > dashboard.output.rindex(b"\x1b[?25l")
    assert dashboard.mode == dashboard.cooked
    assert dashboard.output.rindex(b"\x1b[?1003l") > dashboard.output.rindex(b"\x1b[?1003h"), (
        "no mere motion"
    )
    assert dashboard.output.rindex(b"\x1b[?1000l") > dashboard.output.rindex(b"\x1b[?1000h")
    assert "the run goes on; watch it:" in dashboard.output.decode()


@pytest.mark.parametrize("dashboard", [{"TERM": "xterm"}], indirect=True)
def test_stopped_it_goes_on_with_as_many_threads_and_gives_the_terminal_back(
    dashboard: Terminal,
) -> None:
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
    dashboard.press("q")
    dashboard.wait_for("leave the dashboard?")
    dashboard.press("d")
    assert dashboard.finish() == 0
    assert dashboard.mode == dashboard.cooked
    assert "Traceback" not in dashboard.output.decode()


class Mouse:
    """The mouse of a terminal, as what it reports: SGR sequences, cells counted from 1."""

    LEFT, DRAG, WHEEL_DOWN = 0, 32, 65

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal

    def find(self, text: str) -> tuple[int, int]:
        """Return where a text begins on the screen."""
        for y, line in enumerate(self._terminal.screen.display, start=1):
            if text in line:
                return line.index(text) + 1, y
        raise AssertionError(f"{text!r} is not on the screen")

    def press(self, button: int, x: int, y: int) -> None:
        self._terminal.press(f"\x1b[<{button};{x};{y}M")

    def release(self, x: int, y: int) -> None:
        self._terminal.press(f"\x1b[<{self.LEFT};{x};{y}m")

    def click(self, text: str) -> None:
        x, y = self.find(text)
        self.press(self.LEFT, x, y)
        self.release(x, y)

    def drag_over(self, text: str) -> None:
        """Drag from the first cell of a text to its last."""
        x, y = self.find(text)
        self.press(self.LEFT, x, y)
        for step in range(1, len(text)):
            self.press(self.DRAG, x + step, y)
        self.release(x + len(text) - 1, y)


def test_the_mouse_sorts_scrolls_selects_and_opens_pages(dashboard: Terminal) -> None:
    mouse = Mouse(dashboard)
    dashboard.wait_for("share↓")
    dashboard.wait_for("accuracy 0.9078 ★")
    mouse.click("mean")
    dashboard.wait_for("mean↓")
    for _ in range(5):
        mouse.press(mouse.WHEEL_DOWN, *mouse.find("after_train_epoch"))
    dashboard.wait_for("seed       before_run")
    mouse.drag_over("accuracy 0.9078 ★")
    since = len(dashboard.output)
    dashboard.press("y")
    dashboard.wait_for_bytes(b"\x1b]52;c;", since)
    dashboard.wait_for_bytes(b"\a", since)
    copied = dashboard.output[since:].partition(b"\x1b]52;c;")[2].partition(b"\a")[0]
    assert base64.b64decode(copied).decode() == "accuracy 0.9078 ★"
    mouse.click("3 Metrics")
    dashboard.wait_for("metrics: 3")
