"""Whether a process lives, asked of the system. Pids are used again: its start tells it from another one."""

from __future__ import annotations

import psutil


def started_at(pid: int) -> float | None:
    """Return when the process of a pid has started, by the system's clock; None where none lives."""
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
    except (psutil.Error, ValueError, OverflowError):  # the last two: it is no pid
        return None
