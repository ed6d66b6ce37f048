"""The edges at one point, or at both points of an `around_X`, as one graph; weaker edges give way to stronger ones.

Stated edges come first. Data flow is added where it contradicts none of them, and then none of its own. networkx, whose
import takes a tenth of a second, is imported only where edges contradict one another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from heapq import heapify, heappop, heappush
from itertools import accumulate, chain, compress, pairwise, product
from operator import or_
from typing import TYPE_CHECKING, Any

from hookflow.errors import Problem, UserError, Where
from hookflow.graph.plan import Binding, EdgeKind
from hookflow.graph.slots import Parts, widest
from hookflow.numbers import counted

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
    """Return, for each row, all those that lead to it; `order` is a topological one.

    A set of rows is one whole number, a bit a row: the closure of 2,000 rows with 20,000 edges takes 0.01 s, where
    networkx's takes 1.9 s and 170 MB, and grows with the square.
    """
    ancestors = [0] * len(before)
    for row in order:
        result = 0
        for first in before[row]:
            result |= ancestors[first] | 1 << first
        ancestors[row] = result
    return ancestors


def ancestors(before: Sequence[Collection[int]]) -> list[int]:
    """Return the closure of rows of which no order is known yet."""
    return closure(before, ordered(before))


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

    graph = _networkx(edges)
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


def _strong_components(graph: nx.DiGraph[int]) -> list[set[int]]:
    """Return the sets of rows that lie on cycles together: an edge within one lies on a cycle."""
    import networkx as nx

    return [rows for rows in nx.strongly_connected_components(graph) if len(rows) > 1]


def _networkx(edges: Iterable[Rows]) -> nx.DiGraph[int]:
    import networkx as nx

    graph: nx.DiGraph[int] = nx.DiGraph()  # which, were it given the edges, would import numpy to look at them
    graph.add_edges_from(edges)
    return graph


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


def flows(bound: Iterable[tuple[int, Binding]]) -> Iterator[Flow]:
    """Yield, of rows and what they are, who hands which slots on to whom; no pair of rows is in two flows.

    Two that both read and write a slot hand on nothing; one that only writes it comes first, one that only reads it
    last. A second half that writes what it reads ends the write of its first half: it may overwrite what another hook
    has written since, so nothing is handed on to it. Rows that touch the same are looked at as one. How two arounds are
    left follows from how they are entered.
    """
    alike: dict[tuple[tuple[str, ...], tuple[str, ...], bool], list[int]] = {}
    for row, item in bound:
        alike.setdefault((item.reads, item.writes, item.half == "exit"), []).append(row)
    parts = Parts(slot for reads, writes, _ in alike for slot in (*reads, *writes))
    kinds = [*alike]
    readers = _users((kind, parts.of(reads)) for kind, (reads, _, _) in enumerate(kinds))
    writers = _users((kind, parts.of(writes)) for kind, (_, writes, _) in enumerate(kinds))
    result: dict[tuple[int, int], list[str]] = {}
    shared = sorted(writers.keys() & readers.keys())
    count = sum(len(writers[slot]) * len(readers[slot]) for slot in shared)
    if min(count, len(kinds) ** 2) > MOST or count > 4 * MOST:
        message = f"the slots that hooks read and write at one point are shared in {count:,} ways, which are too many"
        raise UserError(Problem(message, hint="declare fewer different reads and writes"))
    for slot in shared:
        both = writers[slot] & readers[slot]
        restoring = {kind for kind in both if kinds[kind][2]}
        for pair in (*product(writers[slot] - both, readers[slot] - restoring), *product(both, readers[slot] - both)):
            result.setdefault(pair, []).append(slot)
    for (first, then), slots in result.items():
        if not (kinds[first][2] and kinds[then][2]):
            yield Flow(tuple(alike[kinds[first]]), tuple(alike[kinds[then]]), widest(slots))


def _users(touched: Iterable[tuple[int, Iterable[str]]]) -> dict[str, set[int]]:
    """Return the kinds of rows that touch each slot."""
    users: dict[str, set[int]] = {}
    for kind, slots in touched:
        for slot in slots:
            users.setdefault(slot, set()).add(kind)
    return users


EXPLAINED = 100
"""Flows that gave way of which it is kept against what; of all of them it could take minutes to find out."""


@dataclass(frozen=True, slots=True)
class Statement:
    """That the row `first` fires before the row `then`, who says so, and for what slots."""

    first: int
    then: int
    kind: EdgeKind
    where: Where
    slots: tuple[str, ...] = ()
    loose: bool = False


class EdgeGraph:
    """The edges between rows, which are what fires at these points; `names` are those of their hooks.

    The vertex of a row is its `spot`: the second half of an around where its first half does. The rows in `closing` are
    at the second point, which runs backwards. Flows of many edges are kept whole, as `bundles`: each is one more row,
    behind the others, which stands after all that hand on and before all that are handed to. `overridden` are edges
    that gave way, each with those that it would have closed to a cycle. At most EXPLAINED of them are kept for each
    addition of edges; `overridden_more` counts the others at the first point and at the second one (False, True).
    """

    def __init__(self, names: Sequence[str], spot: Sequence[int], closing: Collection[int]) -> None:
        self.edges: dict[Rows, Statement] = {}
        self.bundles: list[Flow] = []
        self.overridden: list[tuple[Statement, list[Statement]]] = []
        self.overridden_more = Counter[bool]()
        self.sorted: list[int] = []
        """All rows in an order that the edges allow."""
        self._implied: list[int] | None = None
        self.names = names
        self.spots = spot
        self.closing = closing

    @property
    def before(self) -> list[list[int]]:
        """For each row, bundles too, those that an edge puts before it."""
        return self._before(self.edges, self.bundles)

    @property
    def implied(self) -> list[int]:
        """For each row, all those that lead to it by whatever way; made once for all edges that are sorted."""
        if self._implied is None:
            self._implied = closure(self.before, self.sorted)
        return self._implied

    def sort(self) -> None:
        """Learn an order. Raises graphlib.CycleError where there is none."""
        self.sorted, self._implied = ordered(self.before), None

    def state(self, statement: Statement) -> None:
        """Add the stated edges; of two that say the same the first counts."""
        self.edges.setdefault(self._rows_of(statement), statement)

    def add_flows(self, result: Sequence[Flow]) -> None:
        """Add an edge from each writer of a slot to its readers, save where that would close a cycle."""
        bundles: list[Flow] = []
        single = [flow for flow in result if len(flow) <= MANY]
        if len(single) < len(result):
            parting = _Parting(self)
            for flow in result:
                if len(flow) > MANY:
                    kept, rest, lost = parting.parts(flow)
                    bundles += kept
                    single += rest
                    self._count(lost)
        if (count := sum(map(len, single))) > MOST:
            message = f"{counted(count, 'edge')} between hooks that share slots are too many to be looked at one by one"
            raise UserError(Problem(message, hint="state fewer edges between hooks that share a slot"))
        self._add(self._single(single), bundles)

    def add_weak(self, statements: Iterable[Statement]) -> None:
        """Add edges save those that would close a cycle."""
        self._add({self._rows_of(statement): statement for statement in statements}, [])

    def _add(self, weak: dict[Rows, Statement], bundles: Sequence[Flow]) -> None:
        """Add edges save those that would close a cycle; no stronger one contradicts the `bundles`.

        First the edges go that stronger ones contradict, then those that contradict one another: all of them, so that
        what is left does not hang on the file's order.
        """
        if not weak and not bundles:
            return
        implied = self.implied
        contradicted = {rows: weak.pop(rows) for rows in [*weak] if implied[rows[0]] >> rows[1] & 1}
        self._note(contradicted, self.edges, self.bundles)
        try:
            ordered(self._before(chain(self.edges, weak), [*self.bundles, *bundles]))
        except CycleError:
            bundles = self._untangled(weak, bundles)
        self.edges |= weak
        self.bundles += bundles
        self.sort()

    def _untangled(self, weak: dict[Rows, Statement], bundles: Sequence[Flow]) -> list[Flow]:
        """Take all edges out of `weak`, and out of the bundles, that lie on a cycle; return what is left of these."""
        every = [*self.bundles, *bundles]
        whole = self.edges | weak
        components = _strong_components(_networkx(chain(whole, self._arcs(every))))
        number = {row: k for k, rows in enumerate(components) for row in rows}
        lost = {rows: weak.pop(rows) for rows in [*weak] if number.get(rows[0], -1) == number.get(rows[1], -2)}
        kept: list[Flow] = []
        for hub, flow in enumerate(bundles, len(self.names) + len(self.bundles)):
            component = components[number[hub]] if hub in number else set()
            firsts, other_firsts = self._parted(flow.firsts, component)
            thens, other_thens = self._parted(flow.thens, component)
            for part in (Flow(other_firsts, flow.thens, flow.slots), Flow(firsts, other_thens, flow.slots)):
                if len(part) > MANY:
                    kept.append(part)
                else:
                    weak |= self._single([part])
            tied = Flow(firsts, thens, flow.slots)
            if len(tied) > MANY:
                self._count([tied])
            else:
                lost |= self._single([tied])
        self._note(lost, whole, every)
        return kept

    def _parted(self, rows: Sequence[int], vertices: Collection[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the rows that are among the vertices, and the others."""
        within = [self.spots[row] in vertices for row in rows]
        return tuple(compress(rows, within)), tuple(row for row, is_in in zip(rows, within, strict=True) if not is_in)

    def _count(self, flows: Iterable[Flow]) -> None:
        for flow in flows:
            self.overridden_more[flow.thens[0] in self.closing] += len(flow)

    def _note(self, lost: Mapping[Rows, Statement], edges: Mapping[Rows, Statement], bundles: Sequence[Flow]) -> None:
        """Note the flows that gave way; the first of them with the way that each would have closed to a cycle."""
        flows = {rows: lost[rows] for rows in sorted(lost) if lost[rows].kind == "flow"}
        if not flows:
            return
        import networkx as nx

        graph = _networkx(chain(edges, self._arcs(bundles)))
        for k, ((first, then), statement) in enumerate(flows.items()):
            if k < EXPLAINED:
                steps = [*self._steps(nx.shortest_path(graph, then, first), edges, bundles)]
                self.overridden.append((statement, steps[::-1] if statement.then in self.closing else steps))
            else:
                self.overridden_more[statement.then in self.closing] += 1

    def _steps(
        self, path: Sequence[int], edges: Mapping[Rows, Statement], bundles: Sequence[Flow]
    ) -> Iterator[Statement]:
        """Yield the edges of a path of rows; through the row of a bundle leads one of its edges."""
        through: Flow | None = None
        for first, then in pairwise(path):
            if then >= len(self.names):
                through, tail = bundles[then - len(self.names)], first
            elif through:
                at = {self.spots[row]: row for row in (*through.firsts, *through.thens)}
                begin, end = (then, tail) if through.thens[0] in self.closing else (tail, then)
                yield Statement(at[begin], at[end], "flow", Where(""), through.slots)
                through = None
            else:
                yield edges[first, then]

    def _single(self, flows: Iterable[Flow]) -> dict[Rows, Statement]:
        """Return an edge for each pair of flows, unless it is stated, too."""
        edges: dict[Rows, Statement] = {}
        for first, then, slots in sorted(
            pair for flow in flows for pair in product(flow.firsts, flow.thens, [flow.slots])
        ):
            if self.names[first] != self.names[then]:
                statement = Statement(first, then, "flow", Where(""), slots)
                if (rows := self._rows_of(statement)) not in self.edges:
                    edges[rows] = statement
        return edges

    def _rows_of(self, statement: Statement) -> Rows:
        """Return a statement as an edge of the graph, in which the second point runs backwards."""
        first, then = self.spots[statement.first], self.spots[statement.then]
        return (then, first) if statement.then in self.closing else (first, then)

    def _arcs(self, bundles: Sequence[Flow]) -> Iterator[Rows]:
        """Yield the edges of the graph that lead to and from the rows of bundles."""
        for hub, flow in enumerate(bundles, len(self.names)):
            backwards = flow.thens[0] in self.closing
            tails, heads = (flow.thens, flow.firsts) if backwards else (flow.firsts, flow.thens)
            yield from ((self.spots[row], hub) for row in tails)
            yield from ((hub, self.spots[row]) for row in heads)

    def _before(self, edges: Iterable[Rows], bundles: Sequence[Flow]) -> list[list[int]]:
        return rows_before(len(self.names) + len(bundles), chain(edges, self._arcs(bundles)))


