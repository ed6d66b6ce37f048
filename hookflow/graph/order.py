"""A plan of declared hooks: names resolved, warnings collected, and the bindings at each point in order.

The bindings are ordered at one point, or at both points of an `around_X` together.

From strong to weak: stated edges, data flow, phase, the file's order. Weaker reasons give way to stronger ones.

How arounds are entered decides how they are left, so neither point can be ordered without the other. Both are one
graph: read `before_X` forwards and `after_X` backwards. An around is then one vertex, and what is stated at either
point is an edge. There is an order exactly where this graph has no cycle.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError
from hashlib import blake2b
from itertools import islice, pairwise

from hookflow.errors import Problem, UserError, Where, nearest
from hookflow.graph.edges import (
    MOST,
    EdgeGraph,
    Rows,
    Statement,
    between,
    closure,
    cycles_of,
    flows,
    ordered,
    rows_before,
)
from hookflow.graph.plan import PHASES, Binding, Edge, EdgeSpec, GivenWay, Half, Node, Nodes, Plan
from hookflow.graph.points import POINTS, Points
from hookflow.graph.slots import doubtful_slots, drifting_slots, with_own_state

NORMAL = PHASES.index("normal")
LAST = len(PHASES) - 1

Places = Mapping[tuple[str, str, Half], int]
"""Where a hook's method, or half of its around, is wanted at a point, as far as nothing else decides."""


