"""A part of a plan, as a plan: some points of it, or one hook and those that it has edges with."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from hookflow.graph.links import bound_points, stated
from hookflow.graph.plan import Binding, Edge, Plan


def only_points(plan: Plan, points: Collection[str]) -> Plan:
    """Return what the plan says of some points."""
    bundles, lost = (
        tuple(bundle for bundle in every if bundle.point in points) for every in (plan.bundles, plan.given_way_bundles)
    )
    plan = replace(plan, bundles=bundles, given_way_bundles=lost)
    return _narrowed(plan, lambda binding: binding.point in points, lambda edge: edge.point in points)


def only_hook(plan: Plan, hook: str) -> Plan:
    """Return every point at which the hook fires, and there the hook, its edges and who stands at their other ends."""
    own = {binding.id for binding in plan.bindings if binding.hook == hook}
    parts = tuple(part for bundle in plan.bundles for part in bundle.touching(own))
    plan = replace(plan, bundles=parts, given_way_bundles=())
    ends = [(link.first, link.then) for point in bound_points(plan) for link in stated(plan, point.name)]
    shown = {binding.id for pair in ends for binding in pair if hook in (pair[0].hook, pair[1].hook)}
    return _narrowed(
        plan,
        lambda binding: binding.hook == hook or binding.id in shown,
        lambda edge: hook in (edge.first, edge.then),
    )


def _narrowed(plan: Plan, bound: Callable[[Binding], bool], kept: Callable[[Edge], bool]) -> Plan:
    bindings = tuple(filter(bound, plan.bindings))
    there = {binding.hook for binding in bindings}
    return replace(
        plan,
        hooks=tuple(hook for hook in plan.hooks if hook.name in there),
        bindings=bindings,
        edges=tuple(filter(kept, plan.edges)),
        given_way=tuple(given for given in plan.given_way if kept(given.edge)),
    )
