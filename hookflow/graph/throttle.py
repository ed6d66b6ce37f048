"""Hooks that skip firings while they are over their budget, and what keeps one from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from hookflow.errors import Problem, Where
from hookflow.graph.offload import OWNED, read_by_others
from hookflow.graph.plan import Binding, Nodes, Plan
from hookflow.graph.slots import root


def is_thinned(plan: Plan, binding: Binding) -> bool:
    """Return whether a binding skips firings while its hook is over its budget: where it costs iterations their time.

    The second half of an around follows the first.
    """
    costs = binding.half != "exit" and plan.points.in_iteration(binding.point)
    return costs and bool(plan.hook(binding.hook).throttle)


@dataclass(frozen=True, slots=True)
class Limit:
    """The budget that a hook is to keep by firing less often, where the file says so, and what is in the way.

    `stateful` says whether its state is saved.
    """

    budget: str
    where: Where
    stateful: bool
    obstacle: str = ""


def with_throttling(plan: Plan, limits: Mapping[str, Limit], nodes: Nodes) -> tuple[Plan, list[Problem]]:
    """Return the plan with its throttled hooks, and a problem for each hook that may skip no firing.

    A warning names who comes after such a hook, a note one that saves a state: both depend on how often it fires.
    """
    hooks = [replace(h, throttle=limits[h.name].budget) if h.name in limits else h for h in plan.hooks]
    plan = replace(plan, hooks=tuple(hooks))
    problems: list[Problem] = []
    warnings: list[Problem] = []
    notes: list[Problem] = []
    for name, limit in limits.items():
        if obstacle := next(_obstacles(plan, name, nodes), limit.obstacle):
            message = f'hook "{name}" cannot fire less often: {obstacle}'
            problems.append(Problem(message, limit.where, 'over_budget = "warn"'))
            continue
        if limit.stateful:
            message = f'"{name}" saves a state; with over_budget = "throttle" that depends on the speed of the machine'
            notes.append(Problem(message, limit.where))
        edges = [edge for edge in plan.edges if edge.first == name and edge.kind in ("file", "class")]
        for edge in {edge.then: edge for edge in edges if is_thinned(plan, plan.bindings[edge.first_id])}.values():
            message = f'"{edge.then}" comes after "{name}" ({edge.where}), and fires without it where that is skipped'
            warnings.append(Problem(message, limit.where))
    return replace(plan, warnings=(*plan.warnings, *warnings), notes=(*plan.notes, *notes)), problems


def _obstacles(plan: Plan, hook: str, nodes: Nodes) -> Iterator[str]:
    """Yield why a hook must fire whenever it is due."""
    bindings = [binding for binding in plan.bindings if binding.hook == hook]
    for binding in bindings:
        if plan.points[binding.point].kind == "comm":
            yield f"at {binding.point} it takes the place of PyTorch's own work"
        for slot in binding.writes:
            if root(slot) in OWNED:
                yield f"it writes {slot} at {binding.point}, which would depend on the speed of the machine"
    if not any(is_thinned(plan, binding) for binding in bindings):
        yield "it fires at no point of an iteration"
    yield from read_by_others(plan, hook, bindings)
    for other in nodes.values():
        if any(spec.hook == hook for spec in other.requires):
            yield f'"{other.hook.name}" requires it'
