"""A plan in the formats of other tools: Graphviz's DOT, and Mermaid, which code hosts draw inside Markdown."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import pairwise

from hookflow.graph.plan import EdgeKind, Plan
from hookflow.graph.render.text import marks, place_of, title_of
from hookflow.graph.why import neighbours

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
    return "\n".join(["digraph plan {", _HEAD, heading, *_clusters(plan), "}"])


def _clusters(plan: Plan) -> Iterator[str]:
    for k, point in reversed([*enumerate(plan.bound_points)]):  # from left to right, Graphviz stacks from below
        yield f"  subgraph cluster_{k} {{ label={_quoted(point.name)}; labeljust=l; color=gray60;"
        for binding in plan.at(point.name):
            label = "\n".join([binding.hook, *marks(plan, binding)])
            yield f"    b{binding.id} [label={_quoted(label)}];"
        for edge in plan.edges_at(point.name):
            label = f"label={_quoted(place_of(edge))}, {_STYLES[edge.kind]}"
            yield f"    b{edge.first_id} -> b{edge.then_id} [{label}];"
        for link in neighbours(plan, point.name):
            if not link.path:
                yield f"    b{link.first.id} -> b{link.then.id} [style=invis];"
        yield "  }"
    firsts = [f"b{plan.at(point.name)[0].id}" for point in plan.bound_points]
    yield f"  {{ rank=same; {' '.join(firsts)} }}"
    for k, (upper, lower) in enumerate(pairwise(firsts)):
        yield f"  {lower} -> {upper} [ltail=cluster_{k + 1}, lhead=cluster_{k}, color=gray60, arrowhead=none];"


def _quoted(text: str) -> str:
    return json.dumps(text.replace("&", "&amp;"), ensure_ascii=False)


_ARROWS: dict[EdgeKind, str] = {"file": "-->", "class": "-->", "flow": "-.->", "pair": "-.->"}


def as_mermaid(plan: Plan, title: str = "") -> str:
    """Draw every point that has bindings."""
    heading = ["---", f"title: {json.dumps(title or title_of(plan), ensure_ascii=False)}", "---", "flowchart TB"]
    return "\n".join([*heading, *_boxes(plan)])


def _boxes(plan: Plan) -> Iterator[str]:
    for k, point in enumerate(plan.bound_points):
        yield f'  subgraph p{k}["{point.name}"]'
        yield "    direction LR"
        for binding in plan.at(point.name):
            label = "<br/>".join([f"<b>{binding.hook}</b>", *map(_escaped, marks(plan, binding))])
            yield f'    b{binding.id}["{label}"]'
        for edge in plan.edges_at(point.name):
            yield f'    b{edge.first_id} {_ARROWS[edge.kind]}|"{_escaped(place_of(edge))}"| b{edge.then_id}'
        for link in neighbours(plan, point.name):
            if not link.path:
                yield f"    b{link.first.id} ~~~ b{link.then.id}"
        yield "  end"
    yield from (f"  p{k} ==> p{k + 1}" for k, _ in enumerate(plan.bound_points[1:]))


def _escaped(text: str) -> str:
    """Return a text escaped for Mermaid by numbers; a space of no width parts a backslash from an n."""
    numbered = re.sub(r"[^\w\s.,:()/?=+-]", lambda sign: f"#{ord(sign[0])};", text)
    return numbered.replace("#92;", "#92;#8203;")