def moved(
    phases: Sequence[int], before: Sequence[Collection[int]], order: Sequence[int], backwards: Collection[int]
) -> list[int]:
    """Return the phase of each row; `before` are the rows that edges put before it, `order` is a topological one.

    Phases of the `backwards` rows run backwards: early is late. These rows are settled among themselves first, so that
    which of two moves does not hang on that.
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
class Cycle:
    """A cycle at `point`: the names in the order of walking around it, and each edge's first hook and place.

    One of arounds may have edges at both of their points. Edges stated at the entry then run against the walk: the
    first entered is the last left.
    """

    point: str
    names: tuple[str, ...]
    steps: tuple[tuple[str, Where], ...]
    hints: tuple[str, ...]


class Order:
    """The order of one point, or of the two points of an around; where there are `cycles`, there is none."""

    def __init__(
        self,
        points: Sequence[str],
        nodes: Nodes,
        bound: Sequence[Binding],
        shuffle: int | None,
        wanted: Places | None = None,
    ) -> None:
        self.points = points
        self.cycles: list[Cycle] = []
        self._bound, self._shuffle, self._wanted = bound, shuffle, wanted
        self._names = [binding.hook for binding in bound]
        self._at = {point: [row for row, b in enumerate(bound) if b.point == point] for point in points}
        self._closing = set(self._at[points[1]]) if len(points) > 1 else set()
        self._exits = {bound[row].hook: row for row in self._closing if bound[row].half == "exit"}
        self._leaving = set(self._exits.values())
        self._entries = {binding.hook: row for row, binding in enumerate(bound) if binding.half == "enter"}
        self._spot = [self._entries[name] if row in self._leaving else row for row, name in enumerate(self._names)]
        self._graph = EdgeGraph(self._spot, self._closing)
        self._nesting: list[Statement] = []
        self._ids: dict[int, int] = {}
        self._add_stated(nodes)
        try:
            self._graph.sort()
        except CycleError:
            self.cycles = [self._cycle(path) for path in cycles_of(self._graph.edges)]
        else:
            at = [{row: bound[row] for row in self._at[point]} for point in points]
            self._graph.add_weak(flow for rows in at for flow in flows(rows))
            self._phases = self._moved_phases()
            self._add_own()
            self._rows = self._ordered()

    def bindings(self, point: str, first_id: int) -> list[Binding]:
        """Return the bindings of a point in their order, numbered from `first_id`."""
        self._ids |= {row: id_ for id_, row in enumerate(self._rows[point], first_id)}
        return [
            replace(self._bound[row], id=self._ids[row], phase=PHASES[self._phase(row)]) for row in self._rows[point]
        ]

    def edges(self, point: str) -> list[Edge]:
        """Return the edges that are kept at a point, once the bindings have their numbers."""
        every = sorted((*self._graph.edges.values(), *self._nesting), key=lambda statement: statement.kind == "flow")
        return [self._edge(statement) for statement in every if self._point(statement) == point]

    def given_way(self, point: str) -> list[GivenWay]:
        """Return the weaker edges of a point that are not kept, once the bindings have their numbers."""
        return [
            GivenWay(self._edge(flow), tuple(map(self._edge, path)))
            for flow, path in self._graph.overridden
            if self._point(flow) == point
        ]

    def _add_stated(self, nodes: Nodes) -> None:
        rows: dict[tuple[str, str], list[int]] = {}
        for row, binding in enumerate(self._bound):
            rows.setdefault((binding.hook, binding.point), []).append(row)
        for row, binding in enumerate(self._bound):
            node = nodes[binding.hook]
            for specs, is_after in ((node.after, True), (node.before, False)):
                for spec in specs:
                    for other in rows.get((spec.hook, binding.point), ()):
                        # how they were entered decides how they are left; an edge to itself is reported elsewhere
                        left = self._leaving.issuperset((row, other))
                        holds = spec.at in (None, (binding.point, binding.half))
                        if holds and spec.hook != binding.hook and not left:
                            first, then = (other, row) if is_after else (row, other)
                            self._graph.state(Statement(first, then, spec.kind, spec.where))

    def _moved_phases(self) -> list[int]:
        """Return the phase in which each row of the graph fires, counted backwards at the second point."""
        phases = [PHASES.index(binding.phase) for binding in self._bound]
        plain = self._closing - self._leaving
        for row in plain:
            phases[row] = LAST - phases[row]
        return moved(phases, self._graph.before, self._graph.sorted, plain)

    def _add_own(self) -> None:
        """Let the around of a hook enclose the hook's own plain methods, where nothing has said otherwise."""
        own = []
        for row, binding in enumerate(self._bound):
            entry = self._entries.get(binding.hook)
            if entry is not None and binding.half == "whole" and self._phases[entry] == self._phases[row]:
                where = Where(f'{self._bound[entry].method} of "{binding.hook}" encloses its own methods')
                rows = (row, self._exits[binding.hook]) if row in self._closing else (entry, row)
                own.append(Statement(*rows, "pair", where))
        self._graph.add_weak(own)

    def _ordered(self) -> dict[str, list[int]]:
        """Return the rows of each point as they fire, and note which edges follow from the nesting of arounds."""
        opening, *closing = self.points
        self._nesting += self._entered_as_left() if closing else ()
        rows = {opening: self._sort(opening)}
        if closing:
            self._nesting += self._left_as_entered([row for row in rows[opening] if self._bound[row].half == "enter"])
            rows[closing[0]] = self._sort(closing[0])
        return rows

    def _sort(self, point: str) -> list[int]:
        """Return the rows of a point in order: by edges, then phase (unless an order is wanted), then the tie."""
        at = self._at[point]
        by_phase = self._wanted is None
        keys = [(by_phase * self._phase(row), by_phase and row in self._leaving, self._tie(row)) for row in at]
        return [at[k] for k in ordered(self._local(point), keys.__getitem__)]

    def _local(self, point: str) -> list[list[int]]:
        """Return, for each row of a point, those before it; both by their place among the rows of the point."""
        at = {row: k for k, row in enumerate(self._at[point])}
        every = (*self._graph.edges.values(), *self._nesting)
        return rows_before(len(at), ((at[item.first], at[item.then]) for item in every if item.then in at))

    def _entered_as_left(self) -> Iterator[Statement]:
        """Yield who is entered before whom because of what is stated about how they are left."""
        opening, closing = self.points
        pairs = [(self._spot[then], self._spot[first]) for first, then in self._halves(closing)]
        for outer, inner in self._not_implied(opening, pairs):
            message = f'"{self._names[inner]}" is left before "{self._names[outer]}" at {closing}'
            yield Statement(outer, inner, "pair", Where(message))

    def _left_as_entered(self, entries: Sequence[int]) -> Iterator[Statement]:
        """Yield who is left before whom by how they were entered; loose where the file alone says that."""
        opening, closing = self.points
        firm = list(islice(self._halves(opening), MOST + 1))
        if len(firm) > MOST:
            message = f"at {opening}, more than {MOST:,} pairs of arounds are ordered by edges, which are too many"
            raise UserError(Problem(message, hint="declare fewer reads and writes of hooks with around_ methods"))
        neighbours = {pair: self._phases[pair[0]] == self._phases[pair[1]] for pair in pairwise(entries)}
        loose = {
            (self._exits[self._names[inner]], self._exits[self._names[outer]]): alone
            for (outer, inner), alone in (neighbours | dict.fromkeys(firm, False)).items()
        }
        for first, then in self._not_implied(closing, [*loose]):
            text = f'"{self._names[then]}" was entered before "{self._names[first]}"'
            yield Statement(first, then, "pair", Where(text), loose=loose[first, then])

    def _halves(self, point: str) -> Iterator[Rows]:
        """Yield which halves of arounds come before which others at a point, save what follows from other pairs."""
        at = self._at[point]
        halves = [k for k, row in enumerate(at) if self._bound[row].half != "whole"]
        return ((at[first], at[then]) for first, then in between(self._local(point), halves))

    def _not_implied(self, point: str, pairs: Sequence[Rows]) -> list[Rows]:
        """Return the pairs of rows that do not follow from the edges of a point."""
        at = {row: k for k, row in enumerate(self._at[point])}
        before = self._local(point)
        implied = closure(before, ordered(before)) if pairs else []
        return [(first, then) for first, then in pairs if not implied[at[then]] >> at[first] & 1]

    def _phase(self, row: int) -> int:
        phase = self._phases[self._spot[row]]
        return LAST - phase if row in self._closing else phase

    def _tie(self, row: int) -> tuple[bytes, int]:
        """Return what decides last: a wanted place, the file's order, or a random one of the seed, point and hook."""
        binding = self._bound[row]
        if self._wanted is not None:
            return b"", self._wanted[binding.point, binding.hook, binding.half]
        if self._shuffle is None:
            return b"", row
        return blake2b(f"{self._shuffle} {binding.point} {binding.hook}".encode()).digest(), row

    def _point(self, statement: Statement) -> str:
        return self._bound[statement.then].point

    def _edge(self, statement: Statement) -> Edge:
        first, then = self._bound[statement.first], self._bound[statement.then]
        ids = self._ids[statement.first], self._ids[statement.then]
        where = statement.where.at_line
        return Edge(then.point, first.hook, then.hook, statement.kind, where, statement.slots, *ids, statement.loose)

    def _cycle(self, path: Sequence[Rows]) -> Cycle:
        """Return a cycle as a person reads it: forwards at the second point, if any of it is stated there."""
        backwards = any(self._graph.edges[step].then in self._closing for step in path)
        point = self.points[backwards]
        steps = [self._graph.edges[step] for step in (path[::-1] if backwards else path)]
        start = min(range(len(steps)), key=lambda k: steps[k].first)
        steps = [*steps[start:], *steps[:start]]
        points = [self._point(step) for step in steps]
        mixed = any(other != point for other in points)
        names: list[str] = []
        hints: list[str] = []
        for step, at, next_at in zip(steps, points, [*points[1:], points[0]], strict=True):
            first, then = self._label(step.first), self._label(step.then)
            hints.append(f"{first} before {then}{f' at {at}' if mixed else ''}: {step.where}")
            if at == point:
                names += [first] if next_at == point else [first, then]
        if mixed:
            hints += [
                "what is entered first is left last",
                f'an edge may be that of one method alone: points = [{{ at = "{point}", after = ["…"] }}, …]',
            ]
        if any(step.kind == "class" for step in steps):
            hints.append("what a class says, the file can overrule: after = [] or before = [] in the hook's table")
        walk = tuple(name.replace('"', "") for name in (*names, names[0]))
        return Cycle(point, walk, tuple((self._label(step.first), step.where) for step in steps), tuple(hints))

    def _label(self, row: int) -> str:
        binding = self._bound[row]
        verb = {"whole": "", "enter": f" (entering {binding.method})", "exit": f" (leaving {binding.method})"}
        return f'"{binding.hook}"{verb[binding.half]}'


