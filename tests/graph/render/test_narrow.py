"""A part of a plan: one point, or one hook with its neighbours; and the brackets around what an `around` encloses."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given

from hookflow.cli.graph import only_hook, only_points
from hookflow.graph.plan import Binding, Half, Plan, Trigger
from hookflow.graph.render.text import pairs, rails
from tests.graph.render.plans import RICH, node, plan, plans


def test_one_point_keeps_all_that_is_said_of_it() -> None:
    part = only_points(RICH, ["after_train_iter"])
    assert part.bindings == RICH.at("after_train_iter")
    assert part.edges == RICH.edges_at("after_train_iter")
    assert {hook.name for hook in part.hooks} == {binding.hook for binding in part.bindings}
    assert part.given_way == RICH.given_way
    assert only_points(RICH, ["before_val"]).given_way == ()


def test_one_hook_has_its_neighbours_beside_it_and_no_others() -> None:
    part = only_hook(RICH, "reader")
    at = {point.name: [binding.hook for binding in part.at(point.name)] for point in part.points}
    assert at["after_densify"] == ["densify", "reader"]
    assert "log" not in at["after_train_iter"]
    assert {edge.first for edge in part.edges if edge.then == "reader"} >= {"densify", "psnr"}
    assert not any("reader" not in (edge.first, edge.then) for edge in part.edges)
    assert len(part.given_way) == 1


def test_of_a_chain_a_hook_has_the_one_before_and_the_one_after() -> None:
    chain = plan(*(node(name, ["after_val"], [before] if before else []) for before, name in pairwise(["", *"abcd"])))
    for hook, beside in (("a", "ab"), ("b", "abc"), ("d", "cd")):
        assert "".join(binding.hook for binding in only_hook(chain, hook).bindings) == beside


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


@pytest.mark.parametrize(
    ("firings", "drawn"),
    [
        ("a( b( a) c( x b) c)", ["╭ ", "│╭", "╰│", "╭│", "││", "│╰", "╰ "]),
        ("a( a) b( x b)", ["╭", "╰", "╭", "│", "╰"]),
        ("b) a( x a)", [" ", "╭", "│", "╰"]),
        ("a( x", ["", ""]),
    ],
    ids=["crossing, as points of a user's own may", "one behind the other", "left alone", "entered alone"],
)
def test_a_bracket_takes_the_first_free_column(firings: str, drawn: list[str]) -> None:
    halves: dict[str, Half] = {"": "whole", "(": "enter", ")": "exit"}
    bindings = [
        Binding(k, name[0], "somewhere", "around", halves[name[1:]], (), Trigger(), "normal")
        for k, name in enumerate(firings.split())
    ]
    assert rails(bindings, 9) == drawn


@given(plans())
def test_each_bracket_opens_and_closes_where_its_pair_does(drawn: Plan) -> None:
    drawn_rails = rails(drawn.bindings, 99)
    for enter, exit_ in pairs(drawn.bindings):
        assert drawn.bindings[enter].hook == drawn.bindings[exit_].hook
        column = drawn_rails[enter].index("╭")
        assert drawn_rails[exit_][column] == "╰"
        assert all(drawn_rails[row][column] == "│" for row in range(enter + 1, exit_))
