"""Parts of a plan: some points, neighbours of hooks by edges, a slot, a kind of edge."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace

import networkx as nx

from hookflow.graph.plan import Binding, DroppedEdge, Edge, EdgeKind, Plan
from hookflow.graph.reduction import find_implied
from hookflow.graph.slots import iter_wider_slots


@dataclass(frozen=True, slots=True)
class PlanFilter:
    """Which bindings of a plan are shown: those that pass every part of the filter.

    An empty part lets all pass. With `hooks`, these are shown, and those that they have edges with.
    `ancestors` are hooks of which all that must fire before them at a point is shown; of
    `descendants`, all that must fire after them. With `slots`, hooks are shown that touch one of
    them. With a `kind`, edges of that kind are shown, and the hooks that have one.
    """

    points: Collection[str] = ()
    hooks: Collection[str] = ()
    ancestors: Collection[str] = ()
    descendants: Collection[str] = ()
    slots: Collection[str] = ()
    kind: EdgeKind | None = None

    @property
    def has_only_points(self) -> bool:
        """Whether nothing but points is chosen."""
        return not (self.hooks or self.ancestors or self.descendants or self.slots or self.kind)

    def apply(self, plan: Plan) -> Plan:
        """Return what the plan says of the bindings that pass, and of the edges between them."""
        shown = self._find_shown_bindings(plan)
        bindings = [binding for binding in plan.bindings if binding.id in shown]
        edges = [edge for edge in plan.edges if self._is_shown_edge(edge, shown)]
        dropped_edges: list[DroppedEdge] = []
        for dropped in plan.dropped_edges:
            if self._is_shown_edge(dropped.edge, shown):
                dropped_edges.append(dropped)
        names = {binding.hook for binding in bindings}
        return replace(
            plan,
            hooks=tuple(hook for hook in plan.hooks if hook.name in names),
            bindings=tuple(bindings),
            edges=tuple(self._with_implied(plan, edges)),
            dropped_edges=tuple(dropped_edges),
        )

    def _find_shown_bindings(self, plan: Plan) -> set[int]:
        """Return the ids of the bindings that pass."""
        shown = {binding.id for binding in plan.bindings}
        if self.points:
            shown = set()
            for binding in plan.bindings:
                if binding.point in self.points:
                    shown.add(binding.id)
        edges = [edge for edge in plan.edges if self._is_allowed_edge(edge)]
        if self.hooks:
            shown &= _find_bindings(plan, self.hooks) | _find_edge_ends(edges)
        if self.kind is not None:
            shown &= _find_edge_ends(edges)
        if self.ancestors:
            shown &= _find_reached(plan, self.ancestors, nx.ancestors)
        if self.descendants:
            shown &= _find_reached(plan, self.descendants, nx.descendants)
        if self.slots:
            shown &= {binding.id for binding in plan.bindings if _is_touching(binding, self.slots)}
        return shown

    def _is_allowed_edge(self, edge: Edge) -> bool:
        """Say whether an edge is one of the hooks, and of the kind."""
        if self.kind is not None and edge.kind != self.kind:
            return False
        if not self.hooks:
            return True
        return edge.first in self.hooks or edge.then in self.hooks

    def _is_shown_edge(self, edge: Edge, shown: set[int]) -> bool:
        """Say whether an edge is allowed and both of its ends are shown."""
        if edge.first_id not in shown or edge.then_id not in shown:
            return False
        return self._is_allowed_edge(edge)

    def _with_implied(self, plan: Plan, edges: list[Edge]) -> list[Edge]:
        """Return edges, of which those are implied that follow from others among them."""
        whole_points = [edge for edge in plan.edges if not self.points or edge.point in self.points]
        if edges == whole_points:
            return edges
        return mark_implied(edges)


def mark_implied(edges: Iterable[Edge]) -> list[Edge]:
    """Return edges, of which those are implied that follow from others among them."""
    edges = list(edges)
    implied = find_implied((edge.first_id, edge.then_id) for edge in edges)
    marked = []
    for edge in edges:
        is_implied = (edge.first_id, edge.then_id) in implied
        marked.append(replace(edge, implied=is_implied))
    return marked


def _find_bindings(plan: Plan, hooks: Collection[str]) -> set[int]:
    return {binding.id for binding in plan.bindings if binding.hook in hooks}


def _find_edge_ends(edges: Iterable[Edge]) -> set[int]:
    ends = set()
    for edge in edges:
        ends.add(edge.first_id)
        ends.add(edge.then_id)
    return ends


def _find_reached(
    plan: Plan, hooks: Collection[str], search: Callable[["nx.MultiDiGraph", int], set[int]]
) -> set[int]:
    """Return the bindings of hooks and those that a search of networkx finds from them.

    Loose edges decide nothing.
    """
    graph = plan.graph()
    for edge in plan.edges:
        if edge.loose:
            graph.remove_edge(edge.first_id, edge.then_id, key=edge.kind)
    starts = _find_bindings(plan, hooks)
    reached = set(starts)
    for binding in starts:
        reached |= search(graph, binding)
    return reached


def _is_touching(binding: Binding, slots: Collection[str]) -> bool:
    """Say whether a binding reads or writes one of the slots.

    A part of a slot, and what a slot is a part of, count, too.
    """
    for touched in (*binding.reads, *binding.writes):
        for slot in slots:
            if (
                touched == slot
                or touched in iter_wider_slots(slot)
                or slot in iter_wider_slots(touched)
            ):
                return True
    return False
