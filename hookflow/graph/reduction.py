"""Which edges of a graph follow from others, and which chosen vertices lead to which."""

from collections.abc import Collection, Iterable

import networkx as nx


def find_implied(edges: Iterable[tuple[int, int]]) -> set[tuple[int, int]]:
    """Return the edges that follow from the others.

    Raises networkx.NetworkXError where there is a cycle.
    """
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_edges_from(edges)
    reduced = nx.transitive_reduction(graph)
    return {edge for edge in graph.edges if not reduced.has_edge(*edge)}


def reduce_to(graph: "nx.DiGraph", chosen: Collection[int]) -> list[tuple[int, int]]:
    """Return which of the chosen vertices lead to which others.

    Pairs that follow from other pairs are left out.
    """
    if len(chosen) < 2:
        return []
    reachable: nx.DiGraph[int] = nx.DiGraph()
    reachable.add_nodes_from(chosen)
    for vertex in chosen:
        for other in nx.descendants(graph, vertex).intersection(chosen):
            reachable.add_edge(vertex, other)
    reduced = nx.transitive_reduction(reachable)
    return sorted(reduced.edges)
