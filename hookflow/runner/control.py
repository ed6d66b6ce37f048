"""What may interrupt a run: signals of the system and commands of people. Imports no torch."""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from dataclasses import dataclass
from types import FrameType
from typing import Any

from hookflow.events.records import Status

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
"""What asks a run to end; SIGUSR1 is Slurm's warning."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Why a run ends before its time, the exit code that it leaves with, and whether its state is saved first."""

    reason: str
    status: Status
    exit: int
    save: bool


class Interrupted(KeyboardInterrupt):
    """Raised in the main thread by a signal that does not wait for a boundary."""


class Control:
    """Collects wishes. The training thread looks at `stop` and `asks` at each boundary, at `stop` in evaluations too.

    Before the training has begun, and when a signal comes a second time, nothing is waited for: Interrupted is raised.
    """

    def __init__(self) -> None:
        self.stop: Stop | None = None
        self.asks: deque[dict[str, Any]] = deque()
        self.arrived = threading.Event()
        self._patient = False
        self._deaf = False
        self._because = ""

    def ask(self, command: dict[str, Any]) -> None:
        """Take a record of the command log; called by the flusher thread."""
        self.asks.append(command)
        self.arrived.set()

    def end(self, because: str) -> None:
        """End the run as SIGTERM does, for another reason; any thread may call it."""
        self._because = because
        os.kill(os.getpid(), signal.SIGTERM)

    def listen(self) -> None:
        """Handle SIGNALS, those too that have waited since the process began. Losing the terminal harms nothing."""
        for number in SIGNALS:
            signal.signal(number, self._on_signal)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

    def begin(self) -> None:
        """From here on the first signal waits for a boundary. Raises Interrupted when one has come already."""
        self._patient = True
        if self.stop is not None:
            raise Interrupted(f"{self.stop.reason} before the training began")

    def cover_ears(self) -> None:
        """Ignore signals from here on: the run is over, and only its log is left to close."""
        self._deaf = True

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._deaf:
            return
        name = signal.Signals(number).name
        again = self.stop is not None
        if not again:
            reason = self._because or f"{name} received"
            self.stop = Stop(reason, "interrupted", 130 if number == signal.SIGINT else 143, save=True)
            self.arrived.set()
        if again or not self._patient:
            raise Interrupted(f"{name} received {'twice: ended at once' if again else 'before the training began'}")
