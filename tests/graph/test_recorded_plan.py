"""A plan that an older version has recorded: its edges name hooks, not bindings, and it is read all the same."""

from __future__ import annotations

import json
from typing import Any

from hookflow.graph.links import stated
from hookflow.graph.plan import Plan
from hookflow.graph.precedence import precedence
from hookflow.graph.render.text import as_text
from tests.hook_nodes import AROUND, node, plan


def older(compiled: Plan) -> dict[str, Any]:
    """Return what an older version would have written: no bindings in the edges."""
    written = json.loads(json.dumps(compiled.to_json()))
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
    assert read.bindings == compiled.bindings
    assert [(link.first.hook, link.first.half, link.then.hook) for link in stated(read, "after_val")] == [
        ("a", "exit", "r"),
        ("s", "whole", "r"),
    ]
    assert [answer.reason for answer in precedence(read, "a", "r")] == ["phase", "edge"]
    assert as_text(read).count("after a, s (p.toml:1)") == 1
    assert len(read.given_way) == 1
