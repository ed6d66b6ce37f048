"""Cycles among the edges of a point, and paths between its rows, by networkx.

This module is imported only where edges contradict one another: importing networkx takes a tenth of a second.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import networkx as nx

Rows = tuple[int, int]

SHOWN = 12
"""The number of cycles reported for one knot; mending those, one has learnt enough to mend the rest."""


def cycles_of(edges: Iterable[Rows]) -> list[list[Rows]]:
    """Return cycles that together hold every edge which lies on any (up to `SHOWN` of those that are entangled)."""
    graph = _graph(edges)
    components = [graph.subgraph(sorted(rows)) for rows in nx.strongly_connected_components(graph) if len(rows) > 1]
    return [path for component in components for path in _ways_around(component)]


def knots_of(edges: Iterable[Rows]) -> dict[int, int]:
    """Return, for each row that lies on a cycle, the number of its knot: an edge within a knot lies on a cycle."""
    knots = (rows for rows in nx.strongly_connected_components(_graph(edges)) if len(rows) > 1)
    return {row: knot for knot, rows in enumerate(knots) for row in rows}


def ways(pairs: Iterable[Rows], edges: Iterable[Rows]) -> list[list[int]]:
    """Return, for each pair of rows, the rows of a shortest way from the one to the other; there must be one."""
    graph = _graph(edges)
    return [nx.shortest_path(graph, *pair) for pair in pairs]


def _graph(edges: Iterable[Rows]) -> nx.DiGraph[int]:
    graph: nx.DiGraph[int] = nx.DiGraph()  # which, were it given the edges, would import numpy to look at them
    graph.add_edges_from(edges)
    return graph


def _ways_around(component: nx.DiGraph[int]) -> list[list[Rows]]:
    covered: set[Rows] = set()
    result: list[list[Rows]] = []
    for first, then in sorted(component.edges):
        if (first, then) not in covered and len(result) < SHOWN:
            path = list(pairwise([first, *nx.shortest_path(component, then, first)]))
            covered.update(path)
            result.append(path)
    return result
