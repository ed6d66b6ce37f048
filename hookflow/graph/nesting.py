"""The graph of one point, or of both points of an `around_X`.

It has stated edges, and weaker ones that give way to them.

An edge of the graph leads inwards. At the first point it leads from what fires first to what fires
then. The second point is read backwards, so that an around is one vertex and what is stated of
either point is an edge. There is an order exactly where this graph has no cycle.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import networkx as nx

from hookflow.graph.dataflow import EdgeStatement
from hookflow.graph.plan import DropReason

Vertices = tuple[int, int]
"""An edge of the graph: its outer vertex, then its inner one."""

MAX_CYCLES = 12
"""The cycles that are reported of one tangle, at most."""

MAX_EXPLAINED = 100
"""The dropped flows whose reason is recorded, at most, of those that are dropped together."""


@dataclass(frozen=True, slots=True)
class DroppedStatement:
    """A flow that is not kept.

    `against` is the chain that it would have closed to a cycle, if that is recorded.
    """

    statement: EdgeStatement
    reason: DropReason
    against: tuple[EdgeStatement, ...]


class NestingGraph:
    """The edges between rows, by the vertices that stand for them.

    `vertices` has the vertex of each row: the second half of an around stands where its first half
    does. The rows in `closing` are at the second point.
    """

    def __init__(self, vertices: Sequence[int], closing: Collection[int]) -> None:
        self.statements: dict[Vertices, EdgeStatement] = {}
        self.dropped: list[DroppedStatement] = []
        self.digraph: nx.DiGraph[int] = nx.DiGraph()
        self.digraph.add_nodes_from(vertices)
        self._vertices = vertices
        self._closing = closing

    def add_stated(self, statement: EdgeStatement) -> None:
        """Add a stated edge; of two that say the same the first counts."""
        edge = self._edge_of(statement)
        if edge not in self.statements:
            self._keep(edge, statement)

    def find_cycles(self) -> list[list[EdgeStatement]]:
        """Return cycles that together hold every edge which is on one.

        A tangle has at most MAX_CYCLES of them.
        """
        cycles: list[list[EdgeStatement]] = []
        for tangle in _find_tangles(self.digraph):
            subgraph = self.digraph.subgraph(sorted(tangle))
            cycles += [
                [self.statements[edge] for edge in cycle] for cycle in _cover_with_cycles(subgraph)
            ]
        return cycles

    def add_weak(self, statements: Iterable[EdgeStatement]) -> None:
        """Add edges except those that would close a cycle.

        First the edges go that stronger ones contradict, then all those that contradict one
        another. The result does not depend on the order of the file.
        """
        weak: dict[Vertices, EdgeStatement] = {}
        for statement in statements:
            edge = self._edge_of(statement)
            if edge not in self.statements:
                weak[edge] = statement
        whole = self.digraph.copy()
        whole.add_edges_from(weak)

        contradicted = []
        for outer, inner in _edges_in_tangles(whole, weak):
            if nx.has_path(self.digraph, inner, outer):
                contradicted.append((outer, inner))
        self._drop(contradicted, weak, self.digraph)

        whole.remove_edges_from(contradicted)
        rest = [edge for edge in weak if whole.has_edge(*edge)]
        circular = _edges_in_tangles(whole, rest)
        self._drop(circular, weak, whole)

        lost = {*contradicted, *circular}
        for edge, statement in weak.items():
            if edge not in lost:
                self._keep(edge, statement)

    def _keep(self, edge: Vertices, statement: EdgeStatement) -> None:
        self.statements[edge] = statement
        self.digraph.add_edge(*edge)

    def _drop(
        self,
        edges: Iterable[Vertices],
        weak: Mapping[Vertices, EdgeStatement],
        against: "nx.DiGraph",
    ) -> None:
        """Record the flows among `edges` as dropped.

        With each are the paths in the graph `against` that contradict it.
        """
        flows = [edge for edge in sorted(edges) if weak[edge].kind == "flow"]
        for number, (outer, inner) in enumerate(flows):
            statement = weak[outer, inner]
            steps: list[Vertices] = []
            if number < MAX_EXPLAINED:
                steps += pairwise(nx.shortest_path(against, inner, outer))
            is_cycle = against is not self.digraph and all(step in weak for step in steps)
            reason: DropReason = "contradicted"
            if is_cycle:
                reason = "cycle"
            if statement.then in self._closing:
                steps.reverse()
            chain = tuple(self.statements.get(step) or weak[step] for step in steps)
            self.dropped.append(DroppedStatement(statement, reason, chain))

    def _edge_of(self, statement: EdgeStatement) -> Vertices:
        first = self._vertices[statement.first]
        then = self._vertices[statement.then]
        if statement.then in self._closing:
            return then, first
        return first, then


def _find_tangles(graph: "nx.DiGraph") -> list[set[int]]:
    """Return the sets of vertices that lie on cycles together."""
    return [vertices for vertices in nx.strongly_connected_components(graph) if len(vertices) > 1]


def _edges_in_tangles(graph: "nx.DiGraph", edges: Iterable[Vertices]) -> list[Vertices]:
    """Return those of the edges of a graph that lie on a cycle."""
    tangle_of: dict[int, int] = {}
    for number, vertices in enumerate(_find_tangles(graph)):
        tangle_of.update(dict.fromkeys(vertices, number))
    inside = []
    for outer, inner in edges:
        if outer in tangle_of and tangle_of[outer] == tangle_of.get(inner):
            inside.append((outer, inner))
    return inside


def _cover_with_cycles(tangle: "nx.DiGraph") -> Iterator[list[Vertices]]:
    """Yield short cycles until every edge of a tangle is on one, MAX_CYCLES at most."""
    covered: set[Vertices] = set()
    num_cycles = 0
    for outer, inner in sorted(tangle.edges):
        if (outer, inner) in covered or num_cycles == MAX_CYCLES:
            continue
        path = nx.shortest_path(tangle, inner, outer)
        cycle = list(pairwise([outer, *path]))
        covered.update(cycle)
        num_cycles += 1
        yield cycle
