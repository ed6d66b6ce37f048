"""What a plan says of itself; one that is read from a run directory is what was written, or is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from hookflow.errors import Problem, Where
from hookflow.graph.order import compile_plan
from hookflow.graph.plan import Plan, Trigger
from hookflow.graph.points import Point, Points
from tests.hook_nodes import node, plan


def test_as_a_string_it_is_a_line_for_each_point_with_the_triggers() -> None:
    both = (("before_run", "whole"), ("after_train_epoch", "whole"))
    a = node("a", points=both[1:])  # type: ignore[arg-type]
    trigger = Trigger(every="2", since="1ep", until="9ep", when="n > 3")
    compiled = plan(
        replace(a, bound=(replace(a.bound[0], trigger=trigger),)),
        node("b", points=both),  # type: ignore[arg-type]
    )
    assert str(compiled) == ("before_run         b\nafter_train_epoch  a (every 2 from 1ep until 9ep when n > 3) → b")
    assert str(plan()) == ""


def test_its_own_points_may_follow_one_another() -> None:
    points = [Point(name, 1, ("run",), "it", "", "own", to) for name, to in (("x", "after_run"), ("y", "x"))]
    compiled = compile_plan("p", {"a": node("a", points=[("y", "whole")])}, points=Points(points))
    assert Plan.from_json(json.dumps(compiled.to_json())) == compiled
    assert compiled.own == tuple(points)


def test_its_warnings_and_notes_stand_where_they_stood() -> None:
    here, nowhere = Problem("here", Where("p.toml", 3), "change it"), Problem("nowhere")
    compiled = replace(plan(node("a")), warnings=(here, nowhere), notes=(nowhere, here))
    assert Plan.from_json(json.dumps(compiled.to_json())) == compiled


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"own": [{"name": "after_x", "follows": "nowhere"}]}, "its point after_x"),
        ({"own": [{"name": "x", "follows": "y"}, {"name": "y", "follows": "after_run"}]}, "its point x"),
        ({"own": [{"name": "after_val", "follows": "after_run"}]}, "its point after_val"),
        ({"hooks": []}, "its binding 0"),
        ({"bindings": [{"point": "after_x"}]}, "its binding 0"),
        ({"bindings": [{"id": 1}]}, "its binding 0"),
        ({"edges": [{"first": "x"}]}, "no bindings for the edge from x to b"),
        ({"edges": [{"first_id": 9}]}, "no bindings for the edge from a to b"),
        ({"edges": [{"point": "after_val"}]}, "no bindings for the edge from a to b"),
        ({"bindings": [{"phase": "soon"}]}, r"bindings\.0\.phase"),
        ({"hooks": [{"phase": "soon"}]}, r"hooks\.0\.phase"),
    ],
)
def test_a_plan_that_does_not_hold_together_is_none(change: dict[str, Any], expected: str) -> None:
    """A run directory is data: its readers lean on what a plan says."""
    written = json.loads(json.dumps(plan(node("a", writes=["lr"]), node("b", reads=["lr"])).to_json()))
    assert Plan.from_json(written).edges
    point = {"depth": 1, "offers": ["run"], "unit": "it", "about": "", "kind": "own"}
    whole = {"own": [point], **{key: written[key] for key in ("hooks", "bindings", "edges")}}
    for key, items in change.items():
        written[key] = [whole[key][0] | item for item in items] if items else []
    with pytest.raises(ValueError, match=expected):
        Plan.from_json(json.dumps(written))
