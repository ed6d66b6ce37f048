"""Why one hook fires before another: the edges that lead from it to the other, or what else decides."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from hookflow.graph.links import Reason, stated, unstated
from hookflow.graph.plan import Binding, Edge, GivenWay, Plan


@dataclass(frozen=True, slots=True)
class Answer:
    """At `point`, `first` fires before `then`.

    `path` are the edges that lead from the one to the other, where edges are the `reason`; `overruled` the weaker
    edges between the two that gave way.
    """

    point: str
    first: Binding
    then: Binding
    reason: Reason
    path: tuple[Edge, ...] = ()
    overruled: tuple[GivenWay, ...] = ()


def precedence(plan: Plan, a: str, b: str) -> list[Answer]:
    """Return an answer for each point at which both hooks are bound, in the order of a run; none if they never meet.

    A hook that stands at a point twice (with a method of its own and with half of an `around`) has an answer for each.
    """
    return [
        _answer(plan, *sorted((one, other), key=lambda binding: binding.id))
        for point in dict.fromkeys(binding.point for binding in plan.bindings)
        for one in plan.at(point)
        if one.hook == a
        for other in plan.at(point)
        if other.hook == b and one is not other
    ]


def _answer(plan: Plan, first: Binding, then: Binding) -> Answer:
    path = _path(plan, first, then)
    reason: Reason = "edge" if path else unstated(first, then)
    pair = {first.hook, then.hook}
    overruled = tuple(
        given
        for given in plan.given_way
        if given.edge.point == first.point and {given.edge.first, given.edge.then} == pair
    )
    return Answer(first.point, first, then, reason, path, overruled)


def _path(plan: Plan, first: Binding, then: Binding) -> tuple[Edge, ...]:
    """Return the edges of a shortest way down the order; none when there is no way."""
    follow: dict[int, list[tuple[Edge, int]]] = {}
    for link in stated(plan, first.point):
        if link.edge:
            follow.setdefault(link.first.id, []).append((link.edge, link.then.id))
    ways: dict[int, tuple[Edge, ...]] = {first.id: ()}
    waiting = deque([first.id])
    while waiting and then.id not in ways:
        here = waiting.popleft()
        for edge, there in follow.get(here, ()):
            if there not in ways:
                ways[there] = (*ways[here], edge)
                waiting.append(there)
    return ways.get(then.id, ())
