"""Whether a process lives, asked of the system, and how it has ended. Its start tells a pid from one used again."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil

from hookflow.events.regular_file import read_regular


def started_at(pid: int) -> float | None:
    """Return when the process of a pid has started, by the system's clock; None where none lives."""
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
    except (psutil.Error, ValueError, OverflowError):  # the last two: it is no pid
        return None


def oom_kills() -> int | None:
    """Return how many processes the kernel's out-of-memory killer has killed since the machine started.

    Returns None where the kernel does not count them.
    """
    try:
        lines = read_regular(Path("/proc/vmstat")).decode().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)


def exit_code(code: int) -> int:
    """Return what a shell has for the exit code of a process: 128 and the number of the signal that killed it."""
    return code if code >= 0 else 128 - code


def signal_name(number: int) -> str:
    """Return the name of a signal, and of one that has none its number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
