"""What may interrupt a run: signals of the system and commands of people. Imports no torch.

A signal handler runs in the middle of anything, also while the main thread holds a lock. So it takes none: it sets
plain attributes, and the training looks at them where it is safe.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Protocol

from hookflow.events.records import CommandRecord, Status

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
"""What asks a run to end; SIGUSR1 is Slurm's warning."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Why a run ends before its time, the exit code that it leaves with, and whether its state is saved first."""

    reason: str
    status: Status
    exit: int
    save: bool

    @property
    def may_be_restarted(self) -> bool:
        """Whether another attempt may go better: neither the user has ended this one nor a mistake of theirs."""
        return self.status == "failed" and self.exit != 2


class Interrupted(KeyboardInterrupt):
    """Raised in the main thread by a signal that does not wait for a safe point."""


@contextmanager
def handlers_put_back() -> Iterator[None]:
    """Put the handlers of signals back as they were, and what is blocked, whatever has been set meanwhile."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in (*SIGNALS, signal.SIGHUP)}
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        yield
    finally:
        for number, handler in handlers.items():
            if handler is not None:  # one that was not set by Python cannot be set by it either
                signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


class HasAttention(Protocol):
    """Has the one flag that the training loop looks at: `attention`, whether somebody wants something of the run.

    Who looks sets it to False first, and looks at what is wanted then: so nothing that comes meanwhile is missed.
    """

    attention: bool


class Signals:
    """Collects what has come: `stop` for the first signal, `commands` in the order in which they were given.

    Before the training has begun, and when a signal comes a second time, nothing is waited for: Interrupted is raised.
    """

    def __init__(self, flag: HasAttention) -> None:
        self.stop: Stop | None = None
        self.commands: deque[CommandRecord] = deque()
        self.ignored = False
        """Whether signals do nothing any more: the run is over, and only its log is left to close."""
        self._flag = flag
        self._graceful = False
        self._reason = ""

    def command(self, record: CommandRecord) -> None:
        """Take a record of the command log; called by the recorder's thread."""
        self.commands.append(record)
        self._flag.attention = True

    def terminate(self, reason: str) -> None:
        """End the run as SIGTERM does, for another reason; any thread may call it."""
        self._reason = reason
        os.kill(os.getpid(), signal.SIGTERM)

    def listen(self) -> None:
        """Handle SIGNALS, those too that have waited since the process began. Losing the terminal harms nothing.

        Python lets the main thread alone do so; in another one nothing is done.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        for number in SIGNALS:
            signal.signal(number, self._on_signal)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

    def be_graceful(self) -> None:
        """From here on the first signal waits for a safe point. Raises Interrupted when one has come already."""
        self._graceful = True
        if self.stop is not None:
            raise Interrupted(f"{self.stop.reason} before the training began")

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.ignored:
            return
        name = signal.Signals(number).name
        again = self.stop is not None
        if not again:
            code = 130 if number == signal.SIGINT else 143
            self.stop = Stop(self._reason or f"{name} received", "interrupted", code, save=True)
            self._flag.attention = True
        if again or not self._graceful:
            raise Interrupted(f"{name} received {'twice: ended at once' if again else 'before the training began'}")
