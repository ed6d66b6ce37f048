"""Why each hook of a point fires before the next: what every drawing of a plan, `check` and `why` draw on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from hookflow.graph.plan import Binding, Edge, Plan
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
    """Yield the edges of a point as they run down its order.

    A hook that stands at the point twice leads from where it stands last above the other one.
    """
    rows: dict[str, list[int]] = {}
    bound = plan.at(point)
    for row, binding in enumerate(bound):
        rows.setdefault(binding.hook, []).append(row)
    for edge in plan.edges_at(point):
        for row in rows.get(edge.then, ()):
            above = [other for other in rows.get(edge.first, ()) if other < row]
            if above:
                yield Link(bound[above[-1]], bound[row], "edge", edge)


def neighbours(plan: Plan, point: str) -> Iterator[Link]:
    """Yield each binding of a point with the one that follows it, and why it does."""
    by_edge = {(link.first.id, link.then.id): link for link in stated(plan, point)}
    for first, then in pairwise(plan.at(point)):
        yield by_edge.get((first.id, then.id)) or Link(first, then, unstated(first, then))


def unstated(first: Binding, then: Binding) -> Reason:
    """Return what orders two hooks that no edge does."""
    alike = (first.phase, first.half == "exit") == (then.phase, then.half == "exit")
    return "file" if alike else "phase"
