"""From declared hooks to a plan: names looked up, the order of each point settled, and what is doubtful told."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from hookflow.errors import Problem, UserError, nearest
from hookflow.graph.cycles import Cycle, as_problems
from hookflow.graph.node import EdgeSpec, Node, Nodes
from hookflow.graph.order import PointOrder, Vertex
from hookflow.graph.plan import Binding, Edge, GivenWay, Plan
from hookflow.graph.points import POINTS, Points
from hookflow.graph.slots import doubtful_slots, drifting_slots


def compile_plan(
    pipeline: str,
    nodes: Nodes,
    disabled: Collection[str] = (),
    points: Points = POINTS,
    shuffle: int | None = None,
) -> Plan:
    """Order the hooks at every point; where nothing else decides, by the file, or as the seed `shuffle` has it.

    An edge to a hook in `disabled` is dropped. Raises UserError with every unknown name and every cycle at once.
    """
    problems = [*_unknown(nodes, disabled)]
    bindings: list[Binding] = []
    edges: list[Edge] = []
    given_way: list[GivenWay] = []
    cycles: list[Cycle] = []
    met: set[int] = set()
    entered: dict[str, list[str]] = {}
    for point, vertices in _by_point(nodes, points).items():
        there = PointOrder(point, vertices, entered.get(point, []), shuffle)
        met |= there.met
        cycles += there.cycles
        if there.cycles:
            continue
        ordered = there.bindings(first_id=len(bindings))
        bindings += ordered
        edges += there.edges
        given_way += there.given_way
        if closing := points.pairs.get(point.removeprefix("before_")):
            entered[closing] = [binding.hook for binding in ordered if binding.half == "enter"]
    problems += as_problems(cycles)
    if problems:
        raise UserError(problems)
    return Plan(
        pipeline=pipeline,
        hooks=tuple(node.hook for node in nodes.values()),
        bindings=tuple(bindings),
        edges=tuple(edges),
        own=tuple(point for point in points if point.kind == "own"),
        given_way=tuple(given_way),
        warnings=(*_idle(nodes, met), *doubtful_slots(nodes), *drifting_slots(nodes)),
        shuffle=shuffle,
    )


def _by_point(nodes: Nodes, points: Points) -> dict[str, list[Vertex]]:
    """Return who stands at each point, in the file's order; the points in the order of a run."""
    found: dict[str, list[Vertex]] = {point.name: [] for point in points}
    for node in nodes.values():
        for bound in node.bound:
            found[bound.point].append(Vertex(node, bound))
    return {point: vertices for point, vertices in found.items() if vertices}


def _unknown(nodes: Nodes, disabled: Collection[str]) -> Iterator[Problem]:
    for name, node in nodes.items():
        for wish in dict.fromkeys(_wishes(nodes, name)):  # both halves of an around have the same
            if wish.hook == name:
                yield _told(f'hook "{name}" cannot stand before or after itself', wish, node)
            elif wish.hook not in nodes and wish.hook not in disabled and not wish.optional:
                hint = nearest(wish.hook, nodes) or f'write "{wish.hook}?" if it may be missing'
                said = f'hook "{name}" has an edge to "{wish.hook}", which is not in this pipeline'
                yield _told(said, wish, node, hint)
        for wish in node.requires:
            if wish.optional:
                said = f'hook "{name}" requires "{wish.hook}?", and what is required cannot be optional'
                yield _told(said, wish, node, f'write "{wish.hook}", or an edge: after = ["{wish.hook}?"]')
            elif wish.hook not in nodes:
                gone = "is switched off" if wish.hook in disabled else "is not in this pipeline"
                hint = nearest(wish.hook, nodes)
                yield _told(f'hook "{name}" requires the hook "{wish.hook}", which {gone}', wish, node, hint)
        for wish in node.ambiguous_with:
            if wish.hook not in nodes and wish.hook not in disabled and not wish.optional:
                said = f'hook "{name}" is ambiguous with "{wish.hook}", which is not in this pipeline'
                yield _told(said, wish, node, nearest(wish.hook, nodes))


def _told(said: str, wish: EdgeSpec, node: Node, hint: str = "") -> Problem:
    """Return what is wrong with a wish, where the user wrote it: of one of the hook's class, that is the `use`."""
    if wish.kind == "class":
        return Problem(f"{said} (stated by {wish.where})", node.where, hint)
    return Problem(said, wish.where, hint)


def _wishes(nodes: Nodes, name: str) -> Iterable[EdgeSpec]:
    node = nodes[name]
    return (*node.after, *node.before, *(wish for bound in node.bound for wish in (*bound.after, *bound.before)))


def _idle(nodes: Nodes, met: Collection[int]) -> Iterator[Problem]:
    """Yield a warning for each edge of the file between two hooks that never meet."""
    for name in nodes:
        for wish in _wishes(nodes, name):
            if wish.kind == "file" and wish.hook in nodes and id(wish) not in met:
                said = f'the edge between "{name}" and "{wish.hook}" can never matter: they share no point'
                yield Problem(said, wish.where)
