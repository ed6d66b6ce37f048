"""One process in a run directory: its recorder and its signals, from the first record to the last.

It is the same under hookflow's own loop and under one of the user's. Imports no torch.
"""

import logging
import sys
import threading
import time
import warnings
from collections.abc import Collection, Iterator
from concurrent.futures import thread as executors
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hookflow.errors import UserError
from hookflow.events.records import Level
from hookflow.events.rundir import RunDir, short
from hookflow.runner.distributed.failures import describe_peer_loss, is_timeout
from hookflow.runner.distributed.rendezvous import RankLayout
from hookflow.runner.logging.recorder import EventRecorder
from hookflow.runner.process.signals import SignalCollector, StopReason
from hookflow.runner.process.state import RunState
from hookflow.text import print_error
from hookflow.user_code import describe_error

MAX_RECORDED_WARNINGS = 1000
"""Python's warnings that an attempt records; all are printed."""

THREAD_SETTLE_SECONDS = 1.0
"""Seconds for threads to end by themselves before a warning."""


def find_unfinished_threads(before: Collection[threading.Thread] = ()) -> list[threading.Thread]:
    """Return the threads that the process would wait for, after THREAD_SETTLE_SECONDS.

    The threads of `before` are left out. Idle threads of an executor (concurrent.futures) are none:
    the interpreter ends them.
    """

    def is_busy(thread: threading.Thread) -> bool:
        frame = sys._current_frames().get(thread.ident or 0)
        code = None
        if frame:
            code = frame.f_code
        is_idle = code is not None and (code.co_filename, code.co_name) == (
            executors.__file__,
            "_worker",
        )
        return thread.is_alive() and not is_idle

    until = time.monotonic() + THREAD_SETTLE_SECONDS
    known = {*before, threading.main_thread(), threading.current_thread()}
    others = [
        thread for thread in threading.enumerate() if not thread.daemon and thread not in known
    ]
    while (left := [*filter(is_busy, others)]) and time.monotonic() < until:
        time.sleep(0.02)
    return left


class RunSession:
    """One process in a run directory, whose lock it holds.

    It goes from its signature to the record of how it has ended. The session signs the directory
    where it `signs`. The recorder is `held` until a resume has read its checkpoint. Raises OSError
    when the directory cannot be written.
    """

    def __init__(
        self, run_dir: RunDir, ranks: RankLayout, *, signs: bool, held: bool, prints_failure: bool
    ) -> None:
        self._run_dir = run_dir
        self._signs = signs
        self._began = time.perf_counter()
        self._threads = threading.enumerate()
        self.signals = SignalCollector(RunState())
        if signs:
            run_dir.sign_process()
        self.recorder = EventRecorder(
            run_dir, self.signals.command, ranks, prints_failure=prints_failure, held=held
        )
        self.recorder.start()

    def find_stop_reason(self, error: BaseException, *, lost: bool) -> StopReason:
        """Return how a run ends that raised.

        The failure is recorded, unless another rank was `lost`.
        """
        recorder = self.recorder
        signals = self.signals
        if isinstance(error, UserError):
            # The notes say which hook has raised the error, if one has.
            notes = (f"    {note}" for note in getattr(error, "__notes__", ()))
            return StopReason("\n".join([str(error), *notes]), "failed", 2, save=False)
        if isinstance(error, KeyboardInterrupt):
            return StopReason(
                str(error) or "interrupted",
                "interrupted",
                signals.stop.exit if signals.stop else 130,
                save=False,
            )
        if lost and signals.stop is not None:  # the others have left by the same signals
            return StopReason(
                f"{signals.stop.reason}; {describe_peer_loss(error)}",
                "interrupted",
                signals.stop.exit,
                save=False,
            )
        if lost:
            return StopReason(describe_peer_loss(error), "failed", 1, save=False)
        # An error that was raised `from None` is the reported one in other words.
        first = error.__context__ if error.__suppress_context__ else error
        if recorder.reported is None or not (
            recorder.reported is error or recorder.reported is first
        ):
            recorder.failure(error)
        summary = ""
        if recorder.reported is error or is_timeout(error):
            summary = recorder.why
        return StopReason(summary or f"{type(error).__name__}: {error}", "failed", 1, save=False)

    @contextmanager
    def record_warnings(self) -> Iterator[None]:
        """Record the texts of Python's `warnings` and `logging`, each once.

        They are printed as before. A handler of `logging` would turn `logging.basicConfig` of the
        user's code into a no-op.
        """
        seen: set[str] = set()
        show = warnings.showwarning
        make = logging.getLogRecordFactory()

        def record(text: str, level: Level, source: str) -> None:
            if text not in seen and len(seen) < MAX_RECORDED_WARNINGS:
                seen.add(text)
                self.recorder.say(text, level, source)

        def show_and_record(
            message: Any, category: Any, filename: str, lineno: int, *more: Any, **options: Any
        ) -> None:
            with suppress(Exception):  # a warning of the user's may have no text
                record(
                    f"{category.__name__}: {message} ({short(Path(filename))}:{lineno})",
                    "warn",
                    "warnings",
                )
            show(message, category, filename, lineno, *more, **options)

        def make_and_record(*args: Any, **fields: Any) -> logging.LogRecord:
            made = make(*args, **fields)
            if made.levelno >= logging.WARNING:
                # `logging` itself reports arguments that do not fit the message.
                with suppress(Exception):
                    raised = []
                    if made.exc_info and made.exc_info[1]:
                        raised = [*describe_error(made.exc_info[1])]
                    level: Level = "error" if made.levelno >= logging.ERROR else "warn"
                    record(", ".join([made.getMessage(), *raised]), level, f"logging.{made.name}")
            return made

        warnings.showwarning = show_and_record
        logging.setLogRecordFactory(make_and_record)
        try:
            yield
        finally:
            # Where the user's code has put something else there, that is left.
            if warnings.showwarning is show_and_record:
                warnings.showwarning = show
            if logging.getLogRecordFactory() is make_and_record:
                logging.setLogRecordFactory(make)

    def close(self, stop: StopReason, *, lost: bool = False, goes_on: bool = False) -> None:
        """Record how the attempt has ended, and close the log.

        The end is not recorded where other ranks or a restart `goes_on`. Threads that the user's
        code has left running are named first.
        """
        for thread in find_unfinished_threads(self._threads):
            text = (
                f'the thread "{thread.name}" is still running: end it in after_run, or make it a'
                " daemon thread"
            )
            self.recorder.say(text, "warn")
            print_error(f"hookflow: {text}")
        self._record_end(stop, lost=lost, goes_on=goes_on)
        if self._signs:
            self._run_dir.sign_off()

    def _record_end(self, stop: StopReason, *, lost: bool, goes_on: bool) -> None:
        recorder = self.recorder
        seconds = time.perf_counter() - self._began
        refused = recorder.held
        if refused:
            recorder.discard()
        if goes_on:
            # Only an error counts as this rank's report of its failure.
            level: Level = "warn" if lost else "error"
            recorder.say(stop.reason, level)
        elif refused:
            recorder.put(
                "refused", exit=stop.exit, reason=stop.reason, traceback=recorder.traceback
            )
        else:
            recorder.put(
                "end", status=stop.status, exit=stop.exit, reason=stop.reason, seconds=seconds
            )
        recorder.close()
