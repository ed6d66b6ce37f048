"""Hooks that wait for one another: every cycle of a point, as a person can follow it from line to line."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from hookflow.errors import Problem, Where
from hookflow.graph.plan import EdgeKind


@dataclass(frozen=True, slots=True)
class Step:
    """An edge of a cycle: both its hooks in quotes, with the half of an `around`, and where it was stated."""

    first: str
    then: str
    point: str
    place: Where
    kind: EdgeKind


@dataclass(frozen=True, slots=True)
class Cycle:
    """A cycle at `point`: its edges in the order of walking around it.

    One of arounds may have edges at both of their points. What is stated where they are entered then runs against the
    walk, for what is entered first is left last.
    """

    point: str
    steps: tuple[Step, ...]

    @property
    def names(self) -> list[str]:
        """Every hook on the way, as it stands at the cycle's point."""
        found: list[str] = []
        for step, next_ in pairwise((*self.steps, self.steps[0])):
            if step.point == self.point:
                found += [step.first] if next_.point == self.point else [step.first, step.then]
        return found


def as_problems(cycles: Iterable[Cycle]) -> list[Problem]:
    """Return a problem for each cycle; one that is closed at several points is told once."""
    alike: dict[tuple[tuple[str, Where], ...], list[Cycle]] = {}
    for cycle in cycles:
        steps = tuple((step.first, step.place) for step in cycle.steps)
        alike.setdefault(steps, []).append(cycle)
    return [_problem(same) for same in alike.values()]


def _problem(same: list[Cycle]) -> Problem:
    cycle = same[0]
    names = [name.replace('"', "") for name in (*cycle.names, cycle.names[0])]
    at = f"at {cycle.point}" + (f" and {len(same) - 1} more" if len(same) > 1 else "")
    mixed = any(step.point != cycle.point for step in cycle.steps)
    steps = [
        f"{step.first} before {step.then}{f' at {step.point}' if mixed else ''}: {step.place}" for step in cycle.steps
    ]
    hints = [*steps, *(_nested(cycle) if mixed else []), *_overriding(cycle.steps)]
    return Problem(f"ordering cycle: {' → '.join(names)} {at}", cycle.steps[0].place, "\n    ".join(hints))


def _nested(cycle: Cycle) -> list[str]:
    """Say what closes a cycle of edges at two points, and how an edge is stated for one of a hook's methods alone."""
    return [
        "what is entered first is left last",
        f'an edge may be that of one method alone: points = [{{ at = "{cycle.point}", after = ["…"] }}, …]',
    ]


def _overriding(steps: Iterable[Step]) -> list[str]:
    """Say how the file gets rid of an edge that a class has stated."""
    if any(step.kind == "class" for step in steps):
        return ["what a class says, the file can overrule: after = [] or before = [] in the hook's table"]
    return []
