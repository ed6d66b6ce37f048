"""The points that a pipeline declares for itself: `[points.after_densify]`."""

from __future__ import annotations

from keyword import iskeyword

from hookflow.errors import Problem, nearest
from hookflow.graph.points import POINTS, Point, Points
from hookflow.hooks.base import Hook
from hookflow.pipeline.load import Loaded


def own_points(loaded: Loaded) -> tuple[Points, list[Problem]]:
    """Return all points of the pipeline, and what is wrong with its own ones, which are then left out."""
    problems: list[Problem] = []
    own: list[Point] = []
    points = POINTS
    for name, declared in loaded.pipeline.points.items():
        key = f"points.{name}"
        faults: list[tuple[str, str, str]] = []
        if name in points:
            faults.append((key, f'every run has a point "{name}" already', ""))
        if hasattr(Hook, name):
            faults.append((key, f'"{name}" cannot be a point: every hook has an attribute of that name', ""))
        elif not _can_be_name(name) or name.startswith("around_"):
            faults.append((key, f'"{name}" cannot be a point: a hook\'s method must be able to bear the name', ""))
        if declared.follows not in points:
            below = declared.follows in loaded.pipeline.points
            hint = "declare it first" if below else nearest(declared.follows, points.names)
            said = f'there is no point "{declared.follows}"' + " above this one" * below
            faults.append((f"{key}.follows", said, hint))
        for k, argument in enumerate(declared.offers):
            if argument == "run":
                faults.append((f"{key}.offers.{k}", "every point offers the run already", ""))
            elif argument in declared.offers[:k]:
                faults.append((f"{key}.offers.{k}", f'"{argument}" is offered twice', ""))
            elif not _can_be_name(argument) or argument == "self":
                said = f'"{argument}" cannot be an argument: a hook\'s method must be able to take it by that name'
                faults.append((f"{key}.offers.{k}", said, ""))
        if faults:
            problems += (Problem(said, loaded.places.of(at), hint) for at, said, hint in faults)
            continue
        followed = points[declared.follows]
        inside = followed.name.startswith("before_") and followed.name.removeprefix("before_") in points.pairs
        offers = ("run", *declared.offers)
        own.append(Point(name, followed.depth + inside, offers, "firing", declared.about, "own", followed.name))
        points = Points(own)
    return points, problems


def _can_be_name(text: str) -> bool:
    return text.isidentifier() and not iskeyword(text)
