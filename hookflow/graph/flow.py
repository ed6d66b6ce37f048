"""Data flow at one point: who writes a slot hands it on to who reads it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product

from hookflow.graph.keyed import Parts, widest
from hookflow.graph.node import Bound
from hookflow.graph.sort import Rows


def flows(bound: Iterable[tuple[int, Bound]]) -> Iterator[tuple[int, int, tuple[str, ...]]]:
    """Yield, of rows and what they are, who hands which slots on to whom.

    Two that both read and write a slot hand on nothing; one that only writes it comes first, one that only reads it
    last.
    """
    rows = list(bound)
    parts = Parts(slot for _, one in rows for slot in (*one.reads, *one.writes))
    readers = _users((row, parts.of(one.reads)) for row, one in rows)
    writers = _users((row, parts.of(one.writes)) for row, one in rows)
    found: dict[Rows, list[str]] = {}
    for slot in sorted(writers.keys() & readers.keys()):
        both = writers[slot] & readers[slot]
        for pair in (*product(writers[slot] - both, readers[slot]), *product(both, readers[slot] - both)):
            found.setdefault(pair, []).append(slot)
    for first, then in sorted(found):
        yield first, then, widest(found[first, then])


def _users(touched: Iterable[tuple[int, Iterable[str]]]) -> dict[str, set[int]]:
    """Return the rows that touch each slot."""
    users: dict[str, set[int]] = {}
    for row, slots in touched:
        for slot in slots:
            users.setdefault(slot, set()).add(row)
    return users
