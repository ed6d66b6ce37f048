"""What may interrupt a run: signals of the system and commands of people. Both wait for the next boundary."""

from __future__ import annotations

import signal
import threading
from collections import deque
from dataclasses import dataclass
from types import FrameType
from typing import Any

from hookflow.events.records import Status


@dataclass(frozen=True, slots=True)
class Stop:
    """Why a run ends before its time, and the exit code that it leaves with."""

    reason: str
    status: Status
    exit: int
    save: bool


class Control:
    """Collects wishes. The training thread looks at `stop` and `asks` at each boundary, and nowhere else."""

    def __init__(self) -> None:
        self.stop: Stop | None = None
        self.asks: deque[dict[str, Any]] = deque()
        self.arrived = threading.Event()

    def ask(self, command: dict[str, Any]) -> None:
        """Take a record of the command log; called by the flusher thread."""
        self.asks.append(command)
        self.arrived.set()

    def listen(self) -> None:
        """Handle SIGINT, SIGTERM and SIGUSR1 (Slurm's warning): the first one ends the run after this iteration.

        A second one ends it at once. Losing the terminal (SIGHUP) harms nothing.
        """
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, self._on_signal)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.stop is not None and self.stop.status == "interrupted":
            raise KeyboardInterrupt(signal.Signals(number).name)
        exit_code = 130 if number == signal.SIGINT else 143
        self.stop = Stop(f"{signal.Signals(number).name} received", "interrupted", exit_code, save=True)
        self.arrived.set()
