"""The firings of offloaded hooks and the waits for them.

A trace keeps them while it is captured.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol


class BackgroundFiring(NamedTuple):
    """A firing of an offloaded hook.

    It was queued, began and ended in seconds of `time.perf_counter`.
    """

    binding: int
    it: int
    """The iteration that it is of."""
    queued: float
    began: float
    ended: float


class BackgroundWait(NamedTuple):
    """A time in which the training thread waited for an offloaded hook.

    It is in seconds of `time.perf_counter`.
    """

    hook: str
    began: float
    ended: float


BackgroundSpan = BackgroundFiring | BackgroundWait


class BackgroundSpans(Protocol):
    """Where the spans of offloaded hooks come from."""

    keeps: list[Callable[[BackgroundSpan], None]]
    """Called with each span that is over, in any thread, while iterations are traced."""

    def unfinished(self, now: float) -> Sequence[BackgroundFiring]:
        """Return the firings that run or wait; each is taken to end `now`."""
