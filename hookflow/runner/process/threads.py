"""Threads that hooks leave running: they are named, given a little time to end, and keep no process alive."""

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

from hookflow.events.rundir import short

SETTLE = 1.0
"""Seconds for threads to end by themselves before a warning."""

GRACE = 5.0
"""Seconds that a process waits for them once it is done, and again for its exit handlers."""


def unfinished(before: Collection[threading.Thread] = ()) -> list[threading.Thread]:
    """Return the threads that the process would wait for, without those of `before`, after SETTLE seconds.

    Idle threads of an executor (concurrent.futures) are none: the interpreter ends them.
    """

    def is_busy(thread: threading.Thread) -> bool:
        frame = sys._current_frames().get(thread.ident or 0)
        code = frame.f_code if frame else None
        is_idle = code is not None and (code.co_filename, code.co_name) == (executors.__file__, "_worker")
        return thread.is_alive() and not is_idle

    until = time.monotonic() + SETTLE
    known = {*before, threading.main_thread(), threading.current_thread()}
    others = [thread for thread in threading.enumerate() if not thread.daemon and thread not in known]
    while (left := [*filter(is_busy, others)]) and time.monotonic() < until:
        time.sleep(0.02)
    return left


def describe(thread: threading.Thread) -> str:
    """Return the thread's name, the function that it was started with, and the line that this has reached."""
    frame, started = sys._current_frames().get(thread.ident or 0), None
    while frame is not None:  # from where it is back to where it began
        if frame.f_code.co_filename != threading.__file__:
            started = frame
        frame = frame.f_back
    if started is None:
        return f'"{thread.name}" ({type(thread).__name__})'
    code = started.f_code
    return f'"{thread.name}" ({code.co_qualname}, {short(Path(code.co_filename))}:{started.f_lineno})'


def leave(code: int, *, several: bool) -> None:
    """Ensure that the process ends with `code` once its caller is done; one of `several` ranks ends here and now.

    A thread of a process group may still hold a tensor: one that is released while the interpreter goes down aborts
    the process, so the interpreter of a rank is not taken down. Threads that hooks have left running get GRACE seconds.
    """
    if not unfinished():
        if several:
            _tidy_up()
            os._exit(code)
        return
    exiting = threading.Event()
    atexit.register(exiting.set)  # which comes after the threads, and first of all that is registered

    def exit_soon() -> None:
        if not exiting.wait(GRACE):
            last = threading.Thread(target=_tidy_up, name="hookflow-exit", daemon=True)
            last.start()
            last.join(GRACE)
            os._exit(code)

    threading.Thread(target=exit_soon, name="hookflow-exit-soon", daemon=True).start()


def _tidy_up() -> None:
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
