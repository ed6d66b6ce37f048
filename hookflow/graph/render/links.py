"""Why each hook of a point fires before the next: what every drawing of a plan, and `hookflow check`, draw on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from hookflow.graph.plan import Binding, Edge, Plan
from hookflow.graph.points import POINTS, Point

Reason = Literal["edge", "phase", "file"]
"""What decides between two hooks: a stated edge, their phases, or nothing but their order in the file."""


@dataclass(frozen=True, slots=True)
class Link:
    """`first` fires before `then`; `edge` is what says so, unless the phases or the file's order do."""

    first: Binding
    then: Binding
    reason: Reason
    edge: Edge | None = None


def bound_points(plan: Plan) -> tuple[Point, ...]:
    """Return the points that have bindings, in the order of a run."""
    return tuple(point for point in POINTS if plan.at(point.name))


def stated(plan: Plan, point: str) -> Iterator[Link]:
    """Yield the stated edges of a point as they run down its order.

    A hook that stands at the point twice leads from where it stands last above the other one.
    """
    bound = plan.at(point)
    for edge in plan.edges_at(point):
        for row, then in enumerate(bound):
            above = [binding for binding in bound[:row] if binding.hook == edge.first]
            if then.hook == edge.then and above:
                yield Link(above[-1], then, "edge", edge)


def neighbours(plan: Plan, point: str) -> Iterator[Link]:
    """Yield each binding of a point with the one that follows it, and why it does."""
    by_edge = {(link.first.id, link.then.id): link for link in stated(plan, point)}
    for first, then in pairwise(plan.at(point)):
        alike = (first.phase, first.half == "exit") == (then.phase, then.half == "exit")
        yield by_edge.get((first.id, then.id)) or Link(first, then, "file" if alike else "phase")


def marks(binding: Binding) -> list[str]:
    """Return what is out of the ordinary about a binding: the half of an `around`, the phase, the trigger."""
    half = f"{binding.method} {binding.half}" if binding.half != "whole" else ""
    phase = binding.phase if binding.phase != "normal" else ""
    return [mark for mark in (half, phase, str(binding.trigger)) if mark]


def place_of(edge: Edge) -> str:
    """Return where an edge was stated, briefly: the file without its folders, or the kind of place."""
    if edge.kind == "pair":
        return "last in, first out"
    if edge.where.startswith("--set "):
        return "--set"
    return edge.where.rpartition("/")[2]
