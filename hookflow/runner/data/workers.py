"""The beginning and the end of the workers of a DataLoader."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from threading import Timer
from typing import Any

from torch.utils.data._utils.signal_handling import _remove_worker_pids  # type: ignore[attr-defined]

GRACE = 5.0
"""Seconds that all workers of a loader have to leave together; then they are killed."""


def ignore_signals(worker: int) -> None:
    """Ignore Ctrl-C in a worker, and a SIGTERM to all processes of a job: the training decides what follows.

    It may want some more batches.
    """
    for number in (signal.SIGINT, signal.SIGUSR1, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def let_be_killed(batches: Any) -> None:
    """Have PyTorch, and Python at its exit, end workers that ignore SIGTERM by SIGKILL."""
    for worker in getattr(batches, "_workers", ()):
        worker._popen.terminate = partial(_kill, worker.pid)  # a method of its own would keep it, and its files, alive


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def end_workers(batches: Any, name: str, say: Callable[..., None]) -> None:
    """End the workers of an iterator of a DataLoader, wherever they are, and wait for what they leave behind.

    PyTorch gives each worker in turn some seconds; here all have GRACE together. It does not wait for the threads that
    send the workers their indices, each of which closes its pipe in the end.
    """
    alive = {number: worker for number, worker in enumerate(batches._workers) if worker.is_alive()}
    if batches._worker_pids_set:  # else PyTorch raises for each worker that is killed
        _remove_worker_pids(id(batches))
        batches._worker_pids_set = False
    killer = Timer(GRACE, lambda: [worker.kill() for worker in alive.values()])
    killer.start()
    try:
        batches._shutdown_workers()
    finally:
        killer.cancel()
    for number, worker in alive.items():
        worker.join(GRACE)
        if worker.exitcode == -signal.SIGKILL:
            text = f"worker {number} of {name} (pid {worker.pid}) did not leave within {GRACE:g} s and was killed"
            say(f"{text} (SIGKILL): it hung in the dataset or in collate", "warn")
    for queue in getattr(batches, "_index_queues", ()):
        if (feeder := getattr(queue, "_thread", None)) is not None:
            feeder.join(GRACE)
