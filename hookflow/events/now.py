"""Where a training process is: its current binding, in shared memory, and its stack.

The memory has twenty-four bytes.

Three native values of 64 bits: the id of the binding that is being called (-1: none), the time it
was entered (seconds of the machine's monotonic clock), and the training iterations done. The
training thread writes them without a lock or a system call. They name a hook that never returns,
and the last iteration of a killed process.

On Linux the memory is a sealed memfd, and the file in the run directory links to it through /proc:
truncating a mapped file would kill the process (SIGBUS). A killed process leaves a link that leads
nowhere. Elsewhere it is a plain file.
"""

import contextlib
import mmap
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from hookflow.events.reading import open_regular

NOW_LAYOUT = struct.Struct("@qdq")
NO_BINDING = -1


class NowMemory:
    """The shared memory under `path`, until it is closed or collected.

    Assign the binding's id to `ids[0]`, the time to `times[0]` and the iterations done to
    `iters[0]`.
    """

    def __init__(self, path: Path) -> None:
        # The link of an earlier attempt is removed first: it may lead to memory of another process
        # by now.
        path.unlink(missing_ok=True)
        self._memory, self._withdraw = _map(path)
        view = memoryview(self._memory)
        self.ids, self.times, self.iters = (
            view[:8].cast("q"),
            view[8:16].cast("d"),
            view[16:].cast("q"),
        )
        self.ids[0], self.times[0] = NO_BINDING, time.perf_counter()

    def close(self) -> None:
        """Give the memory back; to assign to it is a ValueError from here on."""
        for view in (self.ids, self.times, self.iters):
            view.release()
        self._memory.close()
        self._withdraw()


def read_current_binding(path: Path) -> tuple[int, float] | None:
    """Return the id of the current binding (or NO_BINDING) and the seconds since it was entered.

    Returns None where there is no memory, as once the process has ended.
    """
    with contextlib.suppress(OSError, struct.error), open_memory(path) as memory:
        binding, entered, _ = NOW_LAYOUT.unpack(memory.read())
        return binding, max(time.monotonic() - entered, 0.0)
    return None


def open_memory(path: Path) -> BinaryIO:
    """Open the memory that is shared under `path`.

    It stays readable once the process has been killed. Raises OSError where there is none. The link
    in a copied run directory may lead to anything, and is not followed.
    """
    if path.is_symlink() and str(path.readlink().readlink()) != f"/memfd:{_name(path)} (deleted)":
        raise FileNotFoundError(path)
    return open_regular(path)


def read_num_iters(memory: BinaryIO) -> int:
    """Return the training iterations that were done when the memory was last written.

    It is 0 where it says none.
    """
    memory.seek(0)
    data = memory.read()
    if len(data) != NOW_LAYOUT.size:
        return 0
    _, _, iterations = NOW_LAYOUT.unpack(data)
    return int(iterations)


def _name(path: Path) -> str:
    """Return the name of the memory that is shared under `path`.

    It is another one in a copy of the directory.
    """
    return f"hookflow {path.parent.stat().st_ino} {path.name}"


def _map(path: Path) -> tuple[mmap.mmap, Callable[[], object]]:
    """Return new memory that is shared under `path`, and the function that withdraws it."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # an old kernel, or a file system that knows no links
            return _map_sealed(path)
    path.write_bytes(bytes(NOW_LAYOUT.size))
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), NOW_LAYOUT.size), lambda: None


if sys.platform == "linux":
    import fcntl

    def _map_sealed(path: Path) -> tuple[mmap.mmap, Callable[[], object]]:
        file = os.memfd_create(_name(path), os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        target = f"/proc/{os.getpid()}/fd/{file}"
        try:
            os.ftruncate(file, NOW_LAYOUT.size)
            fcntl.fcntl(
                file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
            )
            memory = mmap.mmap(file, NOW_LAYOUT.size)
            path.symlink_to(target)
        except OSError:
            os.close(file)
            raise
        return memory, weakref.finalize(memory, _remove_link, path, target, file, os.getpid())


def _remove_link(path: Path, target: str, file: int, owner: int) -> None:
    """Remove the link to memory that is gone: programs that copy directories stumble over it."""
    if os.getpid() != owner:  # a fork of the process
        return
    os.close(file)
    with contextlib.suppress(OSError):
        if str(path.readlink()) == target:
            path.unlink()


STACK_DUMP_SIGNAL = signal.SIGUSR2
"""The signal at which a training process writes the stack of its training thread.

It writes into its output, wherever it is.
"""

STACK_FRAME_PATTERN = re.compile(r'  File "(?:.*/site-packages/)?(.*)", line (\d+) in (.*)')
"""A frame as the process writes it, which is returned as py-spy has it."""

PATIENCE, POLL = 2.0, 0.05
"""Seconds that the process has for that, and between looks."""


def stack(pid: int, output: Path) -> list[str]:
    """Return the frames of the training thread of a process, the innermost first.

    There are none where they cannot be had. They are those of py-spy where it is installed and
    allowed to look, else those that the process writes itself.
    """
    spy = shutil.which("py-spy")
    if spy:
        frames = _read_pyspy_frames(spy, pid)
        if frames:
            return frames
    if not _is_handled(pid):
        return []
    text = _read_dumped_stack(pid, output)
    frames_text = text.rpartition("(most recent call first):\n")[2]
    return [
        STACK_FRAME_PATTERN.sub(r"\3 (\1:\2)", line)
        for line in frames_text.splitlines()
        if line.startswith("  File ")
    ]


def _read_pyspy_frames(spy: str, pid: int) -> list[str]:
    """Return the frames of the main thread of a process by py-spy; none where it may not look."""
    dumped = subprocess.run(
        [spy, "dump", "--pid", str(pid)], capture_output=True, text=True, check=False
    )
    if dumped.returncode != 0:
        return []
    for thread in re.split(r"^(?=Thread )", dumped.stdout, flags=re.MULTILINE):
        heading, _, frames = thread.partition("\n")
        if '"MainThread"' in heading:
            return [line.strip() for line in frames.splitlines() if line.startswith(" ")]
    return []


def _read_dumped_stack(pid: int, output: Path) -> str:
    """Let a process write its stack into its output.

    Returns what has been written there since.
    """
    with output.open("rb") as file:
        file.seek(0, os.SEEK_END)
        os.kill(pid, STACK_DUMP_SIGNAL)
        deadline = time.monotonic() + PATIENCE
        data = b""
        while time.monotonic() < deadline:
            time.sleep(POLL)
            more = file.read()
            if data and not more:  # nothing has come for a while: it is whole
                break
            data += more
    return data.decode(errors="replace")


def _is_handled(pid: int) -> bool:
    """Return whether a process of this machine handles the signal, which would end it else."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:  # another system, or it has ended
        return False
    for line in status.splitlines():
        if line.startswith("SigCgt:"):
            caught_signals = int(line.split()[1], 16)
            return bool(caught_signals >> (STACK_DUMP_SIGNAL - 1) & 1)
    return False
