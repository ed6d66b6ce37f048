"""The curves of several runs over one another."""

from collections.abc import Sequence

from textual.strip import Strip

from hookflow.monitor.charts import Axis, Curve, render_chart
from hookflow.monitor.compare import RUN_LETTERS, ComparedRun, list_metric_points
from hookflow.monitor.style import RUN_STYLES

LETTERS_ON_CURVE = 6
"""How often a curve has the letter of its run."""


def draw_run_curves(runs: Sequence[ComparedRun], name: str, width: int, height: int) -> list[Strip]:
    """Return the curves of a metric or a scalar as `height` rows of `width` cells.

    Each has the letter of its run.
    """
    curves = []
    its = [0]
    for place, run in enumerate(runs):
        values = list_metric_points(run.state, name)
        shift = (place + 1) / (len(runs) + 1)  # the letters of two runs do not cover one another
        points = [(it, value, value, value) for it, value in values]
        curves.append(
            Curve(
                RUN_STYLES[place],
                points,
                RUN_LETTERS[place],
                _choose_lettered_points(len(points), shift),
            )
        )
        its += [it for it, _ in values]
    axis = Axis.of([min(its), max(its)], max(its), 0)
    return render_chart(curves, axis, width, height)


def _choose_lettered_points(num_points: int, shift: float) -> set[int]:
    """Return the places of the points that have a letter.

    `shift` is a share of the distance between two letters.
    """
    places = set()
    for k in range(LETTERS_ON_CURVE):
        share = (k + shift) / LETTERS_ON_CURVE
        places.add(min(int(share * num_points), num_points - 1))
    return places
