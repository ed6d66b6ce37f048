"""The edges at one point, or at both points of an `around_X`, as one graph; weaker edges give way to stronger ones.

Stated edges come first. Data flow is added where it contradicts none of them, and then none of its own. networkx, whose
import takes a tenth of a second, is imported only where edges contradict one another, and by `why`.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from heapq import heapify, heappop, heappush
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any

from hookflow.errors import Problem, UserError, Where
from hookflow.graph.plan import Binding, EdgeKind
from hookflow.graph.slots import Parts, widest

if TYPE_CHECKING:
    import networkx as nx

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


def closure(before: Sequence[Collection[int]], order: Iterable[int]) -> list[int]:
    """Return, for each row, all those that lead to it, as one number with a bit a row; `order` is a topological one."""
    ancestors = [0] * len(before)
    for row in order:
        result = 0
        for first in before[row]:
            result |= ancestors[first] | 1 << first
        ancestors[row] = result
    return ancestors


def between(before: Sequence[Collection[int]], chosen: Collection[int]) -> Iterator[Rows]:
    """Yield which of the `chosen` rows lead to which others, by whatever way, save what follows from other pairs."""
    if len(chosen) < 2:
        return
    order = ordered(before)
    place = {row: k for k, row in enumerate(order)}
    leading = closure([[place[first] for first in before[row]] for row in order], range(len(order)))
    mask = sum(1 << place[row] for row in chosen)
    for row in chosen:
        rest = leading[place[row]] & mask
        while rest:
            nearest = rest.bit_length() - 1
            yield order[nearest], row
            rest &= ~(leading[nearest] | 1 << nearest)


def rows_before(count: int, edges: Iterable[Rows]) -> list[list[int]]:
    """Return, for each of so many rows, those that an edge puts before it."""
    before: list[list[int]] = [[] for _ in range(count)]
    for first, then in edges:
        before[then].append(first)
    return before


SHOWN = 12
"""The number of cycles reported for one strong component; mending those, one has learnt enough to mend the rest."""


def cycles_of(edges: Iterable[Rows]) -> list[list[Rows]]:
    """Return cycles that together hold every edge which lies on any (up to `SHOWN` of a strong component)."""
    import networkx as nx

    graph = digraph(edges)
    result: list[list[Rows]] = []
    for component in _strong_components(graph):
        within = graph.subgraph(sorted(component))
        covered: set[Rows] = set()
        cycles: list[list[Rows]] = []
        for first, then in sorted(within.edges):
            if (first, then) not in covered and len(cycles) < SHOWN:
                cycles.append(list(pairwise([first, *nx.shortest_path(within, then, first)])))
                covered.update(cycles[-1])
        result += cycles
    return result


def _strong_components(graph: "nx.DiGraph[int]") -> list[set[int]]:
    """Return the sets of rows that lie on cycles together: an edge within one lies on a cycle."""
    import networkx as nx

    return [rows for rows in nx.strongly_connected_components(graph) if len(rows) > 1]


def digraph(edges: Iterable[Rows]) -> "nx.DiGraph[int]":
    """Return a graph of these edges."""
    import networkx as nx

    graph: nx.DiGraph[int] = nx.DiGraph()  # which, were it given the edges, would import numpy to look at them
    graph.add_edges_from(edges)
    return graph


MOST = 100_000
"""Pairs of hooks that are ordered one by one at a point, at most: those of a file of 1 MB could take hours."""

EXPLAINED = 100
"""Flows that gave way of which the reason is kept; to find it for all of them could take minutes."""


@dataclass(frozen=True, slots=True)
class Statement:
    """That the row `first` fires before the row `then`, who says so, and for what slots."""

    first: int
    then: int
    kind: EdgeKind
    where: Where
    slots: tuple[str, ...] = ()
    loose: bool = False


def flows(bound: Mapping[int, Binding]) -> Iterator[Statement]:
    """Yield the data flow between rows: an edge from each that writes a slot to each that reads it.

    Two that both read and write a slot hand on nothing; one that only writes it comes first, one that only reads it
    last. A second half that writes what it reads ends the write of its first half: it may overwrite what another hook
    has written since, so nothing is handed on to it. How two arounds are left follows from how they are entered.
    """
    parts = Parts(slot for item in bound.values() for slot in (*item.reads, *item.writes))
    readers: dict[str, set[int]] = {}
    writers: dict[str, set[int]] = {}
    for row, item in bound.items():
        for slots, users in ((item.reads, readers), (item.writes, writers)):
            for slot in parts.of(slots):
                users.setdefault(slot, set()).add(row)
    exits = {row for row, item in bound.items() if item.half == "exit"}
    result: dict[Rows, list[str]] = {}
    count = 0
    for slot in sorted(writers.keys() & readers.keys()):
        both = writers[slot] & readers[slot]
        for firsts, thens in ((writers[slot] - both, readers[slot] - (both & exits)), (both, readers[slot] - both)):
            count += len(firsts) * len(thens)
            if count > MOST:
                message = f"at one point, hooks write and read the same slots in more than {MOST:,} pairs"
                raise UserError(Problem(message, hint="declare fewer reads and writes"))
            for pair in product(firsts, thens):
                result.setdefault(pair, []).append(slot)
    for first, then in sorted(result):
        if bound[first].hook != bound[then].hook and not exits.issuperset((first, then)):
            yield Statement(first, then, "flow", Where(""), widest(result[first, then]))


class EdgeGraph:
    """The edges between rows, which are what fires at these points.

    The vertex of a row is its `spot`: the second half of an around where its first half does. The rows in `closing` are
    at the second point, which runs backwards. `overridden` are edges that gave way, each with those that it would have
    closed to a cycle; these are known of the first EXPLAINED of each addition of edges.
    """

    def __init__(self, spot: Sequence[int], closing: Collection[int]) -> None:
        self.edges: dict[Rows, Statement] = {}
        self.overridden: list[tuple[Statement, list[Statement]]] = []
        self.sorted: list[int] = []
        """All rows in an order that the edges allow."""
        self._spots = spot
        self._closing = closing

    @property
    def before(self) -> list[list[int]]:
        """For each row, those that an edge puts before it."""
        return rows_before(len(self._spots), self.edges)

    def sort(self) -> None:
        """Learn an order. Raises graphlib.CycleError where there is none."""
        self.sorted = ordered(self.before)

    def state(self, statement: Statement) -> None:
        """Add the stated edges; of two that say the same the first counts."""
        self.edges.setdefault(self._rows_of(statement), statement)

    def add_weak(self, statements: Iterable[Statement]) -> None:
        """Add edges save those that would close a cycle.

        First the edges go that stronger ones contradict, then those that contradict one another: all of them, so that
        what is left does not hang on the file's order.
        """
        stated = ((self._rows_of(statement), statement) for statement in statements)
        weak = {rows: statement for rows, statement in stated if rows not in self.edges}
        if not weak:
            return
        implied = closure(self.before, self.sorted)
        contradicted = {rows: weak.pop(rows) for rows in [*weak] if implied[rows[0]] >> rows[1] & 1}
        self._note(contradicted, self.edges)
        whole = self.edges | weak
        try:
            ordered(rows_before(len(self._spots), whole))
        except CycleError:
            components = _strong_components(digraph(whole))
            number = {row: k for k, rows in enumerate(components) for row in rows}
            lost = {rows: weak.pop(rows) for rows in [*weak] if number.get(rows[0], -1) == number.get(rows[1], -2)}
            self._note(lost, whole)
        self.edges |= weak
        self.sort()

    def _note(self, lost: Mapping[Rows, Statement], edges: Mapping[Rows, Statement]) -> None:
        """Note the flows that gave way; the first of them with the path that each would have closed to a cycle."""
        overruled = [rows for rows in sorted(lost) if lost[rows].kind == "flow"]
        if not overruled:
            return
        import networkx as nx

        graph = digraph(edges)
        for k, (first, then) in enumerate(overruled):
            path = nx.shortest_path(graph, then, first) if k < EXPLAINED else []
            steps = [edges[step] for step in pairwise(path)]
            statement = lost[first, then]
            self.overridden.append((statement, steps[::-1] if statement.then in self._closing else steps))

    def _rows_of(self, statement: Statement) -> Rows:
        """Return a statement as an edge of the graph, in which the second point runs backwards."""
        first, then = self._spots[statement.first], self._spots[statement.then]
        return (then, first) if statement.then in self._closing else (first, then)
