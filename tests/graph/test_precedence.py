"""The answer to "why does A fire before B?"."""

from __future__ import annotations

from hypothesis import given

from hookflow.graph.why import precedence
from tests.graph.test_order import legal
from tests.hook_nodes import AROUND, Node, acyclic, node, plan


def test_a_chain_of_edges_from_whichever_side_it_is_asked() -> None:
    compiled = plan(node("a"), node("b", after=["a"]), node("c", reads=["lr"], after=["b"]))
    for asked in (("a", "c"), ("c", "a")):
        (answer,) = precedence(compiled, *asked)
        assert (answer.first.hook, answer.then.hook, answer.reason) == ("a", "c", "edge")
        assert [(edge.first, edge.then) for edge in answer.path] == [("a", "b"), ("b", "c")]


def test_a_phase_or_nothing_but_the_file() -> None:
    compiled = plan(node("a", phase="late"), node("b"), node("c"))
    assert [answer.reason for answer in precedence(compiled, "a", "b")] == ["phase"]
    (answer,) = precedence(compiled, "c", "b")
    assert (answer.first.hook, answer.reason, answer.path) == ("b", "file", ())


def test_hooks_that_never_meet() -> None:
    assert precedence(plan(node("a"), node("b", points=AROUND)), "a", "b") == []


def test_a_weaker_edge_that_gave_way_is_told() -> None:
    compiled = plan(node("write", writes=["lr"], after=["read"]), node("read", reads=["lr"]))
    (answer,) = precedence(compiled, "read", "write")
    assert [edge.kind for edge in answer.path] == ["file"]
    assert [given.edge.slots for given in answer.overruled] == [("lr",)]


def test_what_gave_way_between_others_is_not_told() -> None:
    others = node("write", writes=["lr"], after=["read"]), node("read", reads=["lr"])
    (answer,) = precedence(plan(*others, node("a"), node("b")), "a", "b")
    assert answer.overruled == ()


def test_the_nesting_that_only_the_file_states_is_no_way_for_a_plain_method() -> None:
    plain = node("p", points=[("after_val", "whole")], after=["b"])
    (answer,) = precedence(plan(node("b", points=AROUND), node("a", points=AROUND), plain), "a", "p")
    assert (answer.first.hook, answer.reason, answer.path) == ("a", "file", ())


def test_a_shorter_way_by_nesting_that_only_the_file_states_is_not_shown() -> None:
    """`a` is left before `b` as the file has it, and `p` waits for `b`; but also for `y`, which waits for `a`."""
    plain = [
        node(name, after, points=[("after_val", "whole")]) for name, after in (("x", "a"), ("y", "x"), ("p", "yb"))
    ]
    (answer,) = precedence(plan(node("b", points=AROUND), node("a", points=AROUND), *plain), "a", "p")
    assert [(edge.first, edge.then) for edge in answer.path] == [("a", "x"), ("x", "y"), ("y", "p")]


def test_an_answer_for_each_point_at_which_both_stand() -> None:
    compiled = plan(node("a", points=AROUND), node("b", points=AROUND))
    assert [(answer.point, answer.first.hook, answer.reason) for answer in precedence(compiled, "a", "b")] == [
        ("before_val", "a", "file"),
        ("after_val", "b", "edge"),
    ]


@given(acyclic())
def test_every_path_leads_down_the_order_from_the_one_to_the_other(nodes: list[Node]) -> None:
    compiled = legal(nodes)
    first, then = nodes[0].hook.name, nodes[-1].hook.name
    for answer in precedence(compiled, first, then):
        assert answer.first.id < answer.then.id or first == then
        if answer.path:
            assert (answer.path[0].first, answer.path[-1].then) == (answer.first.hook, answer.then.hook)
            assert all(one.then == next_.first for one, next_ in zip(answer.path, answer.path[1:], strict=False))
            assert all(edge in compiled.edges for edge in answer.path)
