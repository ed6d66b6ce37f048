"""A plan in Graphviz's DOT: a cluster for each point, its hooks in it from left to right as they fire.

A stated edge bears the place that states it: solid where the file does, double where a class does; data flow is
dashed, last in first out is dotted. Invisible edges hold the order of the rest.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import pairwise

from hookflow.graph.links import bound_points, neighbours, stated
from hookflow.graph.plan import Binding, EdgeKind, Plan
from hookflow.graph.points import Point
from hookflow.graph.render.words import marks, place_of, title_of

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
        yield from (f"    b{binding.id} [label={_quoted(_label(plan, binding))}];" for binding in bound)
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


def _label(plan: Plan, binding: Binding) -> str:
    return "\n".join([binding.hook, *marks(plan, binding)])


def _quoted(text: str) -> str:
    return json.dumps(text.replace("&", "&amp;"), ensure_ascii=False)
