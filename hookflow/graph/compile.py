"""From declared hooks to a plan: edges gathered point by point, cycles refused, the order settled.

Explicit edges are obeyed; among what they leave free the phase decides, then the file's order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import networkx as nx

from hookflow.errors import Problem, UserError, Where, nearest
from hookflow.graph.node import Bound, Node, Nodes, Wish
from hookflow.graph.plan import Binding, Edge, Half, Plan
from hookflow.graph.points import PAIRS, POINTS

PHASES = ("first", "early", "normal", "late", "last")

Place = tuple[str, Half]
"""A vertex of a point's graph: a hook may stand there with a plain method and with half of an `around`."""


def compile_plan(pipeline: str, nodes: Nodes, disabled: Iterable[str] = ()) -> Plan:
    """Order the hooks at every point.

    An edge to a hook in `disabled` is dropped. Raises UserError with every unknown name, or every cycle, at once.
    """
    problems = [*_unknown(nodes, set(disabled))]
    if problems:
        raise UserError(problems)
    index = {name: place for place, name in enumerate(nodes)}
    bindings: list[Binding] = []
    edges: list[Edge] = []
    entered: dict[str, list[str]] = {}
    for point in POINTS:
        there = _Point(point.name, nodes, index, entered.get(point.name, []))
        problems += there.cycles()
        if not problems:
            bound = there.bindings(first_id=len(bindings))
            bindings += bound
            edges += there.edges
            if closing := PAIRS.get(point.name.removeprefix("before_")):
                entered[closing] = [binding.hook for binding in bound if binding.half == "enter"]
    if problems:
        raise UserError(_once(problems))
    return Plan(pipeline, tuple(node.hook for node in nodes.values()), tuple(bindings), tuple(edges))


def _unknown(nodes: Nodes, disabled: set[str]) -> Iterator[Problem]:
    for name, node in nodes.items():
        wishes = [*node.after, *node.before, *(w for bound in node.bound for w in (*bound.after, *bound.before))]
        for wish in wishes:
            if wish.hook == name:
                yield Problem(f'hook "{name}" cannot stand before or after itself', wish.where)
            elif wish.hook not in nodes and wish.hook not in disabled and not wish.optional:
                hint = nearest(wish.hook, nodes) or f'write "{wish.hook}?" if it may be missing'
                said = f'hook "{name}" has an edge to "{wish.hook}", which is not in this pipeline'
                yield Problem(said, wish.where, hint)
        for wish in node.requires:
            if wish.hook not in nodes:
                gone = "is switched off" if wish.hook in disabled else "is not in this pipeline"
                hint = nearest(wish.hook, nodes)
                yield Problem(f'hook "{name}" requires the hook "{wish.hook}", which {gone}', wish.where, hint)


@dataclass(frozen=True)
class _Vertex:
    node: Node
    bound: Bound
    rank: tuple[int, int, int]


class _Point:
    """The graph of one point. `entered` are the hooks whose `around_X` is left here, in the order of entering."""

    def __init__(self, point: str, nodes: Nodes, index: dict[str, int], entered: list[str]) -> None:
        self.point = point
        self.vertices: dict[Place, _Vertex] = {}
        self.edges: list[Edge] = []
        self.graph: nx.DiGraph[Place] = nx.DiGraph()
        for name, node in nodes.items():
            for bound in node.bound:
                if bound.point == point:
                    self.vertices[name, bound.half] = _Vertex(node, bound, _rank(node, bound, index[name]))
        self.graph.add_nodes_from(self.vertices)
        for place, vertex in self.vertices.items():
            for wish in (*vertex.node.after, *vertex.bound.after):
                self._add(wish, place, place_is_first=False)
            for wish in (*vertex.node.before, *vertex.bound.before):
                self._add(wish, place, place_is_first=True)
        for outer, inner in pairwise(entered):
            said = Wish(inner, False, "pair", Where(f'"{outer}" was entered before "{inner}"'))
            self._connect((inner, "exit"), (outer, "exit"), said)

    def _add(self, wish: Wish, place: Place, *, place_is_first: bool) -> None:
        halves: tuple[Half, ...] = ("whole", "enter", "exit")
        for other in ((wish.hook, half) for half in halves):
            if other in self.vertices and not place[1] == other[1] == "exit":
                self._connect(*((place, other) if place_is_first else (other, place)), wish)

    def _connect(self, first: Place, then: Place, wish: Wish) -> None:
        if not self.graph.has_edge(first, then):
            self.graph.add_edge(first, then, wish=wish)
            self.edges.append(Edge(self.point, first[0], then[0], wish.kind, str(wish.where)))

    def cycles(self) -> Iterator[Problem]:
        """Yield each knot of hooks that wait for one another, with every edge of a shortest way around it."""
        for knot in nx.strongly_connected_components(self.graph):
            if len(knot) < 2:
                continue
            within = self.graph.subgraph(sorted(knot))
            way = nx.find_cycle(within)
            names = [first[0] for first, _ in way]
            wishes = [within.edges[edge]["wish"] for edge in way]
            steps = [f'"{a[0]}" before "{b[0]}": {wish.where}' for (a, b), wish in zip(way, wishes, strict=True)]
            yield Problem(
                f"the order of {' → '.join([*names, names[0]])} closes a circle at {self.point}",
                wishes[0].where,
                "\n    ".join(steps),
            )

    def bindings(self, first_id: int) -> list[Binding]:
        """Return the bindings in their order. There must be no cycle."""
        order = nx.lexicographical_topological_sort(self.graph, key=lambda place: self.vertices[place].rank)
        return [self._binding(first_id + k, self.vertices[place]) for k, place in enumerate(order)]

    def _binding(self, id_: int, vertex: _Vertex) -> Binding:
        hook, bound = vertex.node.hook, vertex.bound
        return Binding(id_, hook.name, bound.point, bound.method, bound.half, bound.takes, bound.trigger, hook.phase)


def _rank(node: Node, bound: Bound, index: int) -> tuple[int, int, int]:
    """Return what decides among hooks that no edge orders: phase, then the file's order.

    The second half of an `around_X` stands in the mirrored phase, behind the plain methods that it encloses.
    """
    phase = PHASES.index(node.hook.phase)
    if bound.half == "exit":
        return len(PHASES) - 1 - phase, 1, index
    return phase, 0, index


def _once(problems: list[Problem]) -> list[Problem]:
    """Drop a cycle that was told for another point already."""
    told: dict[str, Problem] = {}
    for problem in problems:
        told.setdefault(problem.hint, problem)
    return list(told.values())
