"""The decisions on the order of two bindings of a point: edges, phases, or the file alone."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import networkx as nx

from hookflow.graph.plan import PHASES, Binding, Edge, Half, Phase, PlannedHook, Reason


@dataclass(frozen=True, slots=True)
class RankedBinding:
    """The place of a binding in the order of a point.

    It is a number, and the phase in which the binding fires.
    """

    id: int
    hook: str
    half: Half
    phase: Phase


OrderedBinding = Binding | RankedBinding


class PointDecisions:
    """The decided order of the bindings of a point, apart from the file.

    Loose edges decide nothing. A second half of an around comes after the plain methods of its
    phase. A binding that must wait for a second half comes after one that need not, whatever the
    order of the file.
    """

    def __init__(
        self,
        bound: Sequence[OrderedBinding],
        edges: Iterable[Edge],
        hooks: Mapping[str, PlannedHook],
    ) -> None:
        self._hooks = hooks
        self._graph: nx.DiGraph[int] = nx.DiGraph()
        self._graph.add_nodes_from(binding.id for binding in bound)
        self._graph.add_edges_from(
            (edge.first_id, edge.then_id) for edge in edges if not edge.loose
        )
        self._ancestors: dict[int, set[int]] = {}
        self._phase_of_exit = {
            binding.id: binding.phase for binding in bound if binding.half == "exit"
        }

    def is_ordered(self, first: OrderedBinding, then: OrderedBinding) -> bool:
        """Say whether edges lead from one binding to the other."""
        if self._graph.has_edge(first.id, then.id):
            return True
        return first.id in self._find_ancestors(then.id)

    def is_open(self, first: OrderedBinding, then: OrderedBinding) -> bool:
        """Say whether nothing is stated about the order of two hooks.

        The order in which arounds are left is never open. A phase into which edges have moved a
        hook states nothing.
        """
        if first.hook == then.hook or first.half == then.half == "exit":
            return False
        if self.may_be_turned(first.hook, then.hook):
            return False
        if first.phase != then.phase and self._read_stated_phase(first) < self._read_stated_phase(
            then
        ):
            return False
        return not self.is_ordered(first, then)

    def reason(self, first: OrderedBinding, then: OrderedBinding) -> Reason:
        """Return what puts one binding before the other."""
        if self.is_ordered(first, then):
            return "edge"
        if first.phase != then.phase or self._is_waiting_longer(first, then):
            return "phase"
        return "file"

    def may_be_turned(self, hook: str, other: str) -> bool:
        """Say whether one of two hooks allows either order, by `ambiguous_with`."""
        return (
            other in self._hooks[hook].ambiguous_with or hook in self._hooks[other].ambiguous_with
        )

    def _read_stated_phase(self, binding: OrderedBinding) -> int:
        """Return the phase that the hook states; the second half of an early around is late."""
        phase = PHASES.index(self._hooks[binding.hook].phase)
        if binding.half == "exit":
            return len(PHASES) - 1 - phase
        return phase

    def _is_waiting_longer(self, first: OrderedBinding, then: OrderedBinding) -> bool:
        """Say whether `then` surely waits for a later second half than those `first` waits for."""
        awaited = self._find_awaited_exits(then)
        if not awaited:
            return False
        earlier: set[int] = set()
        for exit_ in self._find_exits_up_to(then.id):
            phase = self._phase_of_exit[exit_]
            before = self._find_exits_up_to(exit_) - {exit_}
            earlier |= {other for other in before if self._phase_of_exit[other] == phase}
        return self._find_awaited_exits(first) <= earlier

    def _find_awaited_exits(self, binding: OrderedBinding) -> set[int]:
        """Return the second halves of its phase for which a binding waits, itself included."""
        exits = self._find_exits_up_to(binding.id)
        return {exit_ for exit_ in exits if self._phase_of_exit[exit_] == binding.phase}

    def _find_exits_up_to(self, binding: int) -> set[int]:
        """Return the second halves that edges put before a binding.

        The binding itself is included if it is one.
        """
        if not self._phase_of_exit:
            return set()
        return self._phase_of_exit.keys() & {binding, *self._find_ancestors(binding)}

    def _find_ancestors(self, binding: int) -> set[int]:
        if binding not in self._ancestors:
            self._ancestors[binding] = nx.ancestors(self._graph, binding)
        return self._ancestors[binding]
