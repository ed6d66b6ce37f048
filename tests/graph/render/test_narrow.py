"""A part of a plan: one point, or one hook with its neighbours; and the brackets around what an `around` encloses."""

from __future__ import annotations

from hypothesis import given

from hookflow.graph.plan import Plan
from hookflow.graph.render.narrow import only_hook, only_point
from hookflow.graph.render.rails import pairs, rails
from tests.graph.render.plans import RICH, node, plan, plans


def test_one_point_keeps_all_that_is_said_of_it() -> None:
    part = only_point(RICH, "after_train_iter")
    assert part.bindings == RICH.at("after_train_iter")
    assert part.edges == RICH.edges_at("after_train_iter")
    assert {hook.name for hook in part.hooks} == {binding.hook for binding in part.bindings}
    assert part.given_way == RICH.given_way
    assert only_point(RICH, "before_val").given_way == ()


def test_one_hook_has_its_neighbours_beside_it_and_no_others() -> None:
    part = only_hook(RICH, "reader")
    at = {point.name: [binding.hook for binding in part.at(point.name)] for point in part.points}
    assert at["after_densify"] == ["densify", "reader"]
    assert "log" not in at["after_train_iter"]
    assert {edge.first for edge in part.edges if edge.then == "reader"} >= {"densify", "psnr"}
    assert not any("reader" not in (edge.first, edge.then) for edge in part.edges)
    assert len(part.given_way) == 1


@given(plans())
def test_one_hook_stands_at_all_its_points(drawn: Plan) -> None:
    for hook in drawn.hooks:
        part = only_hook(drawn, hook.name)
        own = [binding for binding in drawn.bindings if binding.hook == hook.name]
        assert [binding for binding in part.bindings if binding.hook == hook.name] == own
        assert {binding.point for binding in part.bindings} == {binding.point for binding in own}


def test_pairs_are_bracketed_the_inner_within_the_outer() -> None:
    drawn = plan(node("outer", (), around=True), node("log", ["before_val"]), node("inner", (), around=True))
    assert [(binding.hook, rail) for binding, rail in zip(drawn.bindings, rails(drawn.bindings, 9), strict=True)] == [
        ("outer", "╭ "),
        ("log", "│ "),
        ("inner", "│╭"),
        ("inner", "│╰"),
        ("outer", "╰ "),
    ]
    assert rails(drawn.bindings, 1) == ["╭", "│", "│", "│", "╰"]
    assert rails(drawn.bindings, 0) == [""] * 5


@given(plans())
def test_each_bracket_opens_and_closes_where_its_pair_does(drawn: Plan) -> None:
    drawn_rails = rails(drawn.bindings, 99)
    for enter, exit_ in pairs(drawn.bindings):
        assert drawn.bindings[enter].hook == drawn.bindings[exit_].hook
        column = drawn_rails[enter].index("╭")
        assert drawn_rails[exit_][column] == "╰"
        assert all(drawn_rails[row][column] == "│" for row in range(enter + 1, exit_))
