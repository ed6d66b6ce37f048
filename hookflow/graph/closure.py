"""Which rows of a point come after which, by whatever way of edges."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence


def closure(follow: Callable[[int], Iterable[int]], order: Sequence[int]) -> dict[int, int]:
    """Return, for each row of `order` (a topological one), all rows that it leads to; `follow` gives the next ones.

    A set of rows is one whole number, a bit a row: so the closure of ten thousand rows costs milliseconds, where
    networkx's sets would hold fifty million entries.
    """
    after: dict[int, int] = {}
    for row in reversed(order):
        found = 0
        for then in follow(row):
            found |= after[then] | 1 << then
        after[row] = found
    return after
