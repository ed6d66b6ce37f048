"""When Python looks for garbage: seldom while a run is being built, and at once when one is over that others follow.

Importing torch and building a run makes some hundred thousand objects that nearly all stay. To look through them as
often as Python does takes a seventh of the time until the first iteration; never to look keeps 4 MB that are garbage.
To leave those that stay out from then on spares the training the same.

A run that is over is garbage in circles, its models with it: the runner knows the hooks, and they know the run. Where
one run follows the other in a process, nothing of that may wait until Python gets round to it.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

OBJECTS = 5000
"""How many more objects there must be before Python looks again; without this, 700."""


@contextmanager
def seldom_collected() -> Iterator[Callable[[], None]]:
    """Look for garbage seldom, until the function that is yielded is called; then only among what has come since."""
    usual = gc.get_threshold()
    gc.set_threshold(OBJECTS, *usual[1:])

    def collect() -> None:
        gc.freeze()
        gc.set_threshold(*usual)

    try:
        yield collect
    finally:
        gc.unfreeze()
        gc.set_threshold(*usual)


@contextmanager
def collected_between() -> Iterator[Callable[[], object]]:
    """Yield what collects the garbage that has come since; it does not look through what was there before."""
    gc.freeze()
    try:
        yield gc.collect
    finally:
        gc.unfreeze()