def compile_plan(
    pipeline: str,
    nodes: Nodes,
    disabled: Collection[str] = (),
    points: Points = POINTS,
    shuffle: int | None = None,
    wanted: Places | None = None,
) -> Plan:
    """Order the hooks at every point; where nothing else decides, by the file, or as the seed `shuffle` has it.

    `wanted` is the place of every binding, as far as nothing else decides. An edge to a hook in `disabled` is dropped.
    Raises UserError with every unknown name and every cycle at once; one at several points is reported once.
    """
    problems = [*_unknown(nodes, disabled)]
    nodes = with_own_state(nodes)
    orders = [Order(pair, nodes, bound, shuffle, wanted) for pair, bound in _together(nodes, points)]
    alike: dict[object, list[Cycle]] = {}
    for cycle in (cycle for order in orders for cycle in order.cycles):
        alike.setdefault(cycle.steps, []).append(cycle)
    for cycle, *others in alike.values():
        more = f" and {len(others)} more" if others else ""
        message = f"ordering cycle: {' → '.join(cycle.names)} at {cycle.point}{more}"
        problems.append(Problem(message, cycle.steps[0][1], "\n    ".join(cycle.hints)))
    if problems:
        raise UserError(problems)
    order_of = {point: order for order in orders for point in order.points}
    at = [(point.name, order_of[point.name]) for point in points if point.name in order_of]
    bindings: list[Binding] = []
    for point, order in at:
        bindings += order.bindings(point, first_id=len(bindings))
    return Plan(
        pipeline=pipeline,
        hooks=tuple(node.hook for node in nodes.values()),
        bindings=tuple(bindings),
        edges=tuple(edge for point, order in at for edge in order.edges(point)),
        own=tuple(point for point in points if point.kind == "own"),
        given_way=tuple(overruled for point, order in at for overruled in order.given_way(point)),
        warnings=(*_idle(nodes), *doubtful_slots(nodes, disabled), *drifting_slots(nodes)),
        shuffle=shuffle,
    )


