"""What a loader's worker has raised, or died of, in one line; what PyTorch raises has a whole traceback as its text."""

from __future__ import annotations

import re
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from hookflow.user_code import FRAME

Result = TypeVar("Result")

CAUGHT = re.compile(r"Caught \w+ in DataLoader worker process (\d+)\.\nOriginal ")
"""How the message begins of what PyTorch raises in the place of a worker."""

KILLED = re.compile(r"DataLoader worker \(pid (\d+)\) is killed by signal: ([^.]+)")
"""What PyTorch raises, wherever the training is, when a worker has died of a signal."""

GONE = re.compile(r"DataLoader worker \(pid\(s\) [\d, ]+\) exited unexpectedly")
"""The same, when PyTorch sees that the worker is gone before it hears of what."""

PINNING = "in pin memory thread"
"""What is in the message of an exception that the thread has handed on which pins memory."""

PATIENCE = 10.0
"""Seconds in which a worker has an exit code, where PyTorch has only seen yet that its socket is gone."""

CRASHED = "a library crashed in it; with workers = 0 the training itself crashes, and shows where"
REMEDIES = {
    "SIGKILL": "probably this machine was out of memory: use fewer workers, or smaller batches",
    "SIGBUS": "probably shared memory ran out: enlarge /dev/shm (docker run --shm-size=8g), or use fewer workers",
    **dict.fromkeys(("SIGSEGV", "SIGABRT", "SIGILL", "SIGFPE"), CRASHED),
}
"""What to try, by the signal that a worker died of."""


class WorkerError(Exception):
    """A worker of a loader has raised, or died. The message says which and of what.

    The traceback of one that has raised is a note.
    """


def explaining_worker_errors(train: Callable[[], Result]) -> Result:
    """Call `train`; raise a WorkerError of one line for what a worker of a loader has raised or died of.

    PyTorch tells of a worker that was killed by an exception wherever Python stands when SIGCHLD arrives. That may be
    here, while another exception is being looked at; at the entry of a context manager's exit nothing could catch it.
    """
    try:
        return train()
    except Exception as error:
        try:
            explained = _explained(error)
        except RuntimeError as raised:
            explained = _explained(raised)
        if explained is None:
            raise
        raise explained from None


def _explained(error: Exception) -> WorkerError | None:
    """Return the error in one line; None where it is not about a worker."""
    text = str(error)
    if killed := KILLED.search(f"{text}\n{error.__cause__}"):
        return _in_the_place_of(error, _died(*killed.groups()))
    if GONE.match(text) or _is_cut_off(error):
        return _in_the_place_of(error, _end_of_one(_workers_of(error)))
    if caught := CAUGHT.match(text):
        behind = FRAME.split(text.rstrip())[-1].splitlines()[1:]  # the code of the last frame, what it raised, notes
        message = next((line for line in behind if not line.startswith(" ")), behind[-1] if behind else "")
        return _in_the_place_of(error, f"worker {caught[1]}: {message.strip()}", text[caught.end() :].rstrip())
    return None


def _in_the_place_of(error: Exception, text: str, *notes: str) -> WorkerError:
    short = WorkerError(text)
    for note in (*notes, *getattr(error, "__notes__", ())):
        short.add_note(note)
    return short.with_traceback(error.__traceback__)


def _workers_of(error: Exception) -> Sequence[Any]:
    """Return the processes of the loader that was fetching a batch when this was raised."""
    owners = (frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__))
    found = (getattr(owner, "_workers", None) for owner in owners)
    return next(filter(None, found), ())


def _end_of_one(workers: Sequence[Any]) -> str:
    """Wait until one has ended as it should not, and say how.

    PyTorch says so only once, by an exception in the middle of whatever Python does then: it may have got lost.
    """
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        for worker in workers:
            if (code := worker.exitcode or 0) < 0:
                return _died(worker.pid, signal.strsignal(-code) or str(-code))
            if code:
                return f"{_worker(worker.pid)} ended with exit code {code}"
        time.sleep(PATIENCE / 50)
    return f"a DataLoader worker died without an exception: {REMEDIES['SIGKILL']}"


def _is_cut_off(error: Exception) -> bool:
    """Say whether a worker was gone while the training, or the thread that pins memory for it, fetched a batch of it.

    A tensor comes over a socket of the worker's, which may be gone from the file system too.
    """
    if not isinstance(error, EOFError | ConnectionError | FileNotFoundError):
        return False
    frames = traceback.extract_tb(error.__traceback__)
    return PINNING in str(error) or any(frame.name == "_try_get_data" for frame in frames)


def _died(pid: object, described: str) -> str:
    """Say which signal a worker died of, as the C library describes it, and what to try."""
    of = next((one for one in signal.Signals if signal.strsignal(one) == described.strip()), None)
    if of is None:
        return f"{_worker(pid)} died of a signal: {described.strip()}"
    remedy = f": {REMEDIES[of.name]}" if of.name in REMEDIES else ""
    return f"{_worker(pid)} was killed by {of.name} (signal {of.value}){remedy}"


def _worker(pid: object) -> str:
    return f"a DataLoader worker (pid {pid})"
