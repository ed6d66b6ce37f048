"""The critical chain of a traced iteration.

It is what would have to be faster for the iteration to be shorter.

The training thread is on it, except where it waited for an offloaded hook. There the chain has the
firing that it waited for and those ahead of it, back to when the training thread queued the first
of them.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hookflow.monitor.background_lanes import LaneFiring

TRAINING = ""
"""The track of the training thread; that of an offloaded hook has the hook's name."""


class TrainingWait(NamedTuple):
    """A time in which the training thread waited for an offloaded hook.

    It is in microseconds from the iteration's begin.
    """

    hook: str
    began: float
    ended: float


class ChainLink(NamedTuple):
    """A piece of the chain in one track."""

    track: str
    begin: float
    end: float


def find_critical_chain(
    micros: float, waits: Sequence[TrainingWait], firings: Mapping[str, Sequence[LaneFiring]]
) -> list[ChainLink]:
    """Return the critical chain of an iteration of so many microseconds, without gaps."""
    links: list[ChainLink] = []
    reached = micros
    for wait in sorted(waits, key=lambda each: each.ended, reverse=True):
        if wait.ended > reached:
            continue  # the training waited while the chain was elsewhere
        queued = _find_queued(wait, firings.get(wait.hook, ()))
        if queued is None:
            continue
        links.append(ChainLink(TRAINING, wait.ended, reached))
        reached = max(queued, 0.0)
        links.append(ChainLink(wait.hook, reached, wait.ended))
    if reached > 0:
        links.append(ChainLink(TRAINING, 0.0, reached))
    return links[::-1]


def _find_queued(wait: TrainingWait, firings: Sequence[LaneFiring]) -> float | None:
    """Return when the firings were queued that a wait has waited for.

    It is the time of the first of those without a pause between them. None if no firing has ended
    within the wait, as where one was given up.
    """
    queued = None
    for firing in sorted(firings, key=lambda each: each.ended, reverse=True):
        if queued is None:
            if not wait.began < firing.ended <= wait.ended:
                continue
        elif firing.ended <= queued:
            break  # the hook's thread was idle until that firing was queued
        queued = firing.queued
    return queued
