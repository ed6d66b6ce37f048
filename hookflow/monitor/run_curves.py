"""The curves of several runs over one another."""

from collections.abc import Sequence

from textual.strip import Strip

from hookflow.monitor.charts import Axis, Curve, chart
from hookflow.monitor.compare import LETTERS, ComparedRun, points_of
from hookflow.monitor.style import SIDES

LETTERS_ON_CURVE = 6
"""How often a curve has the letter of its run."""


def draw_run_curves(runs: Sequence[ComparedRun], name: str, width: int, height: int) -> list[Strip]:
    """Return the curves of a metric or a scalar as `height` rows of `width` cells; each has the letter of its run."""
    curves = []
    its = [0]
    for place, run in enumerate(runs):
        values = points_of(run.state, name)
        shift = (place + 1) / (len(runs) + 1)  # the letters of two runs do not cover one another
        points = [(it, value, value, value) for it, value in values]
        curves.append(Curve(SIDES[place], points, LETTERS[place], _lettered_points(len(points), shift)))
        its += [it for it, _ in values]
    axis = Axis.of([min(its), max(its)], max(its), 0)
    return chart(curves, axis, width, height)


def _lettered_points(num_points: int, shift: float) -> set[int]:
    """Return the places of the points that have a letter; `shift` is a share of the distance between two letters."""
    places = set()
    for k in range(LETTERS_ON_CURVE):
        share = (k + shift) / LETTERS_ON_CURVE
        places.add(min(int(share * num_points), num_points - 1))
    return places
