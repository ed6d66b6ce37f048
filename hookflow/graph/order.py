"""Compile declared hooks into a plan.

Names are resolved, warnings collected, and the bindings at each point ordered.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain

from hookflow.errors import Problem, UserError, Where, nearest
from hookflow.graph.completion import NO_ADDITIONS, NodeAdditions, complete_nodes
from hookflow.graph.cycles import OrderingCycle
from hookflow.graph.offload import OffloadRequest
from hookflow.graph.plan import (
    Binding,
    DeclaredBinding,
    DroppedEdge,
    Edge,
    EdgeSpec,
    Node,
    Nodes,
    Plan,
    PlannedGroup,
    WantedPlaces,
)
from hookflow.graph.points import DEFAULT_POINTS, Points
from hookflow.graph.section import SectionOrder
from hookflow.graph.slot_checks import find_doubtful_slots, find_drifting_slots


@dataclass(frozen=True, slots=True)
class PlanRequests:
    """Requests about a plan: hooks to fire beside the training, and an order for all that is open.

    The order is that of the seed `shuffle`, or `wanted`, the place of every binding; else it is
    that of the file.
    """

    offload: Mapping[str, OffloadRequest] = field(default_factory=dict)
    shuffle: int | None = None
    wanted: WantedPlaces | None = None


NO_REQUESTS = PlanRequests()


def compile_plan(
    pipeline: str,
    nodes: Nodes,
    disabled: Collection[str] = (),
    points: Points = DEFAULT_POINTS,
    groups: tuple[PlannedGroup, ...] = (),
    additions: NodeAdditions = NO_ADDITIONS,
    requests: PlanRequests = NO_REQUESTS,
) -> Plan:
    """Order the hooks at every point.

    Where nothing else decides, they are ordered by the file, or as `requests` have it. An edge to a
    hook in `disabled` is dropped. `groups` are recorded; edges to them have been expanded.
    `additions` are what follows for hooks from others. Raises UserError with every unknown name and
    every cycle at once; one at several points is reported once.
    """
    completed = complete_nodes(nodes, points, additions, requests.offload)
    nodes = completed.nodes
    problems = [*completed.problems, *_find_wrong_names(nodes, disabled)]
    sections = []
    for names, bound in _iter_sections(nodes, points):
        sections.append(SectionOrder(names, nodes, bound, requests.shuffle, requests.wanted))
    problems += _report_cycles(sections)
    if problems:
        raise UserError(problems)

    section_of = {name: section for section in sections for name in section.points}
    bound_points = [point.name for point in points if point.name in section_of]
    next_id = 0
    for point in bound_points:
        next_id = section_of[point].number(point, next_id)
    hooks = {name: node.hook for name, node in nodes.items()}
    bindings: list[Binding] = []
    edges: list[Edge] = []
    dropped_edges: list[DroppedEdge] = []
    for point in bound_points:
        section = section_of[point]
        bindings += section.bindings(point, hooks, completed.beside)
        edges += section.edges(point)
        dropped_edges += section.dropped_edges(point)
    return Plan(
        pipeline=pipeline,
        hooks=tuple(hooks.values()),
        bindings=tuple(bindings),
        edges=tuple(edges),
        own=tuple(point for point in points if point.kind == "own"),
        dropped_edges=tuple(dropped_edges),
        warnings=(
            *_find_idle_edges(nodes),
            *find_doubtful_slots(nodes, disabled),
            *find_drifting_slots(nodes),
        ),
        notes=tuple(completed.notes),
        shuffle=requests.shuffle,
        groups=groups,
    )


def _iter_sections(
    nodes: Nodes, points: Points
) -> Iterator[tuple[list[str], list[DeclaredBinding]]]:
    """Yield the points that are ordered together, and what is bound there.

    These are the points of an `around_X`, or one point alone.
    """
    bound: dict[str, list[DeclaredBinding]] = {point.name: [] for point in points}
    for node in nodes.values():
        for binding in node.bound:
            bound[binding.point].append(binding)
    opening_of = {closing: f"before_{pair}" for pair, closing in points.pairs.items()}
    together: dict[str, list[str]] = {}
    for point, there in bound.items():
        if there:
            opening = opening_of.get(point, point)
            together.setdefault(opening, []).append(point)
    for names in together.values():
        # A pipeline may declare its own closing point before the opening one.
        names.sort(key=lambda point: point in opening_of)
        yield names, list(chain.from_iterable(bound[point] for point in names))


def _report_cycles(sections: Collection[SectionOrder]) -> Iterator[Problem]:
    """Yield each cycle, once if it stands at several points."""
    alike: dict[object, list[OrderingCycle]] = {}
    for section in sections:
        for cycle in section.cycles:
            alike.setdefault(cycle.steps, []).append(cycle)
    for cycle, *others in alike.values():
        more = ""
        if others:
            more = f" and {len(others)} more"
        message = f"ordering cycle: {' → '.join(cycle.names)} at {cycle.point}{more}"
        _, where = cycle.steps[0]
        yield Problem(message, where, "\n    ".join(cycle.hints))


def _find_wrong_names(nodes: Nodes, disabled: Collection[str]) -> Iterator[Problem]:
    """Yield each edge, requirement and `ambiguous_with` that names no hook, or the hook itself."""
    for name, node in nodes.items():
        # Both halves of an around have the same edges, and each is reported once.
        edges = {(spec.hook, spec.where): spec for spec in (*node.after, *node.before)}
        for spec in edges.values():
            if spec.hook == name:
                yield _make_problem(
                    f'hook "{name}" cannot stand before or after itself', spec, node
                )
            elif not spec.optional and spec.hook not in disabled:
                yield from _missing(f'hook "{name}" has an edge to', spec, node, nodes)
        for spec in node.ambiguous_with:
            if not spec.optional and spec.hook not in disabled:
                yield from _missing(f'hook "{name}" is ambiguous with', spec, node, nodes)
        for spec in node.requires:
            yield from _find_requirement_problems(name, spec, node, nodes, disabled)


def _missing(statement: str, spec: EdgeSpec, node: Node, nodes: Nodes) -> Iterator[Problem]:
    if spec.hook not in nodes:
        hint = nearest(spec.hook, nodes) or f'write "{spec.hook}?" if it may be missing'
        yield _make_problem(
            f'{statement} "{spec.hook}", which is not in this pipeline', spec, node, hint
        )


def _find_requirement_problems(
    name: str, spec: EdgeSpec, node: Node, nodes: Nodes, disabled: Collection[str]
) -> Iterator[Problem]:
    if spec.optional:
        message = f'hook "{name}" requires "{spec.hook}?", and what is required cannot be optional'
        yield _make_problem(
            message, spec, node, f'write "{spec.hook}", or an edge: after = ["{spec.hook}?"]'
        )
    elif spec.hook == name:
        yield _make_problem(f'hook "{name}" cannot stand before or after itself', spec, node)
    elif spec.hook not in nodes:
        gone = "is not in this pipeline"
        if spec.hook in disabled:
            gone = "is switched off"
        message = f'hook "{name}" requires the hook "{spec.hook}", which {gone}'
        yield _make_problem(message, spec, node, nearest(spec.hook, nodes))


def _make_problem(message: str, spec: EdgeSpec, node: Node, hint: str = "") -> Problem:
    """Return a problem where the user wrote it.

    For a statement of the hook's class that is the `use`.
    """
    if spec.kind == "class":
        return Problem(f"{message} (stated by {spec.where})", node.where, hint)
    return Problem(message, spec.where, hint)


def _find_idle_edges(nodes: Nodes) -> Iterator[Problem]:
    """Yield a warning for each edge of the file between two hooks that never meet."""
    points_of: dict[str, set[str]] = {}
    for name, node in nodes.items():
        points_of[name] = {binding.point for binding in node.bound}
    for name, node in nodes.items():
        # An edge of an around stands at both of its points, and matters if its hooks meet at
        # either.
        meet: dict[tuple[str, Where], bool] = {}
        for spec in (*node.after, *node.before):
            if spec.kind != "file" or spec.hook not in nodes:
                continue
            if spec.at is None:
                here = points_of[name]
            else:
                here = {spec.at[0]}
            if spec.group:
                other = f"group:{spec.group}"
            else:
                other = spec.hook
            edge = (other, spec.where)
            meet.setdefault(edge, False)
            if not here.isdisjoint(points_of[spec.hook]):
                meet[edge] = True
        for (other, where), has_met in meet.items():
            if not has_met:
                yield Problem(
                    f'the edge between "{name}" and "{other}" can never matter: they share no'
                    " point",
                    where,
                )
