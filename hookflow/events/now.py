"""Where the training thread is at this very moment: sixteen bytes of shared memory.

A native 64-bit integer, the id of the binding that is being called (-1: none), and a float64, when it was entered
(seconds of the machine's monotonic clock: CLOCK_MONOTONIC, which `time.monotonic` and `time.perf_counter` show). The
training thread writes them without a lock or a system call, so that a hook that never returns has a name.

On Linux the memory is an anonymous file that cannot change its size (a memfd with seals), and the file in the run
directory is a link to it through /proc. To truncate a file that is mapped kills the process (SIGBUS); this one cannot
be truncated. The link goes with the process; one that is killed leaves a link that leads nowhere. Elsewhere it is a
file, as it was in older versions.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import sys
import time
import weakref
from pathlib import Path

from hookflow.events.regular_file import read_regular

LAYOUT = struct.Struct("@qd")
NOWHERE = -1


def share(path: Path) -> tuple[memoryview[int], memoryview[float]]:
    """Share the memory under `path` for as long as what is returned is kept; that is to be assigned to.

    It is the binding's id and the time, one item each; they start as NOWHERE and now.
    """
    path.unlink(missing_ok=True)  # an earlier attempt's; what it may lead to by now is not ours to write to
    view = memoryview(_map(path))
    ids, times = view[:8].cast("q"), view[8:].cast("d")
    ids[0], times[0] = NOWHERE, time.perf_counter()
    return ids, times


def look(path: Path) -> tuple[int, float] | None:
    """Return the id of the binding being called (or NOWHERE) and the seconds since it was entered.

    Returns None when there is nothing to see, as once the process has ended. Nothing is opened but a regular file and
    this memory: the link in a copy of a run directory, or of a run on another machine, may lead to anything.
    """
    try:
        if path.is_symlink():
            known = str(path.readlink().readlink()) == f"/memfd:{_name(path)} (deleted)"
        else:
            known = path.is_file()
        if not known:
            return None
        binding, entered = LAYOUT.unpack(read_regular(path))
    except (OSError, struct.error):
        return None
    return binding, max(time.monotonic() - entered, 0.0)


def _name(path: Path) -> str:
    """Return what the memory is called that is shared under `path`. In a copy of the directory that is another name."""
    return f"hookflow {path.parent.stat().st_ino} {path.name}"


def _map(path: Path) -> mmap.mmap:
    """Return new memory that is shared under `path`: by a link where the system can do that, else in a file."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # an old kernel, or a file system that knows no links
            return _map_sealed(path)
    path.write_bytes(bytes(LAYOUT.size))
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), LAYOUT.size)


if sys.platform == "linux":
    import fcntl

    def _map_sealed(path: Path) -> mmap.mmap:
        file = os.memfd_create(_name(path), os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        target = f"/proc/{os.getpid()}/fd/{file}"
        try:
            os.ftruncate(file, LAYOUT.size)
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            shared = mmap.mmap(file, LAYOUT.size)
            path.symlink_to(target)
        except OSError:
            os.close(file)
            raise
        weakref.finalize(shared, _withdraw, path, target, file, os.getpid())
        return shared


def _withdraw(path: Path, target: str, file: int, owner: int) -> None:
    """Leave no link behind that leads nowhere: programs that copy directories stumble over those."""
    if os.getpid() != owner:  # a fork of the process
        return
    os.close(file)
    with contextlib.suppress(OSError):
        if str(path.readlink()) == target:
            path.unlink()
