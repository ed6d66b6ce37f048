"""A plan as a Mermaid flowchart, which code hosts draw inside Markdown: a box for each point, its hooks in it.

An arrow bears the place that states the edge; it is dotted where data flow or the rule of pairs does. Invisible links
hold the order of the rest.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from hookflow.graph.links import bound_points, neighbours, stated
from hookflow.graph.plan import Binding, EdgeKind, Plan
from hookflow.graph.points import Point
from hookflow.graph.render.words import marks, place_of, title_of

_ARROWS: dict[EdgeKind, str] = {"file": "-->", "class": "-->", "flow": "-.->", "pair": "-.->"}


def as_mermaid(plan: Plan, title: str = "") -> str:
    """Draw every point that has bindings."""
    heading = ["---", f"title: {json.dumps(title or title_of(plan), ensure_ascii=False)}", "---", "flowchart TB"]
    return "\n".join([*heading, *_boxes(plan, bound_points(plan))])


def _boxes(plan: Plan, points: Sequence[Point]) -> Iterator[str]:
    for k, point in enumerate(points):
        yield f'  subgraph p{k}["{point.name}"]'
        yield "    direction LR"
        yield from (f'    b{binding.id}["{_label(plan, binding)}"]' for binding in plan.at(point.name))
        for link in stated(plan, point.name):
            if link.edge:
                arrow = _ARROWS[link.edge.kind]
                yield f'    b{link.first.id} {arrow}|"{_text(place_of(link.edge))}"| b{link.then.id}'
        for link in neighbours(plan, point.name):
            if not link.edge:
                yield f"    b{link.first.id} ~~~ b{link.then.id}"
        yield "  end"
    yield from (f"  p{k} ==> p{k + 1}" for k, _ in enumerate(pairwise(points)))


def _label(plan: Plan, binding: Binding) -> str:
    return "<br/>".join([f"<b>{binding.hook}</b>", *map(_text, marks(plan, binding))])


def _text(text: str) -> str:
    """Return a text as it may stand in a label: what Mermaid, its Markdown or HTML would read otherwise, by number.

    A space of no width follows a backslash: before an n, it would break the line however it is written.
    """
    numbered = re.sub(r"[^\w\s.,:()/?=+-]", lambda sign: f"#{ord(sign[0])};", text)
    return numbered.replace("#92;", "#92;#8203;")