def _together(nodes: Nodes, points: Points) -> Iterator[tuple[list[str], list[Binding]]]:
    """Yield the points that are ordered together, and what is bound there: those of an `around_X`, or one alone."""
    bound: dict[str, list[Binding]] = {point.name: [] for point in points}
    for node in nodes.values():
        for binding in node.bound:
            bound[binding.point].append(binding)
    opened_by = {closing: f"before_{pair}" for pair, closing in points.pairs.items()}
    together: dict[str, list[str]] = {}
    for point in bound:
        if bound[point]:
            together.setdefault(opened_by.get(point, point), []).append(point)
    for names in together.values():
        pair = sorted(names, key=lambda point: point in opened_by)
        yield pair, [binding for point in pair for binding in bound[point]]


def _unknown(nodes: Nodes, disabled: Collection[str]) -> Iterator[Problem]:
    for name, node in nodes.items():
        edges = {(spec.hook, spec.where): spec for spec in (*node.after, *node.before)}  # both halves have the same
        stated = [("has an edge to", edges.values()), ("is ambiguous with", node.ambiguous_with)]
        for verb, specs in (*stated, ("requires the hook", node.requires)):
            for spec in specs:
                required = verb.startswith("requires")
                if required and spec.optional:
                    message = f'hook "{name}" requires "{spec.hook}?", and what is required cannot be optional'
                    yield _at(message, spec, node, f'write "{spec.hook}", or an edge: after = ["{spec.hook}?"]')
                elif spec.hook == name and specs is not node.ambiguous_with:
                    yield _at(f'hook "{name}" cannot stand before or after itself', spec, node)
                elif spec.hook not in nodes and not spec.optional and (required or spec.hook not in disabled):
                    gone = "is switched off" if spec.hook in disabled else "is not in this pipeline"
                    hint = nearest(spec.hook, nodes)
                    hint = hint or (f'write "{spec.hook}?" if it may be missing' if not required else "")
                    yield _at(f'hook "{name}" {verb} "{spec.hook}", which {gone}', spec, node, hint)


def _at(message: str, spec: EdgeSpec, node: Node, hint: str = "") -> Problem:
    """Return a problem where the user wrote it: of what the hook's class states, that is the `use`."""
    if spec.kind == "class":
        return Problem(f"{message} (stated by {spec.where})", node.where, hint)
    return Problem(message, spec.where, hint)


def _idle(nodes: Nodes) -> Iterator[Problem]:
    """Yield a warning for each edge of the file between two hooks that never meet."""
    points = {name: {binding.point for binding in node.bound} for name, node in nodes.items()}
    for name, node in nodes.items():
        meets: dict[tuple[str, Where], bool] = {}  # an edge of one around stands at both of its points
        for spec in (*node.after, *node.before):
            if spec.kind == "file" and spec.hook in nodes:
                here = points[name] if spec.at is None else {spec.at[0]}
                key = spec.hook, spec.where
                meets[key] = meets.get(key, False) or not here.isdisjoint(points[spec.hook])
        for (other, where), meet in meets.items():
            if not meet:
                yield Problem(f'the edge between "{name}" and "{other}" can never matter: they share no point', where)
