"""Compile declared hooks into a plan: resolve names, order each point, and collect warnings."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from hookflow.errors import Problem, UserError, Where, nearest
from hookflow.graph.order import Cycle, Order, Places
from hookflow.graph.plan import Binding, EdgeSpec, Node, Nodes, Plan
from hookflow.graph.points import POINTS, Points
from hookflow.graph.slots import doubtful_slots, drifting_slots, with_own_state


def compile_plan(
    pipeline: str,
    nodes: Nodes,
    disabled: Collection[str] = (),
    points: Points = POINTS,
    shuffle: int | None = None,
    wanted: Places | None = None,
) -> Plan:
    """Order the hooks at every point; where nothing else decides, by the file, or as the seed `shuffle` has it.

    `wanted` is the place of every binding, as far as nothing else decides. An edge to a hook in `disabled` is dropped.
    Raises UserError with every unknown name and every cycle at once; one at several points is reported once.
    """
    problems = [*_unknown(nodes, disabled)]
    nodes = with_own_state(nodes)
    orders = [Order(pair, nodes, bound, shuffle, wanted) for pair, bound in _together(nodes, points)]
    alike: dict[object, list[Cycle]] = {}
    for cycle in (cycle for order in orders for cycle in order.cycles):
        alike.setdefault(cycle.steps, []).append(cycle)
    for cycle, *others in alike.values():
        more = f" and {len(others)} more" if others else ""
        message = f"ordering cycle: {' → '.join(cycle.names)} at {cycle.point}{more}"
        problems.append(Problem(message, cycle.steps[0][1], "\n    ".join(cycle.hints)))
    if problems:
        raise UserError(problems)
    order_of = {point: order for order in orders for point in order.points}
    at = [(point.name, order_of[point.name]) for point in points if point.name in order_of]
    bindings: list[Binding] = []
    for point, order in at:
        bindings += order.bindings(point, first_id=len(bindings))
    return Plan(
        pipeline=pipeline,
        hooks=tuple(node.hook for node in nodes.values()),
        bindings=tuple(bindings),
        edges=tuple(edge for point, order in at for edge in order.edges(point)),
        own=tuple(point for point in points if point.kind == "own"),
        given_way=tuple(overruled for point, order in at for overruled in order.given_way(point)),
        warnings=(*_idle(nodes), *doubtful_slots(nodes, disabled), *drifting_slots(nodes)),
        shuffle=shuffle,
    )


def _together(nodes: Nodes, points: Points) -> Iterator[tuple[list[str], list[Binding]]]:
    """Yield the points that are ordered together, and what is bound there: those of an `around_X`, or one alone."""
    bound: dict[str, list[Binding]] = {point.name: [] for point in points}
    for node in nodes.values():
        for binding in node.bound:
            bound[binding.point].append(binding)
    opened_by = {closing: f"before_{pair}" for pair, closing in points.pairs.items()}
    together: dict[str, list[str]] = {}
    for point in bound:
        if bound[point]:
            together.setdefault(opened_by.get(point, point), []).append(point)
    for names in together.values():
        pair = sorted(names, key=lambda point: point in opened_by)
        yield pair, [binding for point in pair for binding in bound[point]]


def _unknown(nodes: Nodes, disabled: Collection[str]) -> Iterator[Problem]:
    for name, node in nodes.items():
        edges = {(spec.hook, spec.where): spec for spec in (*node.after, *node.before)}  # both halves have the same
        stated = [("has an edge to", edges.values()), ("is ambiguous with", node.ambiguous_with)]
        for verb, specs in (*stated, ("requires the hook", node.requires)):
            for spec in specs:
                required = verb.startswith("requires")
                if required and spec.optional:
                    message = f'hook "{name}" requires "{spec.hook}?", and what is required cannot be optional'
                    yield _at(message, spec, node, f'write "{spec.hook}", or an edge: after = ["{spec.hook}?"]')
                elif spec.hook == name and specs is not node.ambiguous_with:
                    yield _at(f'hook "{name}" cannot stand before or after itself', spec, node)
                elif spec.hook not in nodes and not spec.optional and (required or spec.hook not in disabled):
                    gone = "is switched off" if spec.hook in disabled else "is not in this pipeline"
                    hint = nearest(spec.hook, nodes)
                    hint = hint or (f'write "{spec.hook}?" if it may be missing' if not required else "")
                    yield _at(f'hook "{name}" {verb} "{spec.hook}", which {gone}', spec, node, hint)


def _at(message: str, spec: EdgeSpec, node: Node, hint: str = "") -> Problem:
    """Return a problem where the user wrote it: of what the hook's class states, that is the `use`."""
    if spec.kind == "class":
        return Problem(f"{message} (stated by {spec.where})", node.where, hint)
    return Problem(message, spec.where, hint)


def _idle(nodes: Nodes) -> Iterator[Problem]:
    """Yield a warning for each edge of the file between two hooks that never meet."""
    points = {name: {binding.point for binding in node.bound} for name, node in nodes.items()}
    for name, node in nodes.items():
        meets: dict[tuple[str, Where], bool] = {}  # an edge of one around stands at both of its points
        for spec in (*node.after, *node.before):
            if spec.kind == "file" and spec.hook in nodes:
                here = points[name] if spec.at is None else {spec.at[0]}
                key = spec.hook, spec.where
                meets[key] = meets.get(key, False) or not here.isdisjoint(points[spec.hook])
        for (other, where), meet in meets.items():
            if not meet:
                yield Problem(f'the edge between "{name}" and "{other}" can never matter: they share no point', where)