class _Parting:
    """Parts flows of many edges into bundles: no edge of one is stated, too, or contradicted, or leads to its own hook.

    A flow is a rectangle of edges, of rows that begin them and rows that end them, both in an order that the stated
    edges allow. It is halved until a part has no such edge, or has contradicted ones alone, or is small.
    """

    def __init__(self, graph: EdgeGraph) -> None:
        self._graph = graph
        self._place = {row: place for place, row in enumerate(graph.sorted)}
        self._stated: dict[int, int] = {}
        for first, then in graph.edges:
            self._stated[first] = self._stated.get(first, 0) | 1 << then

    def parts(self, flow: Flow) -> tuple[list[Flow], list[Flow], list[Flow]]:
        """Return what can be kept whole, what has to be looked at edge by edge, and what is contradicted whole."""
        graph = self._graph
        spots, names = graph.spots, graph.names
        backwards = flow.thens[0] in graph.closing
        sides = (flow.thens, flow.firsts) if backwards else (flow.firsts, flow.thens)
        tails, heads = (sorted(rows, key=lambda row: self._place[spots[row]]) for rows in sides)
        upto = [0, *accumulate((1 << spots[row] for row in heads), or_)]
        own: dict[str, int] = {}
        for row in heads:
            own[names[row]] = own.get(names[row], 0) | 1 << spots[row]
        against = [graph.implied[spots[row]] for row in tails]
        barred = [
            implied | self._stated.get(spots[row], 0) | own.get(names[row], 0)
            for implied, row in zip(against, tails, strict=True)
        ]
        kept: list[Flow] = []
        single: list[Flow] = []
        lost: list[Flow] = []
        waiting = [(0, len(tails), 0, len(heads))]
        while waiting:
            a, b, c, d = waiting.pop()
            mask, small = upto[d] ^ upto[c], (b - a) * (d - c) <= MANY
            free = not any(row & mask for row in barred[a:b])
            if small or free or all(row & mask == mask for row in against[a:b]):
                rows = tuple(sorted(tails[a:b])), tuple(sorted(heads[c:d]))
                firsts, thens = rows[::-1] if backwards else rows
                (single if small else kept if free else lost).append(Flow(firsts, thens, flow.slots))
            elif b - a >= d - c:
                waiting += ((a, (a + b) // 2, c, d), ((a + b) // 2, b, c, d))
            else:
                waiting += ((a, b, c, (c + d) // 2), (a, b, (c + d) // 2, d))
        return kept, single, lost
