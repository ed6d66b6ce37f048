"""A plan that an older version has recorded: its edges name hooks, not bindings, and it is read all the same."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from hookflow.errors import Problem, Where
from hookflow.graph.compile import compile_plan
from hookflow.graph.plan import Plan
from hookflow.graph.plan_file import parse_plan
from hookflow.graph.points import Point, Points
from hookflow.graph.render.text import as_text
from hookflow.graph.why import precedence, stated
from tests.hook_nodes import AROUND, node, plan


def older(compiled: Plan) -> dict[str, Any]:
    """Return what an older version would have written: no bindings in the edges, and less of hooks and bindings."""
    written = json.loads(json.dumps(compiled.to_json()))
    for binding in written["bindings"]:
        for name in ("modules", "parameters", "stages", "prepend", "always_call"):
            del binding[name]
    for hook in written["hooks"]:
        for name in ("ambiguous_with", "ranks", "default"):
            del hook[name]
    for edge in (*written["edges"], *(given["edge"] for given in written["given_way"])):
        for name in ("first_id", "then_id", "loose"):
            del edge[name]
    return written  # type: ignore[no-any-return]


def test_its_edges_lead_from_where_the_first_hook_stands_last() -> None:
    compiled = plan(
        node("a", points=(*AROUND, ("after_val", "whole"))),
        node("r", ["a"], points=(("after_val", "whole"),), writes=["lr"]),
        node("s", before=["r"], points=(("after_val", "whole"),), reads=["lr"]),
    )
    written = older(compiled)
    edges = {(edge["first"], edge["then"]): edge for edge in written["edges"] if edge["first"] != edge["then"]}
    read = Plan.from_json(written | {"edges": [*edges.values()]})
    assert (read.bindings, read.hooks) == (compiled.bindings, compiled.hooks)
    assert not any(hook.default for hook in read.hooks)
    assert [(link.first.hook, link.first.half, link.then.hook) for link in stated(read, "after_val")] == [
        ("a", "exit", "r"),
        ("s", "whole", "r"),
    ]
    own = [link for link in stated(Plan.from_json(written), "after_val") if link.first.hook == link.then.hook]
    assert [(link.first.half, link.then.half) for link in own] == [("whole", "exit")]
    assert [answer.reason for answer in precedence(read, "a", "r")] == ["phase", "edge"]
    assert as_text(read).count("after a, s (p.toml:1)") == 1
    assert len(read.given_way) == 1


def test_its_own_points_may_follow_one_another() -> None:
    points = [Point(name, 1, ("run",), "it", "", "own", to) for name, to in (("x", "after_run"), ("y", "x"))]
    compiled = compile_plan("p", {"a": node("a", points=[("y", "whole")])}, points=Points(points))
    assert parse_plan(json.dumps(compiled.to_json())) == compiled
    assert compiled.own == tuple(points)


def test_its_warnings_and_notes_stand_where_they_stood() -> None:
    here, nowhere = Problem("here", Where("p.toml", 3), "change it"), Problem("nowhere")
    compiled = replace(plan(node("a")), warnings=(here, nowhere), notes=(nowhere, here))
    written = json.loads(json.dumps(compiled.to_json()))
    assert Plan.from_json(written) == compiled
    del written["notes"]
    assert Plan.from_json(written) == replace(compiled, notes=())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"own": [{"name": "after_x", "follows": "nowhere"}]}, "it has no point nowhere"),
        ({"own": [{"name": "after_x", "follows": "after_x"}]}, "it has no point after_x"),
        ({"own": [{"name": "x", "follows": "y"}, {"name": "y", "follows": "after_run"}]}, "it has no point y"),
        ({"own": [{"name": "after_val", "follows": "after_run"}]}, "two of its points have the same name"),
        ({"hooks": []}, "it has no hook a"),
        ({"bindings": [{"point": "after_x"}]}, "it has no point after_x"),
        ({"edges": [{"first": "x"}]}, "it has no hook x"),
        ({"edges": [{"first_id": 9}]}, "it has no binding 9"),
        ({"bundles": [{"then_ids": [-1]}]}, "it has no binding -1"),
        ({"bundles": [{"then_ids": [1, 1]}]}, "a bundle names a binding twice"),
        ({"bindings": [{"phase": "soon"}]}, r"bindings\.0\.phase"),
        ({"hooks": [{"phase": "soon"}]}, r"hooks\.0\.phase"),
    ],
)
def test_a_plan_that_does_not_hold_together_is_none(change: dict[str, Any], said: str) -> None:
    """A run directory is data: its readers lean on what a plan says."""
    written = json.loads(json.dumps(plan(node("a", writes=["lr"]), node("b", reads=["lr"])).to_json()))
    assert parse_plan(json.dumps(written)).edges
    point = {"depth": 1, "offers": ["run"], "unit": "it", "about": "", "kind": "own"}
    bundle = {"point": "after_train_iter", "first_ids": [0], "then_ids": [1], "slots": ["lr"]}
    whole = {"own": [point], "bundles": [bundle], **{key: written[key] for key in ("hooks", "bindings", "edges")}}
    for key, items in change.items():
        written[key] = [whole[key][0] | item for item in items] if items else []
    with pytest.raises(ValueError, match=said):
        parse_plan(json.dumps(written))
