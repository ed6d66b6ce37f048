"""What a loader's worker has raised, in one line: PyTorch raises it again with a whole traceback for its words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

CAUGHT = re.compile(r"Caught \w+ in DataLoader worker process (\d+)\.\nOriginal ")
"""How the words begin of what PyTorch raises in the place of a worker."""


class WorkerError(Exception):
    """A worker of a loader has raised. The words say which and what; the worker's own traceback is a note."""


@contextmanager
def told_of_workers() -> Iterator[None]:
    """Raise WorkerError for what a worker of a loader has raised. It has come the same way, and ends where that did."""
    try:
        yield
    except Exception as error:
        text = str(error)
        caught = CAUGHT.match(text)
        if caught is None:
            raise
        last = text.rstrip().rpartition("\n")[2].strip()
        told = WorkerError(f"worker {caught[1]}: {last}")
        for note in (text[caught.end() :].rstrip(), *getattr(error, "__notes__", ())):
            told.add_note(note)
        raise told.with_traceback(error.__traceback__) from None
