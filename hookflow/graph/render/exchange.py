"""A plan in the formats of other tools: Graphviz's DOT, and Mermaid, which code hosts draw inside Markdown."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from hookflow.graph.plan import Binding, EdgeKind, Plan
from hookflow.graph.points import Point
from hookflow.graph.render.text import marks, place_of, title_of
from hookflow.graph.why import bound_points, neighbours, stated

_HEAD = """\
  rankdir=LR; newrank=true; compound=true; fontname="sans-serif"; labelloc=t; style=rounded;
  node [shape=box, style=rounded, fontname="sans-serif", fontsize=12];
  edge [fontname="sans-serif", fontsize=9];"""

_STYLES: dict[EdgeKind, str] = {
    "file": "style=solid",
    "class": 'color="black:invis:black"',
    "flow": "style=dashed",
    "pair": "style=dotted",
}


def as_dot(plan: Plan, title: str = "") -> str:
    """Draw every point that has bindings."""
    heading = f"  label={_quoted(title or title_of(plan))};"
    return "\n".join(["digraph plan {", _HEAD, heading, *_clusters(plan, bound_points(plan)), "}"])


def _clusters(plan: Plan, points: Sequence[Point]) -> Iterator[str]:
    for k, point in reversed([*enumerate(points)]):  # from left to right, Graphviz stacks from below
        yield f"  subgraph cluster_{k} {{ label={_quoted(point.name)}; labeljust=l; color=gray60;"
        bound = plan.at(point.name)
        yield from (f"    b{binding.id} [label={_quoted(_dot_label(plan, binding))}];" for binding in bound)
        for link in stated(plan, point.name):
            if link.edge:
                label = f"label={_quoted(place_of(link.edge))}, {_STYLES[link.edge.kind]}"
                yield f"    b{link.first.id} -> b{link.then.id} [{label}];"
        for link in neighbours(plan, point.name):
            if not link.edge:
                yield f"    b{link.first.id} -> b{link.then.id} [style=invis];"
        yield "  }"
    firsts = [f"b{plan.at(point.name)[0].id}" for point in points]
    yield f"  {{ rank=same; {' '.join(firsts)} }}"
    for k, (upper, lower) in enumerate(pairwise(firsts)):
        yield f"  {lower} -> {upper} [ltail=cluster_{k + 1}, lhead=cluster_{k}, color=gray60, arrowhead=none];"


def _dot_label(plan: Plan, binding: Binding) -> str:
    return "\n".join([binding.hook, *marks(plan, binding)])


def _quoted(text: str) -> str:
    return json.dumps(text.replace("&", "&amp;"), ensure_ascii=False)


_ARROWS: dict[EdgeKind, str] = {"file": "-->", "class": "-->", "flow": "-.->", "pair": "-.->"}


def as_mermaid(plan: Plan, title: str = "") -> str:
    """Draw every point that has bindings."""
    heading = ["---", f"title: {json.dumps(title or title_of(plan), ensure_ascii=False)}", "---", "flowchart TB"]
    return "\n".join([*heading, *_boxes(plan, bound_points(plan))])


def _boxes(plan: Plan, points: Sequence[Point]) -> Iterator[str]:
    for k, point in enumerate(points):
        yield f'  subgraph p{k}["{point.name}"]'
        yield "    direction LR"
        yield from (f'    b{binding.id}["{_mermaid_label(plan, binding)}"]' for binding in plan.at(point.name))
        for link in stated(plan, point.name):
            if link.edge:
                arrow = _ARROWS[link.edge.kind]
                yield f'    b{link.first.id} {arrow}|"{_text(place_of(link.edge))}"| b{link.then.id}'
        for link in neighbours(plan, point.name):
            if not link.edge:
                yield f"    b{link.first.id} ~~~ b{link.then.id}"
        yield "  end"
    yield from (f"  p{k} ==> p{k + 1}" for k, _ in enumerate(pairwise(points)))


def _mermaid_label(plan: Plan, binding: Binding) -> str:
    return "<br/>".join([f"<b>{binding.hook}</b>", *map(_text, marks(plan, binding))])


def _text(text: str) -> str:
    """Return a text escaped for a label: what Mermaid, its Markdown or HTML would read otherwise, by number.

    A space of no width follows a backslash: before an n, it would break the line however it is written.
    """
    numbered = re.sub(r"[^\w\s.,:()/?=+-]", lambda sign: f"#{ord(sign[0])};", text)
    return numbered.replace("#92;", "#92;#8203;")
