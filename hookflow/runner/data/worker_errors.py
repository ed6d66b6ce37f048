"""What a loader's worker has raised, in one line: PyTorch raises it again with a whole traceback as its message."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

CAUGHT = re.compile(r"Caught \w+ in DataLoader worker process (\d+)\.\nOriginal ")
"""How the message begins of what PyTorch raises in the place of a worker."""


class WorkerError(Exception):
    """A worker of a loader has raised. The message says which and what; the worker's own traceback is a note."""


@contextmanager
def explain_worker_errors() -> Iterator[None]:
    """Raise a WorkerError of one line, at the same place, for what a worker of a loader has raised."""
    try:
        yield
    except Exception as error:
        text = str(error)
        caught = CAUGHT.match(text)
        if caught is None:
            raise
        last = text.rstrip().rpartition("\n")[2].strip()
        short = WorkerError(f"worker {caught[1]}: {last}")
        for note in (text[caught.end() :].rstrip(), *getattr(error, "__notes__", ())):
            short.add_note(note)
        raise short.with_traceback(error.__traceback__) from None
