"""Interruptions of a run: signals of the system and commands of users. Imports no torch.

A signal handler runs in the middle of anything, so it takes no lock: it sets plain attributes,
which the training reads at safe points.
"""

import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from types import FrameType

from hookflow.events.records import CommandRecord, Status
from hookflow.runner.process.state import RunState

END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
"""The signals that end a run; SIGUSR1 is Slurm's warning."""


def ends_at_once(number: int) -> bool:
    """Return whether a signal that is not the first one ends the run at once.

    Only Ctrl-C of a person does.

    A scheduler sends a sequence, such as SIGUSR1 and then SIGTERM, and launchers hand theirs on.
    None of these may cost the checkpoint that the first one has asked for.
    """
    return number == signal.SIGINT


@dataclass(frozen=True, slots=True)
class StopReason:
    """Why a run ends, its exit code, and whether its state is saved first."""

    reason: str
    status: Status
    exit: int
    save: bool

    @property
    def may_be_restarted(self) -> bool:
        """Whether another attempt may go better.

        Neither the user nor a mistake of theirs has ended this one then.
        """
        return self.status == "failed" and self.exit != 2


WAIT, POLL = 5.0, 0.25
"""Seconds that a worker has for a batch after a signal, and between the checks of that."""

IMPORT_POLL = 0.05
"""Seconds between the checks whether an import is over that a signal waits for."""


WAITING_RANKS_NOTE = (
    "the ranks finish this iteration once it is there, and then save; if it never comes, nothing"
    " after the last checkpoint can be saved, and Ctrl-C ends the run at once"
)
"""The consequence where one of several ranks lacks a batch.

The others wait for it in the middle of their iteration.
"""


class RunInterruptedError(KeyboardInterrupt):
    """Raised in the main thread by a signal that does not wait for a safe point."""


class WorkerHangError(RunInterruptedError):
    """Raised where the training waits for a worker's batch after a signal.

    The batch has not come for `WAIT` seconds.
    """


class Rewind(BaseException):
    """Raised at a safe point by a command, on all ranks.

    The run goes back to the checkpoint at `path`.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(f"back to {path.name}")
        self.path = path


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Block the signals that end a run: a process that is started meanwhile inherits that."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, END_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


@contextmanager
def handlers_put_back() -> Iterator[None]:
    """Restore the handlers of signals, and the blocked ones, on exit."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in (*END_SIGNALS, signal.SIGHUP)}
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        yield
    finally:
        for number, handler in handlers.items():
            if handler is not None:  # one that was not set by Python cannot be set by it either
                signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


