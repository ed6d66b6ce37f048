"""The dashboard's use of the terminal beside the screens.

That is signals, themes, mouse, clipboard, announcements.
"""

import asyncio
import base64
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, Literal

from rich.segment import Segment
from rich.style import Style
from textual.app import App
from textual.color import Color
from textual.events import Event, Key
from textual.filter import LineFilter
from textual.scrollbar import ScrollBar, ScrollBarRender

from hookflow.events.rundir import RunDir, short
from hookflow.monitor.health import Health
from hookflow.monitor.key_queue import KeyQueue
from hookflow.monitor.settings import Preferences
from hookflow.monitor.style import THEME_PALETTES, ThemeName, make_textual_theme, use
from hookflow.numbers import format_plural
from hookflow.text import make_printable

CLICKS, NO_MOUSE = "\x1b[?1003l\x1b[?1000h\x1b[?1002h", "\x1b[?1003l\x1b[?1002l\x1b[?1000l"
"""Report clicks, the wheel and drags, or leave the mouse to the terminal.

Drags select text. Mere motion is not reported.
"""


def exit_on_hang_up(terminal: int) -> None:
    """End this process as SIGHUP does, once the terminal is closed on the other side.

    The signal may come too late.
    """

    def wait() -> None:
        poll = select.poll()
        poll.register(terminal, 0)  # for nothing beyond the record: that it has hung up
        if any(what & select.POLLHUP for _, what in poll.poll()):
            os._exit(128 + signal.SIGHUP)

    if os.isatty(terminal):
        threading.Thread(target=wait, name="hookflow-hang-up", daemon=True).start()


def make_clipboard_sequence(text: str) -> str:
    """Return what puts a text into the clipboard: OSC 52."""
    return _wrap_for_tmux(f"\x1b]52;c;{base64.b64encode(text.encode()).decode()}\a")


def make_announcement(run: RunDir, health: Health) -> str:
    """Return what lets the terminal notify of the state of a run, and ring: OSC 9 and the bell."""
    text = f"hookflow {run.path.parent.name} #{run.id[-4:]}: {health.condition}  {health.sentence}"
    return _wrap_for_tmux(f"\x1b]9;{make_printable(text.strip())}\a") + "\a"


def _wrap_for_tmux(sequence: str) -> str:
    """Return a sequence, within tmux followed by the same as one that tmux hands on.

    tmux hands it on to its terminal if `allow-passthrough` is set.
    """
    wrapped = sequence.replace("\x1b", "\x1b\x1b")
    if "TMUX" in os.environ:
        return f"{sequence}\x1bPtmux;{wrapped}\x1b\\"
    return sequence


class DashboardResult(StrEnum):
    """How the dashboard was left: the training goes on, was asked to stop, or was over."""

    DETACHED = "detached"
    STOP = "stop"
    ENDED = "ended"


NOTICE_SECONDS = 5.0
"""How long a notice usually stays."""

Severity = Literal["information", "warning", "error"]


class WholeCellScrollBar(ScrollBarRender):
    """A scrollbar whose ends are whole cells.

    Eighths of cells look like characters that have strayed into a table.
    """

    VERTICAL_BARS: ClassVar[list[str]] = [" "]
    HORIZONTAL_BARS: ClassVar[list[str]] = [" "]


ScrollBar.renderer = WholeCellScrollBar


