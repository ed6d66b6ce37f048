"""The order of one point.

From strong to weak: explicit edges (and that what is entered first is left last), data flow, phase, the file's order.
What is weaker gives way where it contradicts what is stronger.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError
from hashlib import blake2b
from itertools import pairwise, product

from hookflow.errors import Where
from hookflow.graph.closure import closure
from hookflow.graph.cycles import Cycle
from hookflow.graph.node import Bound, EdgeSpec, Node
from hookflow.graph.plan import PHASES, Binding, Edge, EdgeKind, GivenWay
from hookflow.graph.sort import Rows, ordered

NORMAL = PHASES.index("normal")


@dataclass(frozen=True, slots=True)
class Vertex:
    """A hook at a point: with a plain method, or with half of an `around`; so a hook may stand there twice."""

    node: Node
    bound: Bound

    @property
    def phase(self) -> int:
        """The place of the hook's phase; the second half of an `around` stands in the mirrored one."""
        phase = PHASES.index(self.node.hook.phase)
        return len(PHASES) - 1 - phase if self.bound.half == "exit" else phase


class PointOrder:
    """Who fires at one point, and why. `entered` are the hooks whose `around_X` is left here, as they were entered.

    `met` are the ids of the specs that say something about this point; `cycles` the cycles: if there are any, there is
    no order. `edges` are those that are kept; `given_way` the weaker ones that are not.
    """

    def __init__(self, point: str, vertices: Sequence[Vertex], entered: Sequence[str], shuffle: int | None) -> None:
        self.point = point
        self.vertices = vertices
        self.met: set[int] = set()
        self.given_way: list[GivenWay] = []
        self._shuffle = shuffle
        self._names = [vertex.node.hook.name for vertex in vertices]
        self._exits = {row for row, vertex in enumerate(vertices) if vertex.bound.half == "exit"}
        self._edges: dict[Rows, Edge] = {}
        self._places: dict[Rows, Where] = {}
        self._add_explicit()
        self._add_pairs(entered)
        self._before = _before(len(vertices), self._edges)
        try:
            self._explicit = ordered(self._before)
        except CycleError:
            from hookflow.graph.strong_components import cycles_of

            self.cycles: list[Cycle] = cycles_of(self._edges, self._places)
        else:
            self.cycles = []
            self._add_flow()

    @property
    def edges(self) -> Iterable[Edge]:
        """Every edge between two hooks, once, though either may stand at the point twice."""
        return {(edge.first, edge.then): edge for edge in self._edges.values()}.values()

    def bindings(self, first_id: int) -> list[Binding]:
        """Return the bindings in their order, numbered from `first_id`."""
        phases = self._phases()
        places = [(phases[row], row in self._exits, self._tie(row)) for row in range(len(self.vertices))]
        order = ordered(self._before, places.__getitem__)
        return [self._binding(first_id + k, self.vertices[row].bound, row, phases[row]) for k, row in enumerate(order)]

    def _add_explicit(self) -> None:
        rows: dict[str, list[int]] = {}
        for row, name in enumerate(self._names):
            rows.setdefault(name, []).append(row)
        for row, vertex in enumerate(self.vertices):
            node, bound = vertex.node, vertex.bound
            for spec in (*node.after, *bound.after):
                for other in rows.get(spec.hook, ()):
                    self._state((other, row), spec)
            for spec in (*node.before, *bound.before):
                for other in rows.get(spec.hook, ()):
                    self._state((row, other), spec)

    def _state(self, rows: Rows, spec: EdgeSpec) -> None:
        if self._names[rows[0]] == self._names[rows[1]] or self._exits.issuperset(rows):
            return  # an edge to itself is told of elsewhere; and how they were entered decides how they are left
        self.met.add(id(spec))
        if rows not in self._edges:
            self._edges[rows] = self._edge(rows, spec.kind, spec.where.at_line)
            self._places[rows] = spec.where

    def _add_pairs(self, entered: Sequence[str]) -> None:
        exits = {self._names[row]: row for row in self._exits}
        for outer, inner in pairwise(entered):
            rows = exits[inner], exits[outer]
            said = f'"{outer}" was entered before "{inner}"'
            self._edges[rows] = self._edge(rows, "pair", said)
            self._places[rows] = Where(said)

    def _add_flow(self) -> None:
        """Add an edge from each writer of a slot to its readers, save where that would close a cycle.

        First the edges go that stronger ones contradict, then those that contradict one another: all of them, so that
        what is left does not hang on the file's order.
        """
        flow = {rows: self._edge(rows, "flow", "", slots) for rows, slots in self._flows() if rows not in self._edges}
        if not flow:
            return
        ancestors = closure(self._before, self._explicit)
        contradicted = [(first, then) for first, then in flow if ancestors[first] >> then & 1]
        self._give_way(flow, contradicted, self._edges)
        try:
            ordered(_before(len(self.vertices), self._edges | flow))
        except CycleError:
            from hookflow.graph.strong_components import in_cycles

            whole = self._edges | flow
            self._give_way(flow, [rows for rows in in_cycles(whole) if rows in flow], whole)
        self._edges |= flow
        self._before = _before(len(self.vertices), self._edges)

    def _give_way(self, flow: dict[Rows, Edge], weak: Sequence[Rows], edges: Mapping[Rows, Edge]) -> None:
        """Take the `weak` edges out of `flow`; each keeps the way of edges that it would have closed to a cycle."""
        if weak:
            from hookflow.graph.strong_components import ways

            ways_back = ways([(then, first) for first, then in weak], edges)
            self.given_way += (GivenWay(flow.pop(rows), way) for rows, way in zip(weak, ways_back, strict=True))

    def _flows(self) -> Iterator[tuple[Rows, tuple[str, ...]]]:
        """Yield who hands which slots on to whom; two that both read and write a slot hand on nothing."""
        readers = _users(vertex.bound.reads for vertex in self.vertices)
        writers = _users(vertex.bound.writes for vertex in self.vertices)
        flows: dict[Rows, list[str]] = {}
        for slot in sorted(writers.keys() & readers.keys()):
            both = writers[slot] & readers[slot]
            for rows in (*product(writers[slot] - both, readers[slot]), *product(both, readers[slot] - both)):
                flows.setdefault(rows, []).append(slot)
        for rows in sorted(flows):
            first, then = rows
            if self._names[first] != self._names[then] and not self._exits.issuperset(rows):
                yield rows, tuple(flows[rows])

    def _edge(self, rows: Rows, kind: EdgeKind, where: str, slots: tuple[str, ...] = ()) -> Edge:
        return Edge(self.point, self._names[rows[0]], self._names[rows[1]], kind, where, slots)

    def _phases(self) -> list[int]:
        """Return the phase in which each row fires.

        A hook that must stand before an early one is early too, and one that must stand after a late one is late: the
        hook that wants nothing of the kind is the one that moves. So phases never run against the edges.
        """
        order = ordered(self._before)
        phases = [vertex.phase for vertex in self.vertices]
        for row in reversed(order):
            for first in self._before[row] if phases[row] < NORMAL else ():
                phases[first] = min(phases[first], phases[row])
        for row in order:
            phases[row] = max([phases[row], *(phases[first] for first in self._before[row])])
        return phases

    def _tie(self, row: int) -> tuple[bytes, int]:
        """Return what decides last: the file's order, or a lot that hangs on the seed and the hook's name alone."""
        if self._shuffle is None:
            return b"", row
        return blake2b(f"{self._shuffle} {self.point} {self._names[row]}".encode()).digest(), row

    def _binding(self, id_: int, bound: Bound, row: int, phase: int) -> Binding:
        return Binding(
            id=id_,
            hook=self._names[row],
            point=self.point,
            method=bound.method,
            half=bound.half,
            takes=bound.takes,
            trigger=bound.trigger,
            phase=PHASES[phase],
            reads=bound.reads,
            writes=bound.writes,
            modules=bound.modules,
            parameters=bound.parameters,
            stages=bound.stages,
            prepend=bound.prepend,
            always_call=bound.always_call,
        )


def _users(touched: Iterable[Iterable[str]]) -> dict[str, set[int]]:
    """Return the rows that touch each slot."""
    users: dict[str, set[int]] = {}
    for row, slots in enumerate(touched):
        for slot in slots:
            users.setdefault(slot, set()).add(row)
    return users


def _before(count: int, edges: Iterable[Rows]) -> list[list[int]]:
    """Return, for each row, those that an edge puts before it."""
    before: list[list[int]] = [[] for _ in range(count)]
    for first, then in edges:
        before[then].append(first)
    return before
