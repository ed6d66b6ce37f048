"""The order of the bindings at one point, or at both points of an `around_X` together.

From strong to weak: stated edges, data flow, phase, the file's order. Weaker reasons give way to stronger ones.

How arounds are entered decides how they are left, so neither point can be ordered without the other. Both are one
graph: read `before_X` forwards and `after_X` backwards. An around is then one vertex, and what is stated at either
point is an edge. There is an order exactly where this graph has no cycle.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError
from hashlib import blake2b
from itertools import islice, pairwise

from hookflow.errors import Problem, UserError, Where
from hookflow.graph.edges import MOST, EdgeGraph, Flow, Rows, Statement, ancestors, between, flows, ordered, rows_before
from hookflow.graph.plan import PHASES, Binding, Bound, Bundle, Edge, EdgeKind, EdgeSpec, GivenWay, Half, Node

NORMAL = PHASES.index("normal")
LAST = len(PHASES) - 1


def moved(
    phases: Sequence[int], before: Sequence[Collection[int]], order: Sequence[int], backwards: Collection[int]
) -> list[int]:
    """Return the phase of each row; `before` are the rows that edges put before it, `order` is a topological one.

    At the second point of an around the graph runs backwards, and so do the phases of the rows that stand there alone:
    early is late. Which of two moves must not hang on that, so these rows are settled among themselves first.
    """
    result = list(phases)
    wanted = [NORMAL] * len(result)  # the earliest phase of those that each row must stand before, at the second point
    for row in order if backwards else ():
        wanted[row] = max([wanted[row], *(wanted[first] for first in before[row])])
        if row in backwards:
            result[row] = max(result[row], wanted[row]) if wanted[row] > NORMAL else result[row]
            wanted[row] = max(wanted[row], result[row])
    for row in reversed(order):
        for first in before[row] if result[row] < NORMAL else ():
            result[first] = min(result[first], result[row])
    for row in order:
        result[row] = max([result[row], *(result[first] for first in before[row])])
    return result


@dataclass(frozen=True, slots=True)
class Step:
    """An edge of a cycle: both its hooks in quotes, with the half of an `around`, and where it was stated."""

    first: str
    then: str
    point: str
    place: Where
    kind: EdgeKind


@dataclass(frozen=True, slots=True)
class Cycle:
    """A cycle at `point`: its edges in the order of walking around it.

    One of arounds may have edges at both of their points. Edges stated at the entry then run against the walk: the
    first entered is the last left.
    """

    point: str
    steps: tuple[Step, ...]

    @property
    def names(self) -> list[str]:
        """All hooks of the cycle at its point."""
        result: list[str] = []
        for step, next_ in pairwise((*self.steps, self.steps[0])):
            if step.point == self.point:
                result += [step.first] if next_.point == self.point else [step.first, step.then]
        return result


def as_problems(cycles: Iterable[Cycle]) -> list[Problem]:
    """Return a problem for each cycle; a cycle at several points is reported once."""
    alike: dict[tuple[tuple[str, Where], ...], list[Cycle]] = {}
    for cycle in cycles:
        steps = tuple((step.first, step.place) for step in cycle.steps)
        alike.setdefault(steps, []).append(cycle)
    return [_problem(same) for same in alike.values()]


def _problem(same: list[Cycle]) -> Problem:
    cycle = same[0]
    names = [name.replace('"', "") for name in (*cycle.names, cycle.names[0])]
    at = f"at {cycle.point}" + (f" and {len(same) - 1} more" if len(same) > 1 else "")
    mixed = any(step.point != cycle.point for step in cycle.steps)
    steps = [
        f"{step.first} before {step.then}{f' at {step.point}' if mixed else ''}: {step.place}" for step in cycle.steps
    ]
    hints = [*steps, *(_nested(cycle) if mixed else []), *_overriding(cycle.steps)]
    return Problem(f"ordering cycle: {' → '.join(names)} {at}", cycle.steps[0].place, "\n    ".join(hints))


def _nested(cycle: Cycle) -> list[str]:
    """Say what closes a cycle of edges at two points, and how an edge is stated for one of a hook's methods alone."""
    return [
        "what is entered first is left last",
        f'an edge may be that of one method alone: points = [{{ at = "{cycle.point}", after = ["…"] }}, …]',
    ]


