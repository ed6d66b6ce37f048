"""What decides between hooks that stand one behind the other."""

from __future__ import annotations

import pytest

from hookflow.graph.plan import Edge, Node
from hookflow.graph.why import Decided, neighbours
from tests.graph.test_bundles import crowd
from tests.hook_nodes import AROUND, POINT, node, order, plan


def left(name: str, after: str = "", phase: str = "normal") -> Node:
    """Return a plain hook that fires where arounds are left."""
    return node(name, [after] if after else [], phase=phase, points=[("after_val", "whole")])


def test_neighbours_have_the_edge_that_says_so() -> None:
    compiled = plan(node("a"), node("b", ["a"]), node("c", phase="late"), node("d", phase="late"))
    found = [*neighbours(compiled, POINT)]
    assert [(link.first.hook, link.then.hook, link.reason) for link in found] == [
        ("a", "b", "edge"),
        ("b", "c", "phase"),
        ("c", "d", "file"),
    ]
    assert [link.edge and link.edge.where for link in found] == ["p.toml:1", None, None]


def test_neighbours_in_a_crowd_have_the_edge_of_it() -> None:
    compiled = plan(*crowd(101, 101))
    (link,) = (link for link in neighbours(compiled, POINT) if link.reason == "edge")
    assert (link.first.hook, link.then.hook) == ("w100", "r0")
    assert link.edge == Edge(POINT, "w100", "r0", "flow", "", ("x",), link.first.id, link.then.id)


def test_the_links_of_a_crowd_are_those_of_its_edges() -> None:
    compiled = plan(*crowd(101, 101))
    found = {(edge.first_id, edge.then_id) for edge in compiled.every_edge(POINT)}
    assert found == {(w, r) for w in range(101) for r in range(101, 202)}


@pytest.mark.parametrize(
    ("nodes", "pair", "reason"),
    [
        # who waits for an around comes after who does not, or for fewer
        ([left("q", "a"), left("p"), node("a", points=AROUND)], "pq", "phase"),
        ([left("q", "a"), left("p", "b"), node("a", points=AROUND), node("b", ["a"], points=AROUND)], "pq", "phase"),
        # both wait for the same one, or for two that nothing orders
        ([left("p", "a"), left("q", "a"), node("a", points=AROUND)], "pq", "file"),
        ([left("q", "a"), left("p", "b"), node("a", points=AROUND), node("b", points=AROUND)], "pq", "file"),
        # an edge to a plain method is no waiting
        ([left("x"), left("p"), left("q", "x"), node("a", points=AROUND)], "pq", "file"),
        # in another phase than the around nobody waits for it
        ([left("x", phase="early"), left("p", phase="early"), left("q", "x", "early"), node("a", points=AROUND)],
         "pq", "file"),
    ],
)  # fmt: skip
def test_what_is_decided_by_how_arounds_are_left(nodes: list[Node], pair: str, reason: str) -> None:
    compiled = plan(*nodes)
    assert [name for name in order(compiled, "after_val") if name in pair] == [*pair]
    first, then = (next(one for one in compiled.at("after_val") if one.hook == name) for name in pair)
    assert Decided(compiled, "after_val").reason(first, then) == reason
