"""The end of the workers of a DataLoader."""

from __future__ import annotations

from typing import Any

GRACE = 5.0
"""Seconds to wait for what sends a worker its indices: one that stands still (SIGSTOP) may never take them."""


def end_workers(batches: Any) -> None:
    """End the workers of an iterator of a DataLoader, wherever they are, and wait for what they leave behind.

    PyTorch does not wait for the threads that send the workers their indices, each of which closes its pipe in the end.
    """
    batches._shutdown_workers()
    for queue in getattr(batches, "_index_queues", ()):
        if (feeder := getattr(queue, "_thread", None)) is not None:
            feeder.join(GRACE)