class SignalCollector:
    """Collects interruptions: `stop` by the first signal, and `commands` in their order.

    Interrupted is raised at once before the training has begun, and by a Ctrl-C that is not the
    first signal. While torch is imported no signal raises: an exception there passes through C++,
    which aborts the process. It is raised after the import.
    """

    def __init__(self, state: RunState) -> None:
        self.stop: StopReason | None = None
        self.commands: deque[CommandRecord] = deque()
        self.ignored = False
        """Whether signals do nothing any more but count: the run is over, and closes its log."""
        self.count = 0
        """How many signals have come."""
        self.state = state
        self.graceful = False
        """Whether the first signal waits for a safe point: the training has begun."""
        self._hangs = False
        self._awaits_import = False
        """Whether the first signal has come during an import.

        Interrupted is to be raised after that.
        """
        self._reason = ""
        self._report_wait: Callable[[str], None] | None = None
        self._refetches = False

    def command(self, record: CommandRecord) -> None:
        """Take a record of the command log; called by the recorder's thread."""
        self.commands.append(record)
        self.state.attention = True

    def terminate(self, reason: str) -> None:
        """End the run as SIGTERM does, for another reason; any thread may call it."""
        self._reason = reason
        os.kill(os.getpid(), signal.SIGTERM)

    def listen(self) -> None:
        """Handle END_SIGNALS, including blocked ones that are pending, and ignore SIGHUP.

        The main thread alone can.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        for number in END_SIGNALS:
            signal.signal(number, self._on_signal)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        # The thread is started here, since starting one takes locks, which a handler must not.
        threading.Thread(target=self._watch_imports, name="hookflow-imports", daemon=True).start()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, END_SIGNALS)

    def _watch_imports(self) -> None:
        """Send this process another signal once the import is over.

        The first signal waits for that import.
        """
        main = threading.main_thread().ident or 0
        while not (self.graceful or self.ignored):
            time.sleep(IMPORT_POLL)
            if self._awaits_import and not _is_importing_native_code(
                sys._current_frames().get(main)
            ):
                os.kill(os.getpid(), signal.SIGTERM)

    def be_graceful(
        self, report_wait: Callable[[str], None] | None = None, *, refetches: bool = False
    ) -> None:
        """Let the first signal wait for a safe point from here on.

        Raises Interrupted when one has come already.

        Where the training then waits for a worker's batch for more than `WAIT` seconds, WorkerHangs
        is raised there. With `report_wait` that is reported instead: one of several ranks cannot
        leave an iteration alone. If it `refetches` such a batch, WorkerHangs is raised the first
        time nevertheless.
        """
        again = self.graceful
        self.graceful = True
        self._report_wait = report_wait
        self._refetches = refetches
        if self.stop is not None:
            raise RunInterruptedError(f"{self.stop.reason} before the training began")
        if threading.current_thread() is threading.main_thread() and not again:
            threading.Thread(
                target=self._watch_fetches, name="hookflow-signals", daemon=True
            ).start()

    def _watch_fetches(self) -> None:
        """After the first signal, watch for a worker's batch that does not come.

        The wait for it is interrupted, or reported.
        """
        main = threading.main_thread().ident or 0
        awaited = None
        since = 0.0
        while not self.ignored:
            time.sleep(POLL)
            fetch = None
            if self.stop:
                fetch = _fetch(sys._current_frames().get(main))
            if fetch is None or fetch is not awaited:
                awaited = fetch
                since = time.monotonic()
            elif time.monotonic() - since >= WAIT:
                if self._report_wait is not None and not self._refetches:
                    self._report_wait(
                        f"no batch has come from the loader's workers for {WAIT:g} s:"
                        f" {WAITING_RANKS_NOTE}"
                    )
                    return
                self._hangs = True
                os.kill(os.getpid(), signal.SIGTERM)
                if not self._refetches:
                    return
                self._refetches = False

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        if self.ignored:
            return
        if not self.graceful and (self.stop is None or self._awaits_import):
            self._interrupt_start(number, frame)
            return
        name = signal.Signals(number).name
        if self._hangs and self.stop is not None:
            self._hangs = False
            if _fetch(frame) is not None:
                raise WorkerHangError(
                    f"{self.stop.reason}, and no batch has come from the loader's workers for"
                    f" {WAIT:g} s"
                )
            return
        first = self.stop
        if first is None:
            self.stop = self._stop_by(number)
            self.state.attention = True
        elif ends_at_once(number):
            raise RunInterruptedError(f"{first.reason}, then {name}: ended at once")

    def _interrupt_start(self, number: int, frame: FrameType | None) -> None:
        """Raise Interrupted by the first signal before the training.

        It may wait for an import, which is noted.
        """
        if self.stop is None:
            self.stop = self._stop_by(number)
        self._awaits_import = _is_importing_native_code(frame)
        if not self._awaits_import:
            raise RunInterruptedError(f"{self.stop.reason} before the training began")

    def _stop_by(self, number: int) -> StopReason:
        """Return how a run ends whose first signal is this one."""
        reason = self._reason or f"{signal.Signals(number).name} received"
        code = 143
        if number == signal.SIGINT:
            code = 130
        return StopReason(reason, "interrupted", code, save=True)


def _is_importing_native_code(frame: FrameType | None) -> bool:
    """Return whether this frame, or a caller of it, imports a native module.

    It is a module of torch, or an extension module.
    """
    while frame is not None:
        name = frame.f_code.co_name
        package = str(frame.f_globals.get("__name__")).partition(".")[0]
        if name == "<module>" and package == "torch":
            return True
        loads = name in ("create_module", "exec_module")
        if loads and isinstance(frame.f_locals.get("self"), ExtensionFileLoader):
            return True
        frame = frame.f_back
    return False


def _fetch(frame: FrameType | None) -> FrameType | None:
    """Return the frame in which a DataLoader awaits a worker's batch.

    It is among this one and its callers.
    """
    waits = False
    while frame is not None:
        waits = waits or frame.f_code.co_name == "_try_get_data"
        if waits and frame.f_code.co_name == "__next__":
            return frame
        frame = frame.f_back
    return None