class NullStyleFilter(LineFilter):
    """Gives a style to each segment that has none: Textual's filter for NO_COLOR fails on those."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [Segment(text, style or Style.null(), control) for text, style, control in segments]


class Terminal(App[DashboardResult]):
    """An app as far as its terminal goes, by the user's settings."""

    COMMAND_PALETTE_BINDING: ClassVar[str] = "colon"
    INLINE_PADDING = 0

    def __init__(self, preferences: Preferences) -> None:
        super().__init__()
        if self.no_color:
            self._filters.insert(0, NullStyleFilter())
        self.preferences = preferences
        self._key_queue = KeyQueue(self, super().on_event)

    async def on_event(self, event: Event) -> None:
        """Handle an event; a key once what the one before it began has been done."""
        if isinstance(event, Key) and not event.is_forwarded:
            await self._key_queue.put(event)
        else:
            await super().on_event(event)

    def take_terminal(self) -> None:
        """Set it up, once the app is mounted."""
        self.use_theme(self.preferences.settings.theme)
        self._use_mouse()
        self.app_resume_signal.subscribe(self, lambda _: self._use_mouse())
        loop = asyncio.get_running_loop()
        # Textual does not restore the terminal on these signals, so the app exits in the ordinary
        # way.
        for name in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(name, self.exit, DashboardResult.DETACHED)
        if not self.is_headless and sys.__stdin__ is not None:
            exit_on_hang_up(sys.__stdin__.fileno())
            loop.add_signal_handler(signal.SIGCONT, self._go_on)
            stop = getattr(self._driver, "_sigtstp_application", None)
            if stop is not None:
                # The event loop calls this, since a signal handler might wait for a lock that a
                # paint holds.
                loop.add_signal_handler(signal.SIGTSTP, self.stop_and_continue, stop)

    def use_theme(self, name: ThemeName) -> None:
        """Draw in a theme from now on."""
        use(name)
        self.register_theme(make_textual_theme(name))
        self.theme = name

    def stop_and_continue(self, stop: Callable[[], None]) -> None:
        """Call what stops this process, which returns once it goes on."""
        self.write(NO_MOUSE)
        stop()
        self.resume_replay()

    def resume_replay(self) -> None:
        """Take note that this process was stopped, and goes on."""

    def _go_on(self) -> None:
        """Take the terminal up again after SIGCONT.

        Where SIGSTOP came, Textual has not let go of it yet.
        """
        driver = self._driver
        if driver is not None:
            # The flag is set by SIGTSTP, at which Textual has let go of the terminal.
            if not getattr(driver, "_must_signal_resume", False):
                driver.suspend_application_mode()
            driver.resume_application_mode()
        self.resume_replay()

    def on_unmount(self) -> None:
        self.write(NO_MOUSE)  # Textual knows nothing of the report of drags
        loop = asyncio.get_running_loop()
        for name in (signal.SIGTERM, signal.SIGHUP, signal.SIGCONT, signal.SIGTSTP):
            loop.remove_signal_handler(name)

    def next_theme(self) -> None:
        names = [*THEME_PALETTES]
        name = names[(names.index(self.preferences.settings.theme) + 1) % len(names)]
        self.preferences = self.preferences.changed(theme=name)
        self.use_theme(name)
        self.say(f"theme: {name}")
        self.remember("theme", name)

    def _use_mouse(self) -> None:
        self.write(CLICKS if self.preferences.settings.mouse else NO_MOUSE)

    def switch_mouse(self) -> None:
        mouse = not self.preferences.settings.mouse
        self.preferences = self.preferences.changed(mouse=mouse)
        self._use_mouse()
        self.say(
            "the mouse is the dashboard's"
            if mouse
            else "the mouse is the terminal's: it selects text"
        )
        self.remember("mouse", mouse)

    def save_image(self, folder: Path) -> None:
        with self.telling("cannot save an image"):
            name = time.strftime("screen-%Y%m%d-%H%M%S.svg")
            image = self.export_screenshot().replace("<svg ", '<svg xml:space="preserve" ', 1)
            # Without that attribute, librsvg drops the spaces at the ends of a text.
            (folder / name).write_text(image, "utf-8")
            self.say(f"saved {short(folder / name)}")

    def write(self, sequence: str) -> None:
        if self._driver is not None:
            self._driver.write(sequence)

    def copy(self, text: str) -> None:
        """Send a text to the terminal for its clipboard.

        It is unknown whether the terminal, or tmux, takes it.
        """
        if not text:
            self.say("there is nothing to copy here")
            return
        self.write(make_clipboard_sequence(text))
        lines = text.count("\n") + 1
        self.say(f"sent {lines} {format_plural(lines, 'line')} to the terminal's clipboard")

    def remember(self, name: str, value: Any) -> None:
        with self.telling("not remembered"):
            self.preferences.remember(name, value)

    @contextmanager
    def telling(self, failure: str) -> Iterator[None]:
        """Say so where the system does not allow it."""
        try:
            yield
        except OSError as error:
            self.say(f"{failure}: {error.strerror}", severity="error")

    def say(
        self, notice: str, seconds: float = NOTICE_SECONDS, severity: Severity = "information"
    ) -> None:
        """Show a notice in the corner; also from a thread."""
        self.notify(make_printable(notice), timeout=seconds, severity=severity, markup=False)
