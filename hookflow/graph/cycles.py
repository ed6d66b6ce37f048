"""Hooks that wait for one another: every cycle of a point, as a person can follow it from line to line."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hookflow.errors import Problem, Where
from hookflow.graph.plan import Edge


@dataclass(frozen=True, slots=True)
class Cycle:
    """A cycle: its edges in the order of walking around it, and where each was stated."""

    edges: tuple[Edge, ...]
    places: tuple[Where, ...]


def as_problems(cycles: Iterable[Cycle]) -> list[Problem]:
    """Return a problem for each cycle; one that is closed at several points is told once."""
    alike: dict[tuple[tuple[str, Where], ...], list[Cycle]] = {}
    for knot in cycles:
        steps = tuple((edge.first, place) for edge, place in zip(knot.edges, knot.places, strict=True))
        alike.setdefault(steps, []).append(knot)
    return [_problem(same) for same in alike.values()]


def _problem(same: list[Cycle]) -> Problem:
    edges, places = same[0].edges, same[0].places
    names = " → ".join([edge.first for edge in edges] + [edges[0].first])
    at = f"at {edges[0].point}" + (f" and {len(same) - 1} more" if len(same) > 1 else "")
    steps = [f'"{e.first}" before "{e.then}": {place}' for e, place in zip(edges, places, strict=True)]
    hints = [*steps, *_overriding(edges)]
    return Problem(f"ordering cycle: {names} {at}", places[0], "\n    ".join(hints))


def _overriding(edges: Iterable[Edge]) -> list[str]:
    """Say how the file gets rid of an edge that a class has stated."""
    if any(edge.kind == "class" for edge in edges):
        return ["what a class says, the file can overrule: after = [] or before = [] in the hook's table"]
    return []
