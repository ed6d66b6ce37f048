"""Which phase each hook fires in, once edges have had their say.

A hook that must stand before an early one is early too, and one that must stand after a late one is late: the hook that
wants nothing of the kind is the one that moves. So phases never run against the edges. Where a late hook must stand
before an early one, the late one moves.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from hookflow.graph.plan import PHASES

NORMAL = PHASES.index("normal")
LAST = len(PHASES) - 1


def moved(
    phases: Sequence[int], before: Sequence[Collection[int]], order: Sequence[int], backwards: Collection[int]
) -> list[int]:
    """Return the phase of each row; `before` are the rows that edges put before it, `order` is a topological one.

    At the second point of an around the graph runs backwards, and so do the phases of the rows that stand there alone:
    early is late. Which of two moves must not hang on that, so these rows are settled among themselves first.
    """
    found = list(phases)
    wanted = [NORMAL] * len(found)  # the earliest phase of those that each row must stand before, at the second point
    for row in order if backwards else ():
        wanted[row] = max([wanted[row], *(wanted[first] for first in before[row])])
        if row in backwards:
            found[row] = max(found[row], wanted[row]) if wanted[row] > NORMAL else found[row]
            wanted[row] = max(wanted[row], found[row])
    for row in reversed(order):
        for first in before[row] if found[row] < NORMAL else ():
            found[first] = min(found[first], found[row])
    for row in order:
        found[row] = max([found[row], *(found[first] for first in before[row])])
    return found
