"""Interruptions of a run: signals of the system and commands of users. Imports no torch.

A signal handler runs in the middle of anything, also while the main thread holds a lock. It takes none: it sets
plain attributes, and the training looks at them where it is safe.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from hookflow.events.records import CommandRecord, Status
from hookflow.runner.process.state import RunState

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
"""The signals that end a run; SIGUSR1 is Slurm's warning."""


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


WAIT, POLL = 5.0, 0.25
"""Seconds that a worker has for a batch once a signal has come, and between looks whether it is still awaited."""


class Interrupted(KeyboardInterrupt):
    """Raised in the main thread by a signal that does not wait for a safe point."""


class WorkerHangs(Interrupted):
    """Raised where the training waits for a worker's batch, which has not come for `WAIT` seconds after a signal."""


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


class Signals:
    """Collects what has come: `stop` for the first signal, `commands` in the order in which they were given.

    Before the training has begun, and when a signal comes a second time, nothing is waited for: Interrupted is raised.
    """

    def __init__(self, state: RunState) -> None:
        self.stop: Stop | None = None
        self.commands: deque[CommandRecord] = deque()
        self.ignored = False
        """Whether signals do nothing any more: the run is over, and only its log is left to close."""
        self.state = state
        self.graceful = False
        """Whether the first signal waits for a safe point: the training has begun."""
        self._hangs = False
        self._reason = ""

    def command(self, record: CommandRecord) -> None:
        """Take a record of the command log; called by the recorder's thread."""
        self.commands.append(record)
        self.state.attention = True

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
        self.graceful = True
        if self.stop is not None:
            raise Interrupted(f"{self.stop.reason} before the training began")
        if threading.current_thread() is threading.main_thread():
            threading.Thread(target=self._watch_fetches, name="hookflow-signals", daemon=True).start()

    def _watch_fetches(self) -> None:
        """End the wait for a worker that hangs after a signal, by a second one to this process.

        A safe point may be one batch away, which a hung worker never gives.
        """
        main = threading.main_thread().ident or 0
        awaited, since = None, 0.0
        while not self.ignored:
            time.sleep(POLL)
            fetch = _fetch(sys._current_frames().get(main)) if self.stop else None
            if fetch is None or fetch is not awaited:
                awaited, since = fetch, time.monotonic()
            elif time.monotonic() - since >= WAIT:
                self._hangs = True
                os.kill(os.getpid(), signal.SIGTERM)
                return

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.ignored:
            return
        name = signal.Signals(number).name
        if self._hangs and self.stop is not None:
            self._hangs = False
            if _fetch(frame) is not None:
                raise WorkerHangs(f"{self.stop.reason}, and no batch has come from the loader's workers for {WAIT:g} s")
            return
        again = self.stop is not None
        if not again:
            code = 130 if number == signal.SIGINT else 143
            self.stop = Stop(self._reason or f"{name} received", "interrupted", code, save=True)
            self.state.attention = True
        if again or not self.graceful:
            assert self.stop is not None
            early = f"{self.stop.reason} before the training began"
            raise Interrupted(f"{name} received twice: ended at once" if again else early)


def _fetch(frame: FrameType | None) -> FrameType | None:
    """Return the frame, this one or one that called it, in which a DataLoader of PyTorch awaits a worker's batch."""
    waits = False
    while frame is not None:
        waits = waits or frame.f_code.co_name == "_try_get_data"
        if waits and frame.f_code.co_name == "__next__":
            return frame
        frame = frame.f_back
    return None
