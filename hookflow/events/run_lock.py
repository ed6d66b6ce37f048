"""The lock of a run directory, and the processes that hold it.

A lock file may be removed; a directory cannot be locked on network file systems. So both are
locked, and a second lock on either is refused. On a file system that knows no locks a claim takes
their place.
"""

import contextlib
import fcntl
import os
import resource
import signal
from collections.abc import Sequence
from pathlib import Path

from hookflow.events.run_claim import is_claimed, release_claim, take_claim, transfer_claim


def exit_code(code: int) -> int:
    """Return the exit code of a process as a shell shows it.

    It is 128 and the number of the signal that killed it.
    """
    if code >= 0:
        return code
    return 128 - code


def signal_name(number: int) -> str:
    """Return the name of a signal, and of one that has none its number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def find_processor_limit() -> str:
    """Return the limit of processor time of this process and its children.

    At it the system kills them. It is empty for none.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    if hard == resource.RLIM_INFINITY:
        return ""
    return f"its limit of processor time, {hard} s (ulimit -t)"


LOCK_FILE_NAME = "lock"
"""The name of the lock file."""

MAX_LOCKS = 2
"""The lock file and the directory."""

Locks = tuple[int, ...]
"""The file descriptors that hold the lock.

They hold it until all of them, and the copies that a child was passed, are closed.
"""

_held: set[int] = set()

_claims: dict[Locks, Path] = {}
"""The claims that take the place of locks."""


def _close_inherited_locks() -> None:
    """Close the parent's locks in a forked child.

    A data worker, or a daemon of the user's, is not the run.
    """
    for lock in _held:
        os.close(lock)
    _held.clear()
    _claims.clear()


os.register_at_fork(after_in_child=_close_inherited_locks)


def try_lock(folder: Path, *, shared: bool = False) -> Locks | None:
    """Lock a run directory; None where another process holds it, unless both locks are shared."""
    how = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB
    locks = (
        os.open(folder / LOCK_FILE_NAME, os.O_RDWR | os.O_CREAT, 0o644),
        os.open(folder, os.O_RDONLY),
    )
    is_locked_by_us = False
    for lock in locks:
        try:
            fcntl.flock(lock, how)
            is_locked_by_us = True
        except BlockingIOError:
            release(locks)
            return None
        except OSError:  # this one cannot be locked here
            continue
    if not is_locked_by_us and not shared:
        claim = take_claim(folder)
        if claim is None:
            release(locks)
            return None
        _claims[locks] = claim
    _held.update(locks)
    return locks


def transfer_claim_to_child(locks: Locks, pid: int) -> None:
    """Let a child process have the claim that takes the place of its copies of the locks."""
    claim = _claims.pop(locks, None)
    if claim is not None:
        transfer_claim(claim, pid)


def transfer_claim_of_locks(locks: Locks, pid: int) -> Path | None:
    """Let another process have the claim in place of the locks, and return it.

    It is None where they need none. That process calls `adopt_locks`.
    """
    claim = _claims.pop(locks, None)
    if claim is not None:
        transfer_claim(claim, pid)
    return claim


def adopt_locks(numbers: Sequence[int], claim: Path | None) -> Locks:
    """Hold locks that another process has sent to this one.

    The claim that takes their place, if any does, is held, too.
    """
    locks = tuple(numbers)
    for lock in locks:
        os.set_inheritable(lock, False)
    _held.update(locks)
    if claim is not None:
        _claims[locks] = claim
    return locks


def inherit(numbers: str) -> None:
    """Hold the locks that this process was passed when it was started, "5,6".

    Its own children get no copies.
    """
    for lock in map(int, numbers.split(",")):
        os.set_inheritable(lock, False)
        _held.add(lock)


def holds(pid: int, folder: Path) -> bool:
    """Return whether a process has the lock file of a run directory open.

    Raises psutil.Error where the process is gone or another user's.
    """
    import psutil

    for file in psutil.Process(pid).open_files():
        with contextlib.suppress(OSError):
            if Path(file.path).samefile(folder / LOCK_FILE_NAME):
                return True
    return False


def is_locked(folder: Path) -> bool:
    """Return whether a process holds the lock of a run directory.

    The lock is taken for a moment, and nothing is changed.
    """
    knows_locks = False
    for path in (folder / LOCK_FILE_NAME, folder):
        with contextlib.suppress(FileNotFoundError, PermissionError):
            lock = os.open(path, os.O_RDONLY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                knows_locks = True
            except BlockingIOError:
                return True
            except OSError:  # this one cannot be locked here
                pass
            finally:
                os.close(lock)
    if knows_locks:
        return False
    with contextlib.suppress(OSError):  # it is gone, or cannot be read
        return is_claimed(folder)
    return False


def share(locks: Locks) -> None:
    """Let others share what is locked; no process can lock it exclusively."""
    for lock in locks:
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_SH)


def release(locks: Locks) -> None:
    """Unlock, unless a child process was passed a copy."""
    claim = _claims.pop(locks, None)
    if claim is not None:
        release_claim(claim)
    for lock in locks:
        _held.discard(lock)
        os.close(lock)
