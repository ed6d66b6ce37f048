"""A plan as text: down the left the points as the loop nests them, beside each its hooks in the order of firing.

before_train            ┌─  whiten    early
                        └─▶ ema       after whiten (cifar.toml:46)
  before_train_epoch        throughput
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from hookflow.graph.links import bound_points, stated
from hookflow.graph.plan import Binding, Plan
from hookflow.graph.points import Point
from hookflow.graph.render.gutter import gutter
from hookflow.graph.render.words import marks, place_of

_GOES_ON = str.maketrans({**dict.fromkeys("┌┬├┼", "│"), **dict.fromkeys("└┴─▶", " ")})
"""What of a gutter's row is to be seen on the line below it."""


def as_text(plan: Plan, width: int = 80) -> str:
    """Draw every point that has bindings. Notes are wrapped at `width` columns."""
    return "\n".join([_title(plan), "", *_Drawing(plan, bound_points(plan), width).lines()])


def _title(plan: Plan) -> str:
    hooks, points = len(plan.hooks), len(bound_points(plan))
    return f"{plan.pipeline}: {hooks} hook{'s' * (hooks != 1)} at {points} point{'s' * (points != 1)}"


class _Drawing:
    """Knows how wide each column is."""

    def __init__(self, plan: Plan, points: Sequence[Point], width: int) -> None:
        self.plan = plan
        self.points = points
        outermost = min((point.depth for point in points), default=0)
        self.labels = {point.name: "  " * (point.depth - outermost) + point.name for point in points}
        self.gutters = {point.name: self._gutter(point.name) for point in points}
        names = [binding.hook for point in points for binding in plan.at(point.name)]
        self.point_width = max(map(len, self.labels.values()), default=0)
        self.gutter_width = max((len(row) for rows in self.gutters.values() for row in rows), default=0)
        self.name_width = max(map(len, names), default=0)
        before_note = self.point_width + self.gutter_width + self.name_width + 4
        self.note_width = max(width - before_note, 24)

    def lines(self) -> Iterator[str]:
        for point in self.points:
            label = self.labels[point.name]
            for binding, row in zip(self.plan.at(point.name), self.gutters[point.name], strict=True):
                first, *rest = textwrap.wrap(self._note(binding), self.note_width, break_long_words=False) or [""]
                yield self._line(label, row, binding.hook, first)
                for note in rest:
                    yield self._line("", row.translate(_GOES_ON), "", note)
                label = ""

    def _gutter(self, point: str) -> list[str]:
        names = [binding.hook for binding in self.plan.at(point)]
        return gutter(names, [(edge.first, edge.then) for edge in self.plan.edges_at(point)])

    def _line(self, label: str, row: str, name: str, note: str) -> str:
        left = f"{label:<{self.point_width}} {row:>{self.gutter_width}}"
        return f"{left} {name:<{self.name_width}}  {note}".rstrip()

    def _note(self, binding: Binding) -> str:
        """Return what is to be said of a binding: its marks, and whom it waits for."""
        said = marks(binding)
        waits: dict[str, list[str]] = {}
        for link in stated(self.plan, binding.point):
            if link.then is binding and link.edge:
                waits.setdefault(place_of(link.edge), []).append(link.first.hook)
        said += (f"after {', '.join(dict.fromkeys(hooks))} ({place})" for place, hooks in waits.items())
        return ", ".join(said)
