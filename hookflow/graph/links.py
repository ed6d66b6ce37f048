"""Why each hook of a point fires before the next: what every drawing of a plan, `check` and `why` draw on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from hookflow.graph.closure import closure
from hookflow.graph.plan import PHASES, Binding, Bundle, Edge, Plan
from hookflow.graph.points import Point

Reason = Literal["edge", "phase", "file"]
"""What decides between two hooks: an edge, their phases, or nothing but their order in the file (or the shuffle)."""


@dataclass(frozen=True, slots=True)
class Link:
    """`first` fires before `then`; `edge` is what says so, unless the phases or the file's order do."""

    first: Binding
    then: Binding
    reason: Reason
    edge: Edge | None = None


def bound_points(plan: Plan) -> tuple[Point, ...]:
    """Return the points that have bindings, in the order of a run."""
    return tuple(point for point in plan.points if plan.at(point.name))


def stated(plan: Plan, point: str) -> Iterator[Link]:
    """Yield the edges of a point, each with the bindings at its ends; those in bundles last."""
    yield from unbundled(plan, point)
    by_id = {binding.id: binding for binding in plan.at(point)}
    for bundle in plan.bundles_at(point):
        for first, then in bundle.pairs(by_id):
            yield Link(first, then, "edge", bundle.edge(first, then))


def unbundled(plan: Plan, point: str) -> Iterator[Link]:
    """Yield the edges that stand for themselves."""
    by_id: dict[int | None, Binding] = {binding.id: binding for binding in plan.at(point)}
    by_name: dict[str, list[Binding]] = {}
    for binding in plan.at(point):
        by_name.setdefault(binding.hook, []).append(binding)
    for edge in plan.edges_at(point):
        first, then = by_id.get(edge.first_id), by_id.get(edge.then_id)
        if first and then:
            yield Link(first, then, "edge", edge)
        elif edge.first_id is None:
            yield from _of_hooks(edge, by_name)


def _of_hooks(edge: Edge, bound: Mapping[str, Sequence[Binding]]) -> Iterator[Link]:
    """Yield the links of a recorded edge that names hooks alone: from where `first` stands last above `then`."""
    for then in bound.get(edge.then, ()):
        above = [first for first in bound.get(edge.first, ()) if first.id < then.id]
        if above:
            yield Link(above[-1], then, "edge", edge)


def rows_of(plan: Plan, point: str) -> list[tuple[int, int]]:
    """Return the edges of a point by the places of their ends in its order."""
    row = {binding.id: row for row, binding in enumerate(plan.at(point))}
    return [(row[link.first.id], row[link.then.id]) for link in stated(plan, point)]


def neighbours(plan: Plan, point: str) -> Iterator[Link]:
    """Yield each binding of a point with the one that follows it, and why it does."""
    by_edge = {(link.first.id, link.then.id): link for link in unbundled(plan, point)}
    decided = Decided(plan, point)
    hands_on: dict[int, list[Bundle]] = {}
    for bundle in plan.bundles_at(point):
        for id_ in bundle.first_ids:
            hands_on.setdefault(id_, []).append(bundle)
    for first, then in pairwise(plan.at(point)):
        bundles = (bundle for bundle in hands_on.get(first.id, ()) if then.id in bundle.then_ids)
        bundled = (Link(first, then, "edge", bundle.edge(first, then)) for bundle in bundles)
        link = by_edge.get((first.id, then.id)) or next(bundled, None)
        yield link or Link(first, then, decided.reason(first, then))


def _own_phase(plan: Plan, binding: Binding) -> int:
    """Return the phase that a binding has by itself; the second half of an early around is late."""
    own = PHASES.index(plan.hook(binding.hook).phase)
    return len(PHASES) - 1 - own if binding.half == "exit" else own


class Decided:
    """What is decided between the hooks of a point, whatever the file's order.

    Second halves of arounds come after the plain methods of their phase. So who must wait for one comes after who need
    not: the file's order does not turn that, either. Sets of rows are whole numbers, a bit a row, as in
    `hookflow.graph.closure`.
    """

    def __init__(self, plan: Plan, point: str) -> None:
        bound = plan.at(point)
        self._row = {binding.id: row for row, binding in enumerate(bound)}
        before: list[list[int]] = [[] for _ in bound]
        for link in unbundled(plan, point):
            if link.edge and not link.edge.loose:
                before[self._row[link.then.id]].append(self._row[link.first.id])
        for bundle in plan.bundles_at(point):
            firsts, thens = (
                [self._row[id_] for id_ in ids if id_ in self._row] for ids in (bundle.first_ids, bundle.then_ids)
            )
            for row in thens:
                before[row] += firsts
        self.ancestors = closure(before, range(len(bound)))
        """For each row those that edges put before it; loose ones do not count."""
        self._own = [_own_phase(plan, binding) for binding in bound]
        exits: dict[str, int] = {}
        for row, binding in enumerate(bound):
            if binding.half == "exit":
                exits[binding.phase] = exits.get(binding.phase, 0) | 1 << row
        self._waits = [0] * len(bound)  # for which second halves of its phase each row waits, itself included
        self._later = [0] * len(bound)  # which of them surely come before another one for which it waits
        for row, binding in enumerate(bound) if exits else ():
            awaited = self.ancestors[row] & exits.get(binding.phase, 0)
            leaves = binding.half == "exit"
            self._waits[row] = awaited | leaves << row
            later = awaited if leaves else 0
            for first in before[row]:
                later |= self._later[first]
            self._later[row] = later

    def by_nesting(self, first: int, then: int) -> bool:
        """Say whether of two rows of one phase `first` comes first because `then` waits for more second halves."""
        waits, needs = self._waits[first], self._waits[then]
        return bool(needs) and not waits & ~self._later[then]

    def is_open(self, first: Binding, then: Binding) -> bool:
        """Say whether nothing that anybody has said of two bindings puts `first` first.

        Neither that second halves come last, nor a phase into which edges to other hooks have moved one of them, was
        said of the two.
        """
        upper, lower = self._row[first.id], self._row[then.id]
        if self.ancestors[lower] >> upper & 1:
            return False
        return first.phase == then.phase or self._own[upper] >= self._own[lower]

    def reason(self, first: Binding, then: Binding) -> Reason:
        """Return what puts one before the other."""
        upper, lower = self._row[first.id], self._row[then.id]
        if self.ancestors[lower] >> upper & 1:
            return "edge"
        return "phase" if first.phase != then.phase or self.by_nesting(upper, lower) else "file"
