"""Data flow at one point: who writes a slot hands it on to who reads it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product

from hookflow.errors import Problem, UserError
from hookflow.graph.keyed import Parts, widest
from hookflow.graph.node import Bound

MANY = 50
"""Above so many flow edges with the same slots, they are kept as one: who hands on, and whom to."""


MOST = 500_000
"""Pairs of hooks at a point that are looked at one by one, at most: those of a file of 1 MB could take hours."""


@dataclass(frozen=True, slots=True)
class Flow:
    """That each of the rows `firsts` hands `slots` on to each of the rows `thens`."""

    firsts: tuple[int, ...]
    thens: tuple[int, ...]
    slots: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.firsts) * len(self.thens)

    def pairs(self) -> Iterator[tuple[int, int, tuple[str, ...]]]:
        return product(self.firsts, self.thens, (self.slots,))


def flows(bound: Iterable[tuple[int, Bound]]) -> Iterator[Flow]:
    """Yield, of rows and what they are, who hands which slots on to whom; no pair of rows is in two flows.

    Two that both read and write a slot hand on nothing; one that only writes it comes first, one that only reads it
    last. A second half that writes what it reads ends the write of its first half: it may overwrite what another hook
    has written since, so nothing is handed on to it. Rows that touch the same are looked at as one. How two arounds are
    left follows from how they are entered.
    """
    alike: dict[tuple[tuple[str, ...], tuple[str, ...], bool], list[int]] = {}
    for row, one in bound:
        alike.setdefault((one.reads, one.writes, one.half == "exit"), []).append(row)
    parts = Parts(slot for reads, writes, _ in alike for slot in (*reads, *writes))
    kinds = [*alike]
    readers = _users((kind, parts.of(reads)) for kind, (reads, _, _) in enumerate(kinds))
    writers = _users((kind, parts.of(writes)) for kind, (_, writes, _) in enumerate(kinds))
    found: dict[tuple[int, int], list[str]] = {}
    shared = sorted(writers.keys() & readers.keys())
    count = sum(len(writers[slot]) * len(readers[slot]) for slot in shared)
    if min(count, len(kinds) ** 2) > MOST or count > 4 * MOST:
        message = f"the slots that hooks read and write at one point are shared in {count:,} ways, which are too many"
        raise UserError(Problem(message, hint="declare fewer different reads and writes"))
    for slot in shared:
        both = writers[slot] & readers[slot]
        restoring = {kind for kind in both if kinds[kind][2]}
        for pair in (*product(writers[slot] - both, readers[slot] - restoring), *product(both, readers[slot] - both)):
            found.setdefault(pair, []).append(slot)
    for (first, then), slots in found.items():
        if not (kinds[first][2] and kinds[then][2]):
            yield Flow(tuple(alike[kinds[first]]), tuple(alike[kinds[then]]), widest(slots))


def _users(touched: Iterable[tuple[int, Iterable[str]]]) -> dict[str, set[int]]:
    """Return the kinds of rows that touch each slot."""
    users: dict[str, set[int]] = {}
    for kind, slots in touched:
        for slot in slots:
            users.setdefault(slot, set()).add(kind)
    return users
