"""A plan in Graphviz's DOT: a cluster for each point, its hooks in it.

A solid arrow is a stated edge, with the place that states it; a dashed one is the order that phases or the file give.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import pairwise

from hookflow.graph.links import bound_points, neighbours, stated
from hookflow.graph.plan import Binding, Plan
from hookflow.graph.points import Point
from hookflow.graph.render.words import marks, place_of

_HEAD = """\
  compound=true; rankdir=TB; fontname="sans-serif";
  node [shape=box, style=rounded, fontname="sans-serif"];
  edge [fontname="sans-serif", fontsize=10];"""


def as_dot(plan: Plan) -> str:
    """Draw every point that has bindings."""
    return "\n".join([f"digraph {_quoted(plan.pipeline)} {{", _HEAD, *_clusters(plan, bound_points(plan)), "}"])


def _clusters(plan: Plan, points: Sequence[Point]) -> Iterator[str]:
    for point in points:
        yield f"  subgraph cluster_{point.name} {{ label={point.name};"
        yield from (f"    b{binding.id} [label={_quoted(_label(binding))}];" for binding in plan.at(point.name))
        for link in stated(plan, point.name):
            if link.edge:
                yield f"    b{link.first.id} -> b{link.then.id} [label={_quoted(place_of(link.edge))}];"
        for link in neighbours(plan, point.name):
            if not link.edge:
                yield f"    b{link.first.id} -> b{link.then.id} [style=dashed];"
        yield "  }"
    for before, after in pairwise(points):
        last, first = plan.at(before.name)[-1], plan.at(after.name)[0]
        ends = f"ltail=cluster_{before.name}, lhead=cluster_{after.name}"
        yield f"  b{last.id} -> b{first.id} [{ends}, color=gray];"


def _label(binding: Binding) -> str:
    return "\n".join([binding.hook, *marks(binding)])


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
