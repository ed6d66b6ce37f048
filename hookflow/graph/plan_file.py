"""Read a recorded plan: whatever the file contains, the result is a plan or a ValueError."""

from __future__ import annotations

from functools import cache

from pydantic import TypeAdapter, ValidationError

from hookflow.events.reading import read_json
from hookflow.graph.plan import Plan, check_version
from hookflow.graph.points import STANDARD


def parse_plan(text: str | bytes) -> Plan:
    """Return the plan that `Plan.to_json` wrote. Raises ValueError when it is something else."""
    data = read_json(text, nan=True)
    check_version(data)
    try:
        plan = _plans().validate_python(data)
    except ValidationError as error:
        (first, *_) = error.errors()
        raise ValueError(f"no plan: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    if [binding.id for binding in plan.bindings] != list(range(len(plan.bindings))):
        raise ValueError("no plan: its bindings are not numbered")
    names = [point.name for point in (*STANDARD, *plan.own)]
    if len(set(names)) < len(names):
        raise ValueError("no plan: two of its points have the same name")
    if strangers := _strangers(plan):
        raise ValueError(f"no plan: it has no {min(strangers)}")
    _check_ids(plan)
    return plan


def _strangers(plan: Plan) -> set[str]:
    """Return the points and hooks that a plan speaks of, and does not have."""
    points = {point.name for point in STANDARD}
    followed = set()
    for point in plan.own:
        followed |= {point.follows} - points  # one may follow another of its own that stands above it
        points.add(point.name)
    hooks = {hook.name for hook in plan.hooks}
    at = {binding.point for binding in plan.bindings} | {edge.point for edge in plan.edges}
    at |= {bundle.point for bundle in (*plan.bundles, *plan.given_way_bundles)}
    edges = (name for edge in plan.edges for name in (edge.first, edge.then))
    named = {*edges, *(binding.hook for binding in plan.bindings)}
    return {f"point {name}" for name in at - points | followed} | {f"hook {name}" for name in named - hooks}


def _check_ids(plan: Plan) -> None:
    """Raise ValueError where an edge or a bundle leads to no binding of the plan, or a bundle to one twice."""
    bundles = (*plan.bundles, *plan.given_way_bundles)
    sides = [ids for bundle in bundles for ids in (bundle.first_ids, bundle.then_ids)]
    if any(len(set(ids)) < len(ids) for ids in sides):
        raise ValueError("no plan: a bundle names a binding twice")
    sides += [(id_,) for edge in plan.edges for id_ in (edge.first_id, edge.then_id) if id_ is not None]
    if strangers := {id_ for ids in sides for id_ in ids if not 0 <= id_ < len(plan.bindings)}:
        raise ValueError(f"no plan: it has no binding {min(strangers)}")


@cache
def _plans() -> TypeAdapter[Plan]:
    return TypeAdapter(Plan)
