"""The edges at one point, or at the two points of an `around_X` as one graph; what is weaker gives way.

Stated edges come first. Data flow is added where it contradicts none of them, and then none of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError
from itertools import chain

from hookflow.errors import Where
from hookflow.graph.closure import closure
from hookflow.graph.flow import MANY, Flow
from hookflow.graph.plan import EdgeKind
from hookflow.graph.sort import Rows, ordered


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

    A row stands in the graph at its `spot`: the second half of an around where its first half does. The rows in
    `closing` are at the second point, which runs backwards. Flows of many edges are kept whole, as `bundles`: each is
    one more row, behind the others, which stands after all that hand on and before all that are handed to.
    `overridden` is what gave way, each with the edges that it would have closed to a cycle.
    """

    def __init__(self, names: Sequence[str], spot: Sequence[int], closing: Collection[int]) -> None:
        self.edges: dict[Rows, Statement] = {}
        self.bundles: list[Flow] = []
        self.overridden: list[tuple[Statement, list[Statement]]] = []
        self.sorted: list[int] = []
        """All rows in an order that the edges allow."""
        self._names = names
        self._spot = spot
        self._closing = closing

    @property
    def before(self) -> list[list[int]]:
        """For each row, bundles too, those that an edge puts before it."""
        return self._before(self.edges, self.bundles)

    def sort(self) -> None:
        """Learn an order. Raises graphlib.CycleError where there is none."""
        self.sorted = ordered(self.before)

    def state(self, statement: Statement) -> None:
        """Add what somebody has stated; of two that say the same the first counts."""
        self.edges.setdefault(self._rows_of(statement), statement)

    def add_flows(self, found: Sequence[Flow]) -> None:
        """Add an edge from each writer of a slot to its readers, save where that would close a cycle."""
        bundles = []
        if any(len(flow) > MANY for flow in found):
            implied = closure(self.before, self.sorted)
            parted = [self._parted(flow, implied) if len(flow) > MANY else (None, [flow]) for flow in found]
            bundles = [bundle for bundle, _ in parted if bundle]
            found = [flow for _, rest in parted for flow in rest]
        self.add_weak(self._single(found), bundles)

    def add_weak(self, statements: Iterable[Statement], bundles: Sequence[Flow] = ()) -> None:
        """Add edges save those that would close a cycle; no stronger one contradicts the `bundles`.

        First the edges go that stronger ones contradict, then those that contradict one another: all of them, so that
        what is left does not hang on the file's order.
        """
        weak = {self._rows_of(statement): statement for statement in statements}
        if not weak and not bundles:
            return
        implied = closure(self.before, self.sorted)
        contradicted = [(first, then) for first, then in weak if implied[first] >> then & 1]
        self._override(weak, contradicted, self.edges)
        try:
            ordered(self._before(chain(self.edges, weak), [*self.bundles, *bundles]))
        except CycleError:
            from hookflow.graph.strong_components import in_cycles

            if bundles:  # each of their edges has to be looked at for itself
                every = (*weak.values(), *self._single(bundles))
                weak = {self._rows_of(one): one for one in sorted(every, key=lambda one: (one.first, one.then))}
                bundles = ()
            whole = self.edges | weak
            lost = [rows for rows in in_cycles(chain(whole, self._arcs(self.bundles))) if rows in weak]
            self._override(weak, lost, whole)
        self.edges |= weak
        self.bundles += bundles
        self.sort()

    def _override(self, weak: dict[Rows, Statement], lost: Sequence[Rows], edges: Mapping[Rows, Statement]) -> None:
        """Take the `lost` edges out of `weak`; each flow keeps the way that it would have closed to a cycle."""
        gone = {rows: weak.pop(rows) for rows in lost}
        told = [rows for rows, statement in gone.items() if statement.kind == "flow"]
        if told:
            from hookflow.graph.strong_components import ways

            for rows, way in zip(told, ways([(then, first) for first, then in told], edges), strict=True):
                statement, steps = gone[rows], [edges[step] for step in way]
                self.overridden.append((statement, steps[::-1] if statement.then in self._closing else steps))

    def _parted(self, flow: Flow, implied: Sequence[int]) -> tuple[Flow | None, list[Flow]]:
        """Return what of a flow can be kept whole, and the rest.

        The rest are the edges of rows with any that is stated, too, or contradicted, or would lead to the hook itself.
        """
        tails, heads = self._ends(flow)
        ends = set(heads)
        mask = sum(1 << head for head in ends)
        names = {self._names[head] for head in ends}
        beside = {tail for tail, head in self.edges if head in ends}
        beside |= {tail for tail in tails if self._names[tail] in names or implied[tail] & mask}
        backwards = flow.thens[0] in self._closing
        rows = flow.thens if backwards else flow.firsts
        parts = [tuple(row for row in rows if (self._spot[row] in beside) == chosen) for chosen in (False, True)]
        whole, rest = (replace(flow, thens=part) if backwards else replace(flow, firsts=part) for part in parts)
        return (whole, [rest]) if len(whole) > MANY else (None, [flow])

    def _single(self, found: Iterable[Flow]) -> Iterator[Statement]:
        """Yield an edge for each pair of flows, unless it is stated, too."""
        for first, then, slots in sorted(pair for flow in found for pair in flow.pairs()):
            if self._names[first] != self._names[then]:
                statement = Statement(first, then, "flow", Where(""), slots)
                if self._rows_of(statement) not in self.edges:
                    yield statement

    def _rows_of(self, statement: Statement) -> Rows:
        """Return a statement as an edge of the graph, in which the second point runs backwards."""
        first, then = self._spot[statement.first], self._spot[statement.then]
        return (then, first) if statement.then in self._closing else (first, then)

    def _ends(self, flow: Flow) -> tuple[list[int], list[int]]:
        """Return where the edges of a flow begin in the graph, and where they end."""
        firsts, thens = ([self._spot[row] for row in rows] for rows in (flow.firsts, flow.thens))
        return (thens, firsts) if flow.thens[0] in self._closing else (firsts, thens)

    def _arcs(self, bundles: Sequence[Flow]) -> Iterator[Rows]:
        """Yield the edges of the graph that lead to and from the rows of bundles."""
        for hub, (tails, heads) in enumerate(map(self._ends, bundles), len(self._names)):
            yield from ((tail, hub) for tail in tails)
            yield from ((hub, head) for head in heads)

    def _before(self, edges: Iterable[Rows], bundles: Sequence[Flow]) -> list[list[int]]:
        return rows_before(len(self._names) + len(bundles), chain(edges, self._arcs(bundles)))


def rows_before(count: int, edges: Iterable[Rows]) -> list[list[int]]:
    """Return, for each of so many rows, those that an edge puts before it."""
    before: list[list[int]] = [[] for _ in range(count)]
    for first, then in edges:
        before[then].append(first)
    return before
