"""Sequences that the dashboard sends to its terminal beside the screen: clipboard, announcements, the mouse."""

from __future__ import annotations

import base64
import os

from hookflow.events.rundir import RunDir
from hookflow.monitor.health import Condition, Health
from hookflow.monitor.settings import Occasion
from hookflow.text import printable

CLICKS, NO_MOUSE = "\x1b[?1003l\x1b[?1000h", "\x1b[?1003l\x1b[?1000l"
"""Report clicks and the wheel, and no mere motion, which Textual has asked for; or leave the mouse to the terminal."""

LIVE: tuple[Condition, ...] = ("starting", "running", "paused", "stalled")
OCCASIONS: dict[Condition, Occasion] = {
    **dict.fromkeys(("finished", "pruned", "stopped", "interrupted"), "end"),
    **dict.fromkeys(("failed", "lost", "unreadable"), "failure"),
    "stalled": "stall",
}
"""What is announced, by the condition that a run gets into."""


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
