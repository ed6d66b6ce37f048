"""The terminal of the dashboard beside the screen: clipboard, announcements, the mouse, and its hang-up."""

from __future__ import annotations

import base64
import os
import select
import signal
import threading

from hookflow.events.rundir import RunDir
from hookflow.monitor.health import Health
from hookflow.text import printable

CLICKS, NO_MOUSE = "\x1b[?1003l\x1b[?1000h", "\x1b[?1003l\x1b[?1000l"
"""Report clicks and the wheel, and no mere motion, which Textual has asked for; or leave the mouse to the terminal."""


def exit_on_hang_up(terminal: int) -> None:
    """End this process as SIGHUP does, once the terminal is closed on the other side: the signal may come too late."""

    def wait() -> None:
        poll = select.poll()
        poll.register(terminal, 0)  # for nothing beyond the record: that it has hung up
        if any(what & select.POLLHUP for _, what in poll.poll()):
            os._exit(128 + signal.SIGHUP)

    if os.isatty(terminal):
        threading.Thread(target=wait, name="hookflow-hang-up", daemon=True).start()


def clipboard(text: str) -> str:
    """Return what puts a text into the clipboard: OSC 52."""
    return _passed_on(f"\x1b]52;c;{base64.b64encode(text.encode()).decode()}\a")


def announcement(run: RunDir, health: Health) -> str:
    """Return what lets the terminal notify of the state of a run, and ring: OSC 9 and the bell."""
    text = f"hookflow {run.path.parent.name} #{run.id[-4:]}: {health.condition}  {health.sentence}"
    return _passed_on(f"\x1b]9;{printable(text.strip())}\a") + "\a"


def _passed_on(sequence: str) -> str:
    """Return a sequence, within tmux also as one that tmux hands on to its terminal if `allow-passthrough` is set."""
    wrapped = sequence.replace("\x1b", "\x1b\x1b")
    return sequence + f"\x1bPtmux;{wrapped}\x1b\\" * ("TMUX" in os.environ)
