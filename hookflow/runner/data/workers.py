"""The end of the workers of a DataLoader."""

from __future__ import annotations

from typing import Any


def end_workers(batches: Any) -> None:
    """End the workers that an iterator of a DataLoader has, wherever they are; nothing of them is left then.

    PyTorch does not wait for the threads that send the workers their indices, each of which closes its pipe in the end.
    """
    if (shut_down := getattr(batches, "_shutdown_workers", None)) is None:
        return
    shut_down()
    for queue in getattr(batches, "_index_queues", ()):
        if (feeder := getattr(queue, "_thread", None)) is not None:
            feeder.join()
