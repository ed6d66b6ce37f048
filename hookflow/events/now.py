"""The current binding of the training thread, in twenty-four bytes of shared memory.

A native 64-bit integer, the id of the binding that is being called (-1: none), and a float64, when it was entered
(seconds of the machine's monotonic clock: CLOCK_MONOTONIC, which `time.monotonic` and `time.perf_counter` show); and
a native 64-bit integer, the training iterations done. The training thread writes them without a lock or a system call.
It names a hook that never returns, and the last iteration of a killed process.

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
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from hookflow.events.regular_file import open_regular

LAYOUT = struct.Struct("@qdq")
OLDER = struct.Struct("@qd")
"""Without the iterations, as older versions wrote it."""
NOWHERE = -1


class Shared:
    """The shared memory under `path`, until it is closed or collected.

    `ids[0]` is the binding's id, `times[0]` the time and `iters[0]` the iterations done, each to be assigned to. They
    start as NOWHERE, now and 0.
    """

    def __init__(self, path: Path) -> None:
        path.unlink(missing_ok=True)  # an earlier attempt's; what it may lead to by now is not ours to write to
        self._memory, self._withdraw = _map(path)
        view = memoryview(self._memory)
        self.ids, self.times, self.iters = view[:8].cast("q"), view[8:16].cast("d"), view[16:].cast("q")
        self.ids[0], self.times[0] = NOWHERE, time.perf_counter()

    def close(self) -> None:
        """Give the memory back; to assign to it is a ValueError from here on."""
        self.ids.release()
        self.times.release()
        self.iters.release()
        self._memory.close()
        self._withdraw()


def look(path: Path) -> tuple[int, float] | None:
    """Return the id of the binding being called (or NOWHERE) and the seconds since it was entered.

    Returns None when there is nothing to see, as once the process has ended.
    """
    with contextlib.suppress(OSError, struct.error), open_memory(path) as memory:
        data = memory.read()
        binding, entered = OLDER.unpack(data[: OLDER.size] if len(data) == LAYOUT.size else data)
        return binding, max(time.monotonic() - entered, 0.0)
    return None


def open_memory(path: Path) -> BinaryIO:
    """Open the memory that is shared under `path`; who keeps it open can read it when the process has been killed.

    Raises OSError where there is none. Nothing is opened but a regular file and this memory: the link in a copy of a
    run directory, or of a run on another machine, may lead to anything.
    """
    if path.is_symlink() and str(path.readlink().readlink()) != f"/memfd:{_name(path)} (deleted)":
        raise FileNotFoundError(path)
    return open_regular(path)


def iters_in(memory: BinaryIO) -> int:
    """Return the training iterations that were done when the memory was last written; 0 where it says none."""
    memory.seek(0)
    data = memory.read()
    return int(LAYOUT.unpack(data)[2]) if len(data) == LAYOUT.size else 0


def _name(path: Path) -> str:
    """Return what the memory is called that is shared under `path`. In a copy of the directory that is another name."""
    return f"hookflow {path.parent.stat().st_ino} {path.name}"


def _map(path: Path) -> tuple[mmap.mmap, Callable[[], object]]:
    """Return new memory that is shared under `path`, and what ends that: a link where the system can do it, or a file.

    A finalizer closes it with the memory.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # an old kernel, or a file system that knows no links
            return _map_sealed(path)
    path.write_bytes(bytes(LAYOUT.size))
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), LAYOUT.size), lambda: None


if sys.platform == "linux":
    import fcntl

    def _map_sealed(path: Path) -> tuple[mmap.mmap, Callable[[], object]]:
        file = os.memfd_create(_name(path), os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        target = f"/proc/{os.getpid()}/fd/{file}"
        try:
            os.ftruncate(file, LAYOUT.size)
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            memory = mmap.mmap(file, LAYOUT.size)
            path.symlink_to(target)
        except OSError:
            os.close(file)
            raise
        return memory, weakref.finalize(memory, _withdraw, path, target, file, os.getpid())


def _withdraw(path: Path, target: str, file: int, owner: int) -> None:
    """Leave no link behind that leads nowhere: programs that copy directories stumble over those."""
    if os.getpid() != owner:  # a fork of the process
        return
    os.close(file)
    with contextlib.suppress(OSError):
        if str(path.readlink()) == target:
            path.unlink()
