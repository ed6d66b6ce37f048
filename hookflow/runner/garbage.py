"""When Python looks for garbage: not while a run is being built.

Importing torch and building a run makes some hundred thousand objects that all stay. To look through them again and
again takes a third of the time until the first iteration; to leave them out from then on spares the training the same.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[Callable[[], None]]:
    """Look for no garbage, until the function that is yielded is called; then only among what has come since."""
    collects = gc.isenabled()
    gc.disable()

    def collect() -> None:
        gc.freeze()
        if collects:
            gc.enable()

    try:
        yield collect
    finally:
        gc.unfreeze()
        if collects:
            gc.enable()
