"""Hooks that wait for one another: every cycle of a point, as a person can follow it from line to line."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import networkx as nx

from hookflow.errors import Problem, Where
from hookflow.graph.plan import Edge

SHOWN = 12
"""How many cycles of one knot are told; mending those, one has learnt enough to mend the rest."""


@dataclass(frozen=True, slots=True)
class Knot:
    """A cycle: its edges in the order of walking around it, and where each was stated."""

    edges: tuple[Edge, ...]
    places: tuple[Where, ...]


def knots_of(graph: nx.DiGraph[int]) -> list[Knot]:
    """Return cycles that together hold every edge which lies on any (up to `SHOWN` of those that are entangled).

    Each edge of the graph carries its `edge` and the place `where` it was stated.
    """
    found: list[Knot] = []
    for rows in nx.strongly_connected_components(graph):
        if len(rows) > 1:
            found += _knots_within(graph.subgraph(sorted(rows)))
    return found


def _knots_within(tangle: nx.DiGraph[int]) -> list[Knot]:
    told: set[tuple[int, int]] = set()
    found: list[Knot] = []
    for first, then in sorted(tangle.edges):
        if (first, then) not in told and len(found) < SHOWN:
            way = [first, *nx.shortest_path(tangle, then, first)]
            steps = list(pairwise(way))
            told.update(steps)
            facts = [tangle.edges[step] for step in steps]
            found.append(Knot(tuple(f["edge"] for f in facts), tuple(f["where"] for f in facts)))
    return found


def as_problems(knots: Iterable[Knot]) -> list[Problem]:
    """Return a problem for each cycle; one that is closed at several points is told once."""
    points: dict[tuple[Where, ...], list[Knot]] = {}
    for knot in knots:
        points.setdefault(knot.places, []).append(knot)
    return [_problem(same) for same in points.values()]


def _problem(same: list[Knot]) -> Problem:
    edges, places = same[0].edges, same[0].places
    names = " → ".join([edge.first for edge in edges] + [edges[0].first])
    at = f"at {edges[0].point}" + (f" and {len(same) - 1} more" if len(same) > 1 else "")
    steps = [f'"{e.first}" before "{e.then}": {place}' for e, place in zip(edges, places, strict=True)]
    hints = [*steps, *_overriding(edges)]
    return Problem(f"the order of {names} closes a circle {at}", places[0], "\n    ".join(hints))


def _overriding(edges: Iterable[Edge]) -> list[str]:
    """Say how the file gets rid of an edge that a class has stated."""
    if any(edge.kind == "class" for edge in edges):
        return ["what a class says, the file can overrule: after = [] or before = [] in the hook's table"]
    return []
