"""What a plan says of itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hookflow.graph.plan import Node, Trigger
from tests.hook_nodes import node, plan


def fires(of: Node, trigger: Trigger) -> Node:
    return replace(of, bound=tuple(replace(bound, trigger=trigger) for bound in of.bound))


def test_as_a_string_it_is_a_line_for_each_point_with_the_triggers() -> None:
    both = (("before_run", "whole"), ("after_train_epoch", "whole"))
    always = node("b", points=both)
    compiled = plan(
        fires(node("a", points=both[1:]), Trigger(every="2", since="1ep", until="9ep", when="n > 3")), always
    )
    assert str(compiled) == ("before_run         b\nafter_train_epoch  a (every 2 from 1ep until 9ep when n > 3) → b")
    assert str(plan()) == ""


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({}, ""),
        ({"decay": 0.9, "name": "x"}, "decay = 0.9, name = 'x'"),
        ([0.9, "x"], "0.9, 'x'"),
    ],
)
def test_arguments_as_one_would_write_them(args: dict[str, object] | list[object], said: str) -> None:
    assert replace(node("a").hook, args=args).written_args == said


def test_a_hook_by_its_name() -> None:
    compiled = plan(node("a"))
    assert compiled.hook("a") == compiled.hooks[0]
    with pytest.raises(KeyError):
        compiled.hook("b")
