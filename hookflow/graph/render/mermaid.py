"""A plan as a Mermaid flowchart, which code hosts draw inside Markdown: a box for each point, its hooks in it.

A solid arrow is a stated edge, with the place that states it; a dotted one is the order that phases or the file give.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from hookflow.graph.links import bound_points, neighbours, stated
from hookflow.graph.plan import Binding, Plan
from hookflow.graph.points import Point
from hookflow.graph.render.words import marks, place_of


def as_mermaid(plan: Plan) -> str:
    """Draw every point that has bindings."""
    return "\n".join(["flowchart TB", *_boxes(plan, bound_points(plan))])


def _boxes(plan: Plan, points: Sequence[Point]) -> Iterator[str]:
    for point in points:
        yield f'  subgraph {point.name}_box["{point.name}"]'
        yield from (f'    b{binding.id}["{_label(binding)}"]' for binding in plan.at(point.name))
        for link in stated(plan, point.name):
            if link.edge:
                yield f'    b{link.first.id} -->|"{_text(place_of(link.edge))}"| b{link.then.id}'
        for link in neighbours(plan, point.name):
            if not link.edge:
                yield f"    b{link.first.id} -.-> b{link.then.id}"
        yield "  end"
    yield from (f"  {first.name}_box ==> {then.name}_box" for first, then in pairwise(points))


def _label(binding: Binding) -> str:
    return "<br/>".join([f"<b>{binding.hook}</b>", *marks(binding)])


def _text(text: str) -> str:
    return text.replace('"', "#quot;")
