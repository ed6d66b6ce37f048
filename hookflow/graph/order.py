"""The order of one point.

From strong to weak: explicit edges (and that what is entered first is left last), data flow, phase, the file's order.
What is weaker gives way where it contradicts what is stronger.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise, product

import networkx as nx

from hookflow.errors import Where
from hookflow.graph.cycles import Knot, knots_of
from hookflow.graph.node import Bound, Node, Wish
from hookflow.graph.plan import Binding, Edge, GivenWay

PHASES = ("first", "early", "normal", "late", "last")
NORMAL = PHASES.index("normal")


@dataclass(frozen=True, slots=True)
class Vertex:
    """A hook at a point: with a plain method, or with half of an `around`; so a hook may stand there twice."""

    node: Node
    bound: Bound

    @property
    def name(self) -> str:
        return self.node.hook.name

    @property
    def phase(self) -> int:
        """The place of the hook's phase; the second half of an `around` stands in the mirrored one."""
        phase = PHASES.index(self.node.hook.phase)
        return len(PHASES) - 1 - phase if self.bound.half == "exit" else phase


class PointOrder:
    """Who fires at one point, and why. `entered` are the hooks whose `around_X` is left here, as they were entered.

    `met` are the wishes that say something about this point; `knots` are the cycles: if there are any, no order.
    """

    def __init__(self, point: str, vertices: Sequence[Vertex], entered: Sequence[str], shuffle: int | None) -> None:
        self.point = point
        self.vertices = vertices
        self.met: set[Wish] = set()
        self.given_way: list[GivenWay] = []
        self._shuffle = shuffle
        self._rows: dict[str, list[int]] = {}
        for row, vertex in enumerate(vertices):
            self._rows.setdefault(vertex.name, []).append(row)
        self._graph: nx.DiGraph[int] = nx.DiGraph()
        self._graph.add_nodes_from(range(len(vertices)))
        self._add_explicit()
        self._add_pairs(entered)
        self.knots: list[Knot] = knots_of(self._graph)
        if not self.knots:
            self._add_flow()

    @property
    def edges(self) -> list[Edge]:
        """Every edge that is kept, each pair of hooks once."""
        return list(dict.fromkeys(edge for _, _, edge in self._graph.edges.data("edge")))

    def bindings(self, first_id: int) -> list[Binding]:
        """Return the bindings in their order, numbered from `first_id`."""
        phases = self._phases()
        places = [
            (phases[row], vertex.bound.half == "exit", self._tie(row)) for row, vertex in enumerate(self.vertices)
        ]
        order = nx.lexicographical_topological_sort(self._graph, key=places.__getitem__)
        return [self._binding(first_id + k, self.vertices[row], PHASES[phases[row]]) for k, row in enumerate(order)]

    def _add_explicit(self) -> None:
        for row, vertex in enumerate(self.vertices):
            for wish in (*vertex.node.after, *vertex.bound.after):
                for other in self._rows.get(wish.hook, ()):
                    self._wish(other, row, wish)
            for wish in (*vertex.node.before, *vertex.bound.before):
                for other in self._rows.get(wish.hook, ()):
                    self._wish(row, other, wish)

    def _wish(self, first: int, then: int, wish: Wish) -> None:
        if self._is_exit(first) and self._is_exit(then):
            return  # how they were entered decides
        self.met.add(wish)
        if not self._graph.has_edge(first, then):
            names = self.vertices[first].name, self.vertices[then].name
            edge = Edge(self.point, *names, wish.kind, wish.where.at_line)
            self._graph.add_edge(first, then, edge=edge, where=wish.where)

    def _add_pairs(self, entered: Sequence[str]) -> None:
        exits = {self.vertices[row].name: row for row in range(len(self.vertices)) if self._is_exit(row)}
        for outer, inner in pairwise(entered):
            said = f'"{outer}" was entered before "{inner}"'
            edge = Edge(self.point, inner, outer, "pair", said)
            self._graph.add_edge(exits[inner], exits[outer], edge=edge, where=Where(said))

    def _add_flow(self) -> None:
        """Add an edge from each writer of a slot to its readers, save where that would close a cycle.

        First the edges go that stronger ones contradict, then those that contradict one another: all of them, so that
        what is left does not hang on the file's order.
        """
        flows = self._flows()
        flow = {pair: self._flow_edge(pair, flows[pair]) for pair in flows if not self._graph.has_edge(*pair)}
        for stronger_alone in (True, False):
            whole = self._graph.copy()
            whole.add_edges_from((*pair, {"edge": edge}) for pair, edge in flow.items())
            doubtful = [pair for pair in _in_cycles(whole) if pair in flow]
            if not doubtful:
                break
            ways = self._graph if stronger_alone else whole
            given_way = {pair: way for pair in doubtful if (way := _way(ways, pair[1], pair[0]))}
            self.given_way += (GivenWay(flow.pop(pair), way) for pair, way in given_way.items())
        self._graph.add_edges_from((*pair, {"edge": edge}) for pair, edge in flow.items())

    def _flows(self) -> dict[tuple[int, int], list[str]]:
        """Return the slots that each pair of rows hands on; two that both read and write a slot hand on nothing."""
        reads: dict[str, set[int]] = {}
        writes: dict[str, set[int]] = {}
        for row, vertex in enumerate(self.vertices):
            for slot in vertex.bound.reads:
                reads.setdefault(slot, set()).add(row)
            for slot in vertex.bound.writes:
                writes.setdefault(slot, set()).add(row)
        flows: dict[tuple[int, int], list[str]] = {}
        for slot in sorted(writes.keys() & reads.keys()):
            both = writes[slot] & reads[slot]
            pairs = (*product(writes[slot] - both, reads[slot]), *product(both, reads[slot] - both))
            for first, then in sorted(pairs):
                exits = self._is_exit(first) and self._is_exit(then)
                if not exits and self.vertices[first].name != self.vertices[then].name:
                    flows.setdefault((first, then), []).append(slot)
        return flows

    def _flow_edge(self, pair: tuple[int, int], slots: list[str]) -> Edge:
        first, then = pair
        return Edge(self.point, self.vertices[first].name, self.vertices[then].name, "flow", "", tuple(slots))

    def _phases(self) -> list[int]:
        """Return the phase in which each row fires.

        A hook that must stand before an early one is early too, and one that must stand after a late one is late: the
        hook that wants nothing of the kind is the one that moves. So phases never run against the edges.
        """
        order = list(nx.topological_sort(self._graph))
        phases = [vertex.phase for vertex in self.vertices]
        for row in reversed(order):
            pulled = [phases[then] for then in self._graph.successors(row) if phases[then] < NORMAL]
            phases[row] = min([phases[row], *pulled])
        for row in order:
            phases[row] = max([phases[row], *(phases[first] for first in self._graph.predecessors(row))])
        return phases

    def _tie(self, row: int) -> tuple[bytes, int]:
        """Return what decides last: the file's order, or a lot that hangs on the seed and the hook's name alone."""
        if self._shuffle is None:
            return b"", row
        return blake2b(f"{self._shuffle} {self.point} {self.vertices[row].name}".encode()).digest(), row

    def _is_exit(self, row: int) -> bool:
        return self.vertices[row].bound.half == "exit"

    def _binding(self, id_: int, vertex: Vertex, phase: str) -> Binding:
        bound = vertex.bound
        return Binding(
            id=id_,
            hook=vertex.name,
            point=self.point,
            method=bound.method,
            half=bound.half,
            takes=bound.takes,
            trigger=bound.trigger,
            phase=phase,
            reads=bound.reads,
            writes=bound.writes,
            modules=bound.modules,
        )


def _in_cycles(graph: nx.DiGraph[int]) -> Iterator[tuple[int, int]]:
    """Yield every edge that lies on some cycle."""
    knot_of = {row: k for k, knot in enumerate(nx.strongly_connected_components(graph)) for row in knot}
    return ((first, then) for first, then in graph.edges if knot_of[first] == knot_of[then])


def _way(graph: nx.DiGraph[int], start: int, goal: int) -> tuple[Edge, ...]:
    """Return the edges of a shortest way; none when there is no way."""
    try:
        rows = nx.shortest_path(graph, start, goal)
    except nx.NetworkXNoPath:
        return ()
    return tuple(graph.edges[step]["edge"] for step in pairwise(rows))
