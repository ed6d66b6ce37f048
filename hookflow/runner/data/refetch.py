"""Batches of which a worker process hangs.

Others fetch them, so that no rank is left alone in an iteration.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hookflow.runner.data.source import Source, close
from hookflow.runner.process.signals import WorkerHangError


def can_refetch(data: Mapping[str, Source]) -> bool:
    """Return whether every batch that the workers of these sources fetch can be fetched again.

    That is so where each batch is a function of the run's seed, the epoch and its index: of a
    map-style dataset with a `loader`. A loader of the user's and a stream would begin anew.
    """
    return all(getattr(source, "can_refetch", False) for source in data.values())


def refetched_epoch(
    source: Source, epoch: int, start: int, say: Callable[..., None]
) -> Iterator[Any]:
    """Yield the batches of an epoch of a source that `can_refetch`, from batch `start` on.

    Where a worker hangs, it is killed, and new workers fetch that batch and the rest of the epoch.
    """
    before = None
    if hasattr(source, "state_dict"):
        before = source.state_dict()
    batches = source.epoch(epoch, start)
    index = start
    while True:
        try:
            batch = next(batches)
        except StopIteration:
            return
        except WorkerHangError as hang:
            say(f"{hang}: new workers fetch it, and the ranks finish this iteration", "warn")
            close(source)
            if index == start and hasattr(source, "load_state_dict"):
                source.load_state_dict(before)  # the order of the epoch is drawn again
            batches = source.epoch(epoch, index)
            continue
        index += 1
        yield batch
        del batch  # or it would take up memory while the next one is fetched
