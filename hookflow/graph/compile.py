"""Compile declared hooks into a plan: resolve names, order each point, and collect warnings."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from hookflow.errors import Problem, UserError, nearest
from hookflow.graph.order import Order, Places, Vertex, as_problems
from hookflow.graph.plan import Binding, EdgeSpec, Node, Nodes, Plan
from hookflow.graph.points import POINTS, Points
from hookflow.graph.slots import doubtful_keys, doubtful_slots, drifting_slots, with_own_state


def compile_plan(
    pipeline: str,
    nodes: Nodes,
    disabled: Collection[str] = (),
    points: Points = POINTS,
    shuffle: int | None = None,
    wanted: Places | None = None,
) -> Plan:
    """Order the hooks at every point; where nothing else decides, by the file, or as the seed `shuffle` has it.

    `wanted` says of every binding where it shall stand, as far as nothing else decides.

    An edge to a hook in `disabled` is dropped. Raises UserError with every unknown name and every cycle at once.
    """
    problems = [*_unknown(nodes, disabled)]
    nodes = with_own_state(nodes)
    orders = _orders(nodes, points, shuffle, wanted)
    problems += as_problems(cycle for order in orders for cycle in order.cycles)
    if problems:
        raise UserError(problems)
    order_of = {point: order for order in orders for point in order.points}
    there = [(point.name, order_of[point.name]) for point in points if point.name in order_of]
    bindings: list[Binding] = []
    for point, order in there:
        bindings += order.bindings(point, first_id=len(bindings))
    met = set[int]().union(*(order.met for order in orders))
    return Plan(
        pipeline=pipeline,
        hooks=tuple(node.hook for node in nodes.values()),
        bindings=tuple(bindings),
        edges=tuple(edge for point, order in there for edge in order.edges(point)),
        bundles=tuple(bundle for point, order in there for bundle in order.bundles(point)),
        own=tuple(point for point in points if point.kind == "own"),
        given_way=tuple(provided for point, order in there for provided in order.given_way(point)),
        given_way_bundles=tuple(bundle for point, order in there for bundle in order.given_way_bundles(point)),
        warnings=(*_idle(nodes, met), *doubtful_slots(nodes), *doubtful_keys(nodes, disabled), *drifting_slots(nodes)),
        shuffle=shuffle,
    )


def _orders(nodes: Nodes, points: Points, shuffle: int | None, wanted: Places | None) -> list[Order]:
    """Return the order of each point where anybody stands; the two points of an `around_X` have one together."""
    standing: dict[str, list[Vertex]] = {point.name: [] for point in points}
    for node in nodes.values():
        for bound in node.bound:
            standing[bound.point].append(Vertex(node, bound))
    opened_by = {closing: f"before_{pair}" for pair, closing in points.pairs.items()}
    together: dict[str, list[str]] = {}
    for point in standing:
        if standing[point]:
            together.setdefault(opened_by.get(point, point), []).append(point)
    return [
        Order(pair, [vertex for point in pair for vertex in standing[point]], shuffle, wanted)
        for pair in (sorted(names, key=lambda point: point in opened_by) for names in together.values())
    ]


def _unknown(nodes: Nodes, disabled: Collection[str]) -> Iterator[Problem]:
    for name, node in nodes.items():
        for wish in dict.fromkeys(_wishes(nodes, name)):  # both halves of an around have the same
            if wish.hook == name:
                yield _described(f'hook "{name}" cannot stand before or after itself', wish, node)
            elif wish.hook not in nodes and wish.hook not in disabled and not wish.optional:
                hint = nearest(wish.hook, nodes) or f'write "{wish.hook}?" if it may be missing'
                message = f'hook "{name}" has an edge to "{wish.hook}", which is not in this pipeline'
                yield _described(message, wish, node, hint)
        for wish in node.requires:
            if wish.optional:
                message = f'hook "{name}" requires "{wish.hook}?", and what is required cannot be optional'
                yield _described(message, wish, node, f'write "{wish.hook}", or an edge: after = ["{wish.hook}?"]')
            elif wish.hook not in nodes:
                gone = "is switched off" if wish.hook in disabled else "is not in this pipeline"
                hint = nearest(wish.hook, nodes)
                yield _described(f'hook "{name}" requires the hook "{wish.hook}", which {gone}', wish, node, hint)
        for wish in node.ambiguous_with:
            if wish.hook not in nodes and wish.hook not in disabled and not wish.optional:
                message = f'hook "{name}" is ambiguous with "{wish.hook}", which is not in this pipeline'
                yield _described(message, wish, node, nearest(wish.hook, nodes))


def _described(message: str, wish: EdgeSpec, node: Node, hint: str = "") -> Problem:
    """Return what is wrong with a wish, where the user wrote it: of one of the hook's class, that is the `use`."""
    if wish.kind == "class":
        return Problem(f"{message} (stated by {wish.where})", node.where, hint)
    return Problem(message, wish.where, hint)


def _wishes(nodes: Nodes, name: str) -> Iterable[EdgeSpec]:
    node = nodes[name]
    return (*node.after, *node.before, *(wish for bound in node.bound for wish in (*bound.after, *bound.before)))


def _idle(nodes: Nodes, met: Collection[int]) -> Iterator[Problem]:
    """Yield a warning for each edge of the file between two hooks that never meet."""
    for name in nodes:
        for wish in _wishes(nodes, name):
            if wish.kind == "file" and wish.hook in nodes and id(wish) not in met:
                message = f'the edge between "{name}" and "{wish.hook}" can never matter: they share no point'
                yield Problem(message, wish.where)
