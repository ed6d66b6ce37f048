"""Why one hook fires before another: the edges that lead from it to the other, or what else decides."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

from hookflow.graph.links import Decided, Reason, unbundled
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

    A hook that stands at a point twice (with a method of its own and with half of an `around`) has an answer for each;
    so a hook may be asked of itself.
    """
    points = dict.fromkeys(binding.point for binding in plan.bindings)
    return [answer for point in points for answer in _answers(plan, point, a, b)]


def _answers(plan: Plan, point: str, a: str, b: str) -> Iterator[Answer]:
    asked = [binding for binding in plan.at(point) if binding.hook in (a, b)]
    pairs = [(first, then) for first, then in combinations(asked, 2) if {first.hook, then.hook} == {a, b}]
    if not pairs:
        return
    decided = Decided(plan, point)
    for first, then in pairs:
        reason = decided.reason(first, then)
        loose = reason == "file" and first.half == then.half == "exit"
        path = _path(plan, first, then, loose) if loose or reason == "edge" else ()
        yield Answer(point, first, then, "edge" if path else reason, path, tuple(_overruled(plan, point, a, b)))


def _overruled(plan: Plan, point: str, a: str, b: str) -> Iterator[GivenWay]:
    """Yield the flows between two hooks that are not kept at a point."""
    pair = {a, b}
    for overruled in plan.given_way:
        if overruled.edge.point == point and {overruled.edge.first, overruled.edge.then} == pair:
            yield overruled
    between = {binding.id: binding for binding in plan.at(point) if binding.hook in pair}
    for bundle in plan.given_way_bundles:
        for first, then in bundle.pairs(between) if bundle.point == point else ():
            if first.hook != then.hook:
                yield GivenWay(bundle.edge(first, then), ())


def _path(plan: Plan, first: Binding, then: Binding, loose: bool) -> tuple[Edge, ...]:
    """Return the edges of a shortest way down the order, if need be `loose` ones; none when there is no way."""
    follow: dict[int, list[tuple[Edge, int]]] = {}
    for link in unbundled(plan, first.point):
        if link.edge and link.edge.loose <= loose:
            follow.setdefault(link.first.id, []).append((link.edge, link.then.id))
    bindings = {binding.id: binding for binding in plan.at(first.point)}
    ways: dict[int, tuple[Edge, ...]] = {first.id: ()}
    waiting = deque([first.id])
    while waiting and then.id not in ways:
        here = waiting.popleft()
        for edge, there in follow.get(here, ()):
            if there not in ways:
                ways[there] = (*ways[here], edge)
                waiting.append(there)
        for bundle in plan.bundles_at(first.point):
            for there in bundle.then_ids if here in bundle.first_ids else ():
                if there in bindings and there not in ways:
                    ways[there] = (*ways[here], bundle.edge(bindings[here], bindings[there]))
                    waiting.append(there)
    return ways.get(then.id, ())