def _overriding(steps: Iterable[Step]) -> list[str]:
    """Say how the file gets rid of an edge that a class has stated."""
    if any(step.kind == "class" for step in steps):
        return ["what a class says, the file can overrule: after = [] or before = [] in the hook's table"]
    return []


Places = Mapping[tuple[str, str, Half], int]
"""Where a hook's method, or half of its around, is wanted at a point, as far as nothing else decides."""


@dataclass(frozen=True, slots=True)
class Vertex:
    """A hook at a point, with a plain method or with half of an `around`."""

    node: Node
    bound: Bound


class Order:
    """The order of one point, or of the two points of an around, with its reasons.

    A row is a vertex by its place among `vertices`. `met` are the ids of the specs that say something here; `cycles`
    the cycles: if there are any, there is no order.
    """

    def __init__(
        self, points: Sequence[str], vertices: Sequence[Vertex], shuffle: int | None, wanted: Places | None = None
    ) -> None:
        self.points = points
        self.vertices = vertices
        self.met: set[int] = set()
        self.cycles: list[Cycle] = []
        self._shuffle = shuffle
        self._wanted = wanted
        self._names = [vertex.node.hook.name for vertex in vertices]
        self._at = {point: [row for row, v in enumerate(vertices) if v.bound.point == point] for point in points}
        self._closing = set(self._at[points[1]]) if len(points) > 1 else set()
        self._exits = {row for row in self._closing if vertices[row].bound.half == "exit"}
        self._entries = {self._names[row]: row for row, v in enumerate(vertices) if v.bound.half == "enter"}
        self._spot = [self._entries[name] if row in self._exits else row for row, name in enumerate(self._names)]
        self._graph = EdgeGraph(self._names, self._spot, self._closing)
        self._nesting: list[Statement] = []
        self._ids: dict[int, int] = {}
        self._add_stated()
        try:
            self._graph.sort()
        except CycleError:
            from hookflow.graph.strong_components import cycles_of

            self.cycles = [self._cycle(path) for path in cycles_of(self._graph.edges)]
        else:
            self._add_flow()
            self._phases = self._moved_phases()
            self._add_own()
            self._rows = self._ordered()

    def bindings(self, point: str, first_id: int) -> list[Binding]:
        """Return the bindings of a point in their order, numbered from `first_id`."""
        numbered = list(enumerate(self._rows[point], first_id))
        self._ids |= {row: id_ for id_, row in numbered}
        return [self._binding(id_, row) for id_, row in numbered]

    def edges(self, point: str) -> list[Edge]:
        """Return the edges that are kept at a point, once the bindings have their numbers."""
        every = sorted((*self._graph.edges.values(), *self._nesting), key=lambda statement: statement.kind == "flow")
        return [self._edge(statement) for statement in every if self._point(statement) == point]

    def bundles(self, point: str) -> list[Bundle]:
        """Return the flow edges of a point that are kept as one, once the bindings have their numbers."""
        return self._bundled(self._graph.bundles, point)

    def given_way_bundles(self, point: str) -> list[Bundle]:
        """Return the flow edges of a point that are not kept, where they are very many."""
        return self._bundled(self._graph.overridden_bundles, point)

    def given_way(self, point: str) -> list[GivenWay]:
        """Return the weaker edges of a point that are not kept, once the bindings have their numbers."""
        return [
            GivenWay(self._edge(flow), tuple(map(self._edge, path)))
            for flow, path in self._graph.overridden
            if self._point(flow) == point
        ]

    def _add_stated(self) -> None:
        rows: dict[tuple[str, str], list[int]] = {}
        for row, vertex in enumerate(self.vertices):
            rows.setdefault((self._names[row], vertex.bound.point), []).append(row)
        for row, vertex in enumerate(self.vertices):
            node, bound = vertex.node, vertex.bound
            for spec in (*node.after, *bound.after):
                for other in rows.get((spec.hook, bound.point), ()):
                    self._state(other, row, spec)
            for spec in (*node.before, *bound.before):
                for other in rows.get((spec.hook, bound.point), ()):
                    self._state(row, other, spec)

    def _state(self, first: int, then: int, spec: EdgeSpec) -> None:
        if self._names[first] == self._names[then] or self._exits.issuperset((first, then)):
            return  # an edge to itself is reported elsewhere; and how they were entered decides how they are left
        self.met.add(id(spec))
        self._graph.state(Statement(first, then, spec.kind, spec.where))

    def _add_flow(self) -> None:
        at = [[(row, self.vertices[row].bound) for row in self._at[point]] for point in self.points]
        self._graph.add_flows([flow for bound in at for flow in flows(bound)])

    def _moved_phases(self) -> list[int]:
        """Return the phase in which each row of the graph fires, counted backwards at the second point."""
        phases = [PHASES.index(vertex.node.hook.phase) for vertex in self.vertices]
        plain = self._closing - self._exits
        for row in plain:
            phases[row] = LAST - phases[row]
        phases += [NORMAL] * len(self._graph.bundles)
        return moved(phases, self._graph.before, self._graph.sorted, plain)

    def _add_own(self) -> None:
        """Let the around of a hook enclose the hook's own plain methods, where nothing has said otherwise."""
        exits = {self._names[row]: row for row in self._exits}
        own = []
        for row, vertex in enumerate(self.vertices):
            entry = self._entries.get(self._names[row])
            if entry is None or vertex.bound.half != "whole" or self._phases[entry] != self._phases[row]:
                continue
            where = Where(f'{self.vertices[entry].bound.method} of "{self._names[row]}" encloses its own methods')
            rows = (row, exits[self._names[row]]) if row in self._closing else (entry, row)
            own.append(Statement(*rows, "pair", where))
        self._graph.add_weak(own)

    def _ordered(self) -> dict[str, list[int]]:
        """Return the rows of each point as they fire, and note which edges follow from the nesting of arounds."""
        opening, *closing = self.points
        self._nesting += self._entered_as_left() if closing else ()
        rows = {opening: self._sort(opening)}
        if closing:
            entries = [row for row in rows[opening] if self.vertices[row].bound.half == "enter"]
            self._nesting += self._left_as_entered(entries)
            rows[closing[0]] = self._sort(closing[0])
        return rows

    def _sort(self, point: str) -> list[int]:
        """Return the rows of a point in order: by edges, then phase, the second halves last, then the tie.

        A wanted order holds against phases. The caller has asked `Decided.is_open` which of them count.
        """
        at = self._at[point]
        by_phase = self._wanted is None
        keys = [(by_phase * self._phase(row), by_phase and row in self._exits, self._tie(row)) for row in at]
        before = self._local(point)
        hubs = [()] * len(self._graph.bundles)  # no binding waits for a bundle: who comes next is as if it were edges
        return [at[k] for k in ordered(before, [*keys, *hubs].__getitem__) if k < len(at)]

    def _local(self, point: str) -> list[list[int]]:
        """Return, for each row of a point, those before it; both by their place among the rows of the point.

        Behind the rows of the point stand those of its bundles.
        """
        at = {row: k for k, row in enumerate(self._at[point])}
        every = (*self._graph.edges.values(), *self._nesting)
        edges = [(at[item.first], at[item.then]) for item in every if item.then in at]
        bundles = [bundle for bundle in self._graph.bundles if bundle.firsts[0] in at]
        for hub, bundle in enumerate(bundles, len(at)):
            edges += [(at[first], hub) for first in bundle.firsts]
            edges += [(hub, at[then]) for then in bundle.thens]
        return rows_before(len(at) + len(bundles), edges)

    def _entered_as_left(self) -> Iterator[Statement]:
        """Yield who is entered before whom because of what is stated about how they are left."""
        opening, closing = self.points
        left = self._at[closing]
        pairs = [(left[first], left[then]) for first, then in between(self._local(closing), self._places(closing))]
        at = {row: k for k, row in enumerate(self._at[opening])}
        implied = ancestors(self._local(opening)) if pairs else []
        for first, then in pairs:
            outer, inner = self._spot[then], self._spot[first]
            if not implied[at[inner]] >> at[outer] & 1:
                message = f'"{self._names[inner]}" is left before "{self._names[outer]}" at {closing}'
                yield Statement(outer, inner, "pair", Where(message))

    def _left_as_entered(self, entries: Sequence[int]) -> Iterator[Statement]:
        """Yield who is left before whom because of how they were entered.

        An edge is loose where nothing but the file says that the one was entered before the other.
        """
        opening, closing = self.points
        entered = self._at[opening]
        sure = between(self._local(opening), self._places(opening))
        firm = [(entered[k], entered[other]) for k, other in islice(sure, MOST + 1)]
        if len(firm) > MOST:
            message = f"at {opening}, more than {MOST:,} pairs of arounds are ordered by edges, which are too many"
            raise UserError(Problem(message, hint="declare fewer reads and writes of hooks with around_ methods"))
        neighbours = {pair: self._phases[pair[0]] == self._phases[pair[1]] for pair in pairwise(entries)}
        exits = {self._spot[row]: row for row in self._exits}
        at = {row: k for k, row in enumerate(self._at[closing])}
        implied = ancestors(self._local(closing)) if neighbours else []
        for (outer, inner), loose in (neighbours | dict.fromkeys(firm, False)).items():
            first, then = exits[inner], exits[outer]
            if not implied[at[then]] >> at[first] & 1:
                text = f'"{self._names[outer]}" was entered before "{self._names[inner]}"'
                yield Statement(first, then, "pair", Where(text), loose=loose)

    def _places(self, point: str) -> list[int]:
        """Return the halves of arounds, by their place among the rows of a point."""
        return [k for k, row in enumerate(self._at[point]) if self.vertices[row].bound.half != "whole"]

    def _phase(self, row: int) -> int:
        phase = self._phases[self._spot[row]]
        return LAST - phase if row in self._closing else phase

    def _tie(self, row: int) -> tuple[bytes, int]:
        """Return what decides last: a wanted place, the file's order, or a random one of the seed, point and hook."""
        if self._wanted is not None:
            bound = self.vertices[row].bound
            return b"", self._wanted[bound.point, self._names[row], bound.half]
        if self._shuffle is None:
            return b"", row
        text = f"{self._shuffle} {self.vertices[row].bound.point} {self._names[row]}"
        return blake2b(text.encode()).digest(), row

    def _point(self, statement: Statement) -> str:
        return self.vertices[statement.then].bound.point

    def _edge(self, statement: Statement) -> Edge:
        return Edge(
            point=self._point(statement),
            first=self._names[statement.first],
            then=self._names[statement.then],
            kind=statement.kind,
            where=statement.where.at_line,
            slots=statement.slots,
            first_id=self._ids[statement.first],
            then_id=self._ids[statement.then],
            loose=statement.loose,
        )

    def _bundled(self, flows: Iterable[Flow], point: str) -> list[Bundle]:
        here = [flow for flow in flows if flow.firsts[0] in self._at[point]]
        return [Bundle(point, self._ids_of(flow.firsts), self._ids_of(flow.thens), flow.slots) for flow in here]

    def _ids_of(self, rows: Iterable[int]) -> tuple[int, ...]:
        return tuple(sorted(self._ids[row] for row in rows))

    def _cycle(self, path: Sequence[Rows]) -> Cycle:
        """Return a cycle as a person reads it: forwards at the second point, if any of it is stated there."""
        backwards = any(self._graph.edges[step].then in self._closing for step in path)
        steps = [self._graph.edges[step] for step in (path[::-1] if backwards else path)]
        start = min(range(len(steps)), key=lambda k: steps[k].first)
        steps = [*steps[start:], *steps[:start]]
        return Cycle(
            self.points[backwards],
            tuple(
                Step(self._label(step.first), self._label(step.then), self._point(step), step.where, step.kind)
                for step in steps
            ),
        )

    def _label(self, row: int) -> str:
        """Return the name of a hook, and of which half of an around it is."""
        bound = self.vertices[row].bound
        verb = {"whole": "", "enter": f" (entering {bound.method})", "exit": f" (leaving {bound.method})"}[bound.half]
        return f'"{self._names[row]}"{verb}'

    def _binding(self, id_: int, row: int) -> Binding:
        bound = self.vertices[row].bound
        return Binding(
            id=id_,
            hook=self._names[row],
            point=bound.point,
            method=bound.method,
            half=bound.half,
            takes=bound.takes,
            trigger=bound.trigger,
            phase=PHASES[self._phase(row)],
            reads=bound.reads,
            writes=bound.writes,
            modules=bound.modules,
            parameters=bound.parameters,
            stages=bound.stages,
            prepend=bound.prepend,
            always_call=bound.always_call,
        )
