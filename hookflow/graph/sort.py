"""A topological sort that takes, of all rows that may come next, the smallest by a key.

networkx has one; but to import networkx takes a tenth of a second, of the half that a command may take, and it would
be imported each time for a sort that the standard library does but for the key. What is tangled goes to networkx
(`hookflow.graph.strong_components`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from graphlib import TopologicalSorter
from heapq import heapify, heappop, heappush
from typing import Any

Rows = tuple[int, int]
"""Two vertices of a point, by their place among them: the first fires before the second."""


def ordered(before: Sequence[Collection[int]], key: Callable[[int], Any] = int) -> list[int]:
    """Return all rows, each behind those `before` it. Raises graphlib.CycleError where there is a cycle."""
    sorter = TopologicalSorter(dict(enumerate(before)))
    sorter.prepare()
    ready = [(key(row), row) for row in sorter.get_ready()]
    heapify(ready)
    order = []
    while ready:
        _, row = heappop(ready)
        order.append(row)
        sorter.done(row)
        for then in sorter.get_ready():
            heappush(ready, (key(then), then))
    return order
