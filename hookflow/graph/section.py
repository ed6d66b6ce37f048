"""The order of one point, or of both points of an `around_X` together.

How arounds are entered decides how they are left, so neither of the two points can be ordered
without the other. From strong to weak: stated edges, data flow, phase, the order of the file.
Weaker reasons give way to stronger ones.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from hashlib import blake2b
from itertools import pairwise

import networkx as nx

from hookflow.errors import Where
from hookflow.graph.cycles import OrderingCycle, describe_cycle
from hookflow.graph.dataflow import EdgeStatement, find_flows
from hookflow.graph.decisions import PointDecisions, RankedBinding
from hookflow.graph.nesting import NestingGraph
from hookflow.graph.phases import LAST_PHASE, move_phases
from hookflow.graph.plan import (
    PHASES,
    Binding,
    BindingKey,
    DeclaredBinding,
    DroppedEdge,
    Edge,
    EdgeSpec,
    Nodes,
    PlannedHook,
    Reason,
    WantedPlaces,
)
from hookflow.graph.reduction import find_implied, reduce_to


class SectionOrder:
    """The order of the bindings of one point or two. Where there are `cycles`, there is none.

    A row is the place of a binding in `bound`. First give all bindings their ids with `number`;
    then `bindings`, `edges` and `dropped_edges` have what the plan records.
    """

    def __init__(
        self,
        points: Sequence[str],
        nodes: Nodes,
        bound: Sequence[DeclaredBinding],
        shuffle: int | None,
        wanted: WantedPlaces | None = None,
    ) -> None:
        self.points = points
        self.cycles: list[OrderingCycle] = []
        self._bound = bound
        self._shuffle = shuffle
        self._wanted = wanted
        self._rows_at: dict[str, list[int]] = {point: [] for point in points}
        self._enter_rows: dict[str, int] = {}  # by hook
        self._exit_rows: dict[str, int] = {}
        for row, binding in enumerate(bound):
            self._rows_at[binding.point].append(row)
            if binding.half == "enter":
                self._enter_rows[binding.hook] = row
            elif binding.half == "exit":
                self._exit_rows[binding.hook] = row
        self._closing: set[int] = set()
        if len(points) > 1:
            self._closing.update(self._rows_at[points[1]])
        self._exits = set(self._exit_rows.values())
        self._ids: dict[int, int] = {}
        self._nesting: list[EdgeStatement] = []
        self._order: dict[str, list[int]] = {}  # by point, the rows as they fire
        self._implied: set[tuple[int, int]] = set()
        self._phases: dict[int, int] = {}

        vertices = [self._find_vertex(row) for row in range(len(bound))]
        self._graph = NestingGraph(vertices, self._closing)
        self._add_stated(nodes)
        cycles = self._graph.find_cycles()
        if cycles:
            self.cycles = [describe_cycle(cycle, bound, points, self._closing) for cycle in cycles]
            return
        self._add_flows()
        self._move_phases()
        self._add_own_methods()
        self._sort_points()

    def number(self, point: str, first_id: int) -> int:
        """Number the bindings of a point in their order, and return the number that follows."""
        for row in self._order[point]:
            self._ids[row] = first_id
            first_id += 1
        return first_id

    def bindings(
        self,
        point: str,
        hooks: Mapping[str, PlannedHook],
        beside: Mapping[str, Collection[BindingKey]],
    ) -> Iterator[Binding]:
        """Yield the bindings of a point in order, each with what puts it behind the one before.

        `beside` are the bindings that fire beside the training, by hook.
        """
        ranked = []
        for row in self._order[point]:
            declared = self._bound[row]
            ranked.append(
                RankedBinding(
                    self._ids[row], declared.hook, declared.half, PHASES[self._phase(row)]
                )
            )
        decisions = PointDecisions(ranked, self.edges(point), hooks)
        reasons: list[Reason] = ["file"]
        reasons += [decisions.reason(first, then) for first, then in pairwise(ranked)]
        for row, rank, reason in zip(self._order[point], ranked, reasons, strict=True):
            declared = self._bound[row]
            yield Binding(
                id=rank.id,
                hook=declared.hook,
                point=declared.point,
                method=declared.method,
                half=declared.half,
                takes=declared.takes,
                trigger=declared.trigger,
                phase=rank.phase,
                reads=declared.reads,
                writes=declared.writes,
                modules=declared.modules,
                parameters=declared.parameters,
                stages=declared.stages,
                prepend=declared.prepend,
                always_call=declared.always_call,
                beside=declared.key in beside.get(declared.hook, ()),
                placed_by=reason,
            )

    def edges(self, point: str) -> list[Edge]:
        """Return the edges that are kept at a point; data flow comes last."""
        here = [
            statement
            for statement in self._list_statements()
            if self._bound[statement.then].point == point
        ]
        here.sort(key=lambda statement: statement.kind == "flow")
        return [self._edge(statement) for statement in here]

    def dropped_edges(self, point: str) -> list[DroppedEdge]:
        """Return the flows of a point that are not kept."""
        result = []
        for dropped in self._graph.dropped:
            if self._bound[dropped.statement.then].point == point:
                against = tuple(self._edge(statement) for statement in dropped.against)
                result.append(DroppedEdge(self._edge(dropped.statement), dropped.reason, against))
        return result

    def _list_statements(self) -> list[EdgeStatement]:
        return [*self._graph.statements.values(), *self._nesting]

    def _edge(self, statement: EdgeStatement) -> Edge:
        first = self._bound[statement.first]
        then = self._bound[statement.then]
        return Edge(
            point=then.point,
            first=first.hook,
            then=then.hook,
            kind=statement.kind,
            where=statement.where.at_line,
            slots=statement.slots,
            first_id=self._ids[statement.first],
            then_id=self._ids[statement.then],
            loose=statement.loose,
            implied=(statement.first, statement.then) in self._implied,
            group=statement.group,
        )

    # The graph

    def _find_vertex(self, row: int) -> int:
        """Return the vertex of a row.

        The second half of an around has that of its first half.
        """
        if row in self._exits:
            return self._enter_rows[self._bound[row].hook]
        return row

    def _add_stated(self, nodes: Nodes) -> None:
        """Add the edges that the file and the classes state."""
        rows_of: dict[tuple[str, str], list[int]] = {}
        for row, binding in enumerate(self._bound):
            rows_of.setdefault((binding.hook, binding.point), []).append(row)
        for row, binding in enumerate(self._bound):
            node = nodes[binding.hook]
            for spec in node.after:
                for other in self._iter_other_rows(row, spec, rows_of):
                    self._graph.add_stated(
                        EdgeStatement(other, row, spec.kind, spec.where, group=spec.group)
                    )
            for spec in node.before:
                for other in self._iter_other_rows(row, spec, rows_of):
                    self._graph.add_stated(
                        EdgeStatement(row, other, spec.kind, spec.where, group=spec.group)
                    )

    def _iter_other_rows(
        self, row: int, spec: EdgeSpec, rows_of: Mapping[tuple[str, str], list[int]]
    ) -> Iterator[int]:
        """Yield the rows to which a stated edge of a row leads.

        Between two second halves it leads nowhere: how they were entered decides how they are left.
        An edge of a hook to itself is reported elsewhere.
        """
        binding = self._bound[row]
        if spec.hook == binding.hook or spec.at not in (None, (binding.point, binding.half)):
            return
        for other in rows_of.get((spec.hook, binding.point), ()):
            if row not in self._exits or other not in self._exits:
                yield other

    def _add_flows(self) -> None:
        flows: list[EdgeStatement] = []
        for point in self.points:
            flows += find_flows({row: self._bound[row] for row in self._rows_at[point]})
        self._graph.add_weak(flows)

    def _move_phases(self) -> None:
        """Find the phase of each vertex, counted backwards at the second point."""
        backwards = self._closing - self._exits
        phases = {}
        for vertex in self._graph.digraph:
            phase = PHASES.index(self._bound[vertex].phase)
            if vertex in backwards:
                phases[vertex] = LAST_PHASE - phase
            else:
                phases[vertex] = phase
        self._phases = move_phases(self._graph.digraph, phases, backwards)

    def _add_own_methods(self) -> None:
        """Let the around of a hook enclose the hook's own plain methods.

        Statements to the contrary go first.
        """
        own = []
        for row, binding in enumerate(self._bound):
            enter = self._enter_rows.get(binding.hook)
            if enter is None or binding.half != "whole" or self._phases[enter] != self._phases[row]:
                continue
            where = Where(
                f'{self._bound[enter].method} of "{binding.hook}" encloses its own methods'
            )
            if row in self._closing:
                own.append(EdgeStatement(row, self._exit_rows[binding.hook], "nesting", where))
            else:
                own.append(EdgeStatement(enter, row, "nesting", where))
        self._graph.add_weak(own)

    # The order

    def _sort_points(self) -> None:
        """Find the order of each point, the edges of nested arounds, and the implied edges."""
        opening, *closing = self.points
        if closing:
            self._nesting += self._find_entry_statements()
        self._order[opening] = self._sort(opening)
        if closing:
            self._nesting += self._left_as_entered()
            self._order[closing[0]] = self._sort(closing[0])
        for point in self.points:
            self._implied |= find_implied(self._local_graph(point).edges)

    def _sort(self, point: str) -> list[int]:
        return list(
            nx.lexicographical_topological_sort(self._local_graph(point), key=self._sort_key)
        )

    def _sort_key(self, row: int) -> tuple[int, bool, bytes, int]:
        """Return what decides where edges do not.

        That is the phase, plain methods before second halves, and then the tie. The tie is decided
        by the order of the file, or by the seed of a shuffle, the point and the name. Where an
        order is wanted, that decides alone.
        """
        binding = self._bound[row]
        if self._wanted is not None:
            return 0, False, b"", self._wanted[binding.point, binding.hook, binding.half]
        tie = b""
        if self._shuffle is not None:
            tie = blake2b(f"{self._shuffle} {binding.point} {binding.hook}".encode()).digest()
        return self._phase(row), row in self._exits, tie, row

    def _phase(self, row: int) -> int:
        phase = self._phases[self._find_vertex(row)]
        if row in self._closing:
            return LAST_PHASE - phase
        return phase

    def _local_graph(self, point: str) -> "nx.DiGraph":
        """Return the edges between the rows of a point, in the order of firing."""
        graph: nx.DiGraph[int] = nx.DiGraph()
        graph.add_nodes_from(self._rows_at[point])
        for statement in self._list_statements():
            if self._bound[statement.then].point == point:
                graph.add_edge(statement.first, statement.then)
        return graph

    def _find_entry_statements(self) -> Iterator[EdgeStatement]:
        """Yield who is entered before whom because of what is stated about how they are left."""
        opening, closing = self.points
        exits = self._exits.intersection(self._rows_at[closing])
        pairs = []
        for first, then in reduce_to(self._local_graph(closing), exits):
            pairs.append((self._find_vertex(then), self._find_vertex(first)))
        for outer, inner in self._without_implied(opening, pairs):
            hooks = self._bound[inner].hook, self._bound[outer].hook
            message = f'"{hooks[0]}" is left before "{hooks[1]}" at {closing}'
            yield EdgeStatement(outer, inner, "nesting", Where(message))

    def _left_as_entered(self) -> Iterator[EdgeStatement]:
        """Yield who is left before whom by how they were entered.

        A pair is loose where the file alone says that.
        """
        opening, closing = self.points
        entered = [row for row in self._order[opening] if self._bound[row].half == "enter"]
        is_loose: dict[tuple[int, int], bool] = {}
        for outer, inner in pairwise(entered):
            is_loose[outer, inner] = self._phases[outer] == self._phases[inner]
        for outer, inner in reduce_to(self._local_graph(opening), entered):
            is_loose[outer, inner] = False
        pairs = {}
        for (outer, inner), loose in is_loose.items():
            pairs[self._exit_row(inner), self._exit_row(outer)] = loose
        for first, then in self._without_implied(closing, list(pairs)):
            text = f'"{self._bound[then].hook}" was entered before "{self._bound[first].hook}"'
            yield EdgeStatement(first, then, "nesting", Where(text), loose=pairs[first, then])

    def _exit_row(self, enter: int) -> int:
        return self._exit_rows[self._bound[enter].hook]

    def _without_implied(
        self, point: str, pairs: Sequence[tuple[int, int]]
    ) -> list[tuple[int, int]]:
        """Return the pairs of rows that do not follow from the edges of a point."""
        graph = self._local_graph(point)
        descendants = cache(lambda row: nx.descendants(graph, row))
        return [(first, then) for first, then in pairs if then not in descendants(first)]
