"""The phase in which each binding fires: its hook's own, unless edges move it."""

from collections.abc import Collection, Mapping

import networkx as nx

from hookflow.graph.plan import PHASES

NORMAL_PHASE = PHASES.index("normal")
LAST_PHASE = len(PHASES) - 1


def move_phases(
    graph: "nx.DiGraph", phases: Mapping[int, int], backwards: Collection[int]
) -> dict[int, int]:
    """Return the phase of each vertex of a graph, moved so that no phase contradicts an edge.

    A hook before an early one becomes early, a hook after a late one becomes late. The phases of
    the `backwards` vertices, those of the second point of an around, run backwards: early is late.
    """
    order = list(nx.topological_sort(graph))
    result = dict(phases)
    if backwards:
        _push_backwards(graph, order, result, backwards)
    for vertex in reversed(order):
        if result[vertex] < NORMAL_PHASE:
            for earlier in graph.predecessors(vertex):
                result[earlier] = min(result[earlier], result[vertex])
    for vertex in order:
        for earlier in graph.predecessors(vertex):
            result[vertex] = max(result[vertex], result[earlier])
    return result


def _push_backwards(
    graph: "nx.DiGraph", order: Collection[int], phases: dict[int, int], backwards: Collection[int]
) -> None:
    """Settle the `backwards` vertices among themselves.

    They come before the others, so that the result does not depend on which of two moves is made
    first.
    """
    pushed: dict[int, int] = {}
    for vertex in order:
        before = [pushed[earlier] for earlier in graph.predecessors(vertex)]
        pushed[vertex] = max([NORMAL_PHASE, *before])
        if vertex not in backwards:
            continue
        if pushed[vertex] > NORMAL_PHASE:
            phases[vertex] = max(phases[vertex], pushed[vertex])
        pushed[vertex] = max(pushed[vertex], phases[vertex])
