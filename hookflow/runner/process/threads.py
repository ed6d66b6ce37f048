"""Threads that hooks leave running, which would keep the process from ending.

A thread that is no daemon keeps its process alive. It is named, and given a little time to end; then the process goes.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
from collections.abc import Collection
from concurrent.futures import thread as executors
from pathlib import Path
from types import FrameType
from typing import NoReturn

from hookflow.events.rundir import short

SETTLE = 1.0
"""Seconds for threads to end by themselves before a warning."""

GRACE = 5.0
"""Seconds that a process which has nothing else to do waits for them, and again for what is to happen at its exit."""


def unfinished(before: Collection[threading.Thread] = ()) -> list[threading.Thread]:
    """Return the threads that the process would wait for, without those of `before`; they have SETTLE seconds to end.

    Idle threads of an executor (concurrent.futures) are none: the interpreter ends them.
    """
    until = time.monotonic() + SETTLE
    known = {*before, threading.main_thread(), threading.current_thread()}
    result = [thread for thread in threading.enumerate() if not thread.daemon and thread not in known]
    while (left := [item for item in result if item.is_alive() and not _is_idle(item)]) and time.monotonic() < until:
        time.sleep(0.02)
    return left


def describe(thread: threading.Thread) -> str:
    """Return the thread's name, the function that it was started with, and the line of that which it has come to."""
    frame, started = _frame(thread), None
    while frame is not None:  # from where it is back to where it began
        if frame.f_code.co_filename != threading.__file__:
            started = frame
        frame = frame.f_back
    if started is None:
        return f'"{thread.name}" ({type(thread).__name__})'
    code = started.f_code
    return f'"{thread.name}" ({code.co_qualname}, {short(Path(code.co_filename))}:{started.f_lineno})'


def leave(code: int, *, several: bool) -> None:
    """See to it that the process ends with `code` once its caller is done; one of `several` ranks ends here and now.

    Threads that hooks have left running are given a little time.
    """
    if unfinished():
        _exit_soon(code)
    elif several:
        _exit_at_once(code)


def _exit_at_once(code: int) -> NoReturn:
    """End the process with `code`, once what is registered for its exit is done; the interpreter is not taken down.

    A thread of a process group may still hold a tensor. One that lets go of it while the interpreter goes down aborts
    the process (SIGABRT), however well the run has ended.
    """
    _tidy_up()
    os._exit(code)


def _exit_soon(code: int) -> None:
    """End the process with `code` GRACE seconds from now if it is still waiting for threads then.

    Its output is flushed, and exit handlers (atexit, logging) are called.
    """
    exiting = threading.Event()
    atexit.register(exiting.set)  # which comes after the threads, and first of all that is registered

    def wait() -> None:
        if not exiting.wait(GRACE):
            last = threading.Thread(target=_tidy_up, name="hookflow-exit", daemon=True)
            last.start()
            last.join(GRACE)
            os._exit(code)

    threading.Thread(target=wait, name="hookflow-exit-soon", daemon=True).start()


def _tidy_up() -> None:
    """Do what the interpreter does at its exit, but for the threads."""
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()


def _frame(thread: threading.Thread) -> FrameType | None:
    return sys._current_frames().get(thread.ident or 0)


def _is_idle(thread: threading.Thread) -> bool:
    """Say whether it is an executor's thread that has nothing to do."""
    frame = _frame(thread)
    return frame is not None and (frame.f_code.co_filename, frame.f_code.co_name) == (executors.__file__, "_worker")
