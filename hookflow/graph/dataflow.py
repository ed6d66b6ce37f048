"""Data flow at one point: an edge from each binding that writes a slot to each that reads it."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import product

from hookflow.errors import Problem, UserError, Where
from hookflow.graph.plan import DeclaredBinding, EdgeKind
from hookflow.graph.slots import SlotParts, select_widest_slots

MAX_PAIRS = 100_000
"""The most pairs of a writer and a reader at one point.

A file of 1 MB could state enough pairs to take hours.
"""


@dataclass(frozen=True, slots=True)
class EdgeStatement:
    """The statement that the row `first` fires before the row `then`.

    It has its source and, for data flow, its slots. A row is a binding's place among those of the
    points that are ordered together.
    """

    first: int
    then: int
    kind: EdgeKind
    where: Where
    slots: tuple[str, ...] = ()
    loose: bool = False
    group: str = ""


def find_flows(bound: Mapping[int, DeclaredBinding]) -> Iterator[EdgeStatement]:
    """Yield the data flow between the rows of one point.

    Raises UserError for more than MAX_PAIRS pairs.

    Two hooks that both read and write a slot hand on nothing to each other. A hook that only writes
    it comes before them, a hook that only reads it after them. The order in which two arounds are
    left follows from how they are entered, so there is no flow between two second halves.
    """
    exits = set()
    for row, binding in bound.items():
        if binding.half == "exit":
            exits.add(row)
    slots_of_pair: defaultdict[tuple[int, int], list[str]] = defaultdict(list)
    num_pairs = 0
    for slot, writers, readers in _users_of_slots(bound):
        for sources, targets in _list_handovers(writers, readers, exits):
            num_pairs += len(sources) * len(targets)
            if num_pairs > MAX_PAIRS:
                message = (
                    f"at one point, hooks write and read the same slots in more than {MAX_PAIRS:,}"
                    " pairs"
                )
                raise UserError(Problem(message, hint="declare fewer reads and writes"))
            for pair in product(sources, targets):
                slots_of_pair[pair].append(slot)
    for first, then in sorted(slots_of_pair):
        same_hook = bound[first].hook == bound[then].hook
        both_exits = first in exits and then in exits
        if same_hook or both_exits:
            continue
        yield EdgeStatement(
            first, then, "flow", Where(""), select_widest_slots(slots_of_pair[first, then])
        )


def _users_of_slots(
    bound: Mapping[int, DeclaredBinding],
) -> Iterator[tuple[str, set[int], set[int]]]:
    """Yield each slot that is written and read, with the rows that do either."""
    touched: list[str] = []
    for binding in bound.values():
        touched += binding.reads
        touched += binding.writes
    parts = SlotParts(touched)
    readers: defaultdict[str, set[int]] = defaultdict(set)
    writers: defaultdict[str, set[int]] = defaultdict(set)
    for row, binding in bound.items():
        for slot in parts.of(binding.reads):
            readers[slot].add(row)
        for slot in parts.of(binding.writes):
            writers[slot].add(row)
    for slot in sorted(writers.keys() & readers.keys()):
        yield slot, writers[slot], readers[slot]


def _list_handovers(
    writers: set[int], readers: set[int], exits: set[int]
) -> list[tuple[Collection[int], Collection[int]]]:
    """Return the groups of rows that hand a slot on, each with the group that takes it.

    The second half of an around that writes what it reads ends the write of its first half. It may
    overwrite what another hook has written since, so nothing is handed on to it.
    """
    modifiers = writers & readers
    pure_writers = writers - modifiers
    pure_readers = readers - modifiers
    return [
        (pure_writers, pure_readers | (modifiers - exits)),
        (modifiers, pure_readers),
    ]
