"""The firings of offloaded hooks in a trace: a lane for each hook."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple


class LaneFiring(NamedTuple):
    """A firing of an offloaded hook, of the iteration `it`; in microseconds."""

    queued: float
    began: float
    ended: float
    it: int


class BackgroundLane:
    """The firings of one offloaded hook, in their order. Its thread has one at a time."""

    def __init__(self, hook: str, firings: Iterable[LaneFiring]) -> None:
        self.hook = hook
        self.firings = sorted(firings)
        self._queued = [firing.queued for firing in self.firings]
        self._ended = [firing.ended for firing in self.firings]

    def firings_within(self, start: float, micros: float) -> list[LaneFiring]:
        """Return the firings that ran or were queued in an iteration.

        Times are in microseconds from its `start` on.
        """
        first = bisect_right(self._ended, start)
        last = bisect_left(self._queued, start + micros)
        found = []
        for firing in self.firings[first:last]:
            found.append(
                LaneFiring(
                    firing.queued - start, firing.began - start, firing.ended - start, firing.it
                )
            )
        return found


def read_lanes(events: Iterable[Mapping[str, Any]]) -> list[BackgroundLane]:
    """Return the lanes of the events of offloaded hooks."""
    by_hook: dict[str, list[LaneFiring]] = {}
    for event in events:
        began = float(event["ts"])
        ended = began + float(event["dur"])
        args = event["args"]
        firing = LaneFiring(float(args["queued"]), began, ended, int(args["iteration"]))
        by_hook.setdefault(str(event["name"]), []).append(firing)
    return [BackgroundLane(hook, firings) for hook, firings in by_hook.items()]
