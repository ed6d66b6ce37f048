"""The lock of a run directory: on a file in it, and on the directory itself.

Somebody may remove the file, and a new one of its name is not locked. The directory cannot be removed while the run is
in it, but network file systems lock files alone. So both are locked, and whoever finds either locked is refused. A
file system that knows no locks at all grants every one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

import psutil

NAME = "lock"
"""What the file is called."""

Locks = tuple[int, ...]
"""The file descriptors that hold the lock: until all of them, and the copies that a child was passed, are closed."""

_held: set[int] = set()


def _forget_held() -> None:
    """Close in a forked child what its parent holds: a data worker, or a daemon of the user's, is not the run."""
    for lock in _held:
        os.close(lock)
    _held.clear()


os.register_at_fork(after_in_child=_forget_held)


def try_lock(folder: Path, *, shared: bool = False) -> Locks | None:
    """Lock a run directory; None where somebody else has locked it, unless both locks are shared."""
    how = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB
    locks = (os.open(folder / NAME, os.O_RDWR | os.O_CREAT, 0o644), os.open(folder, os.O_RDONLY))
    for lock in locks:
        try:
            fcntl.flock(lock, how)
        except BlockingIOError:
            release(locks)
            return None
        except OSError:  # this one cannot be locked here
            continue
    _held.update(locks)
    return locks


def inherit(numbers: str) -> None:
    """Hold the locks that this process was passed when it was started, "5,6"; its own children get no copies."""
    for lock in map(int, numbers.split(",")):
        os.set_inheritable(lock, False)
        _held.add(lock)


def holds(pid: int, folder: Path) -> bool:
    """Say whether a process has the lock file of a run directory open, as who carries out the run has.

    Raises psutil.Error where the process is gone or another user's.
    """
    for file in psutil.Process(pid).open_files():
        with contextlib.suppress(OSError):
            if Path(file.path).samefile(folder / NAME):
                return True
    return False


def is_locked(folder: Path) -> bool:
    """Say whether somebody holds the lock of a run directory, by taking it for a moment; nothing is changed."""
    for path in (folder / NAME, folder):
        with contextlib.suppress(FileNotFoundError, PermissionError):
            lock = os.open(path, os.O_RDONLY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            except OSError:  # this one cannot be locked here
                pass
            finally:
                os.close(lock)
    return False


def share(locks: Locks) -> None:
    """Let others share what is locked; nobody can lock it for himself."""
    for lock in locks:
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_SH)


def release(locks: Locks) -> None:
    """Unlock, unless a child process was passed a copy."""
    for lock in locks:
        _held.discard(lock)
        os.close(lock)
