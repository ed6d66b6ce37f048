"""A plan and what it is made of: its file, the points of a run, amounts and windows of triggers."""

import json
from dataclasses import replace
from math import inf, nextafter
from typing import Any

import pytest

from hookflow.errors import Problem, Where
from hookflow.graph.order import compile_plan
from hookflow.graph.plan import Plan, Trigger
from hookflow.graph.points import POINTS, STANDARD, Point, Points
from hookflow.graph.schedule import Measure, Totals, measure, parsed, window_is_empty
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


def own(name: str, follows: str) -> Point:
    return Point(name, 3, ("run",), "firing", "", "own", follows)


def mine() -> Points:
    return Points(
        [
            own("a", "after_train_iter"),
            own("b", "a"),
            own("c", "after_train_iter"),
            own("before_tuning", "after_backward"),
            own("after_tuning", "before_tuning"),
            own("before_alone", "after_run"),
        ]
    )


def test_points_of_its_own_are_listed_behind_those_that_they_follow() -> None:
    names = [point.name for point in mine()]
    assert [name for name in names if name in POINTS] == [point.name for point in STANDARD]
    for first, *behind in (
        ("after_train_iter", "a", "c", "b", "after_train_epoch"),
        ("after_backward", "before_tuning", "after_tuning", "before_optimizer_step"),
        ("after_run", "before_alone"),
    ):
        start = names.index(first)
        assert names[start : start + len(behind) + 1] == [first, *behind]


@pytest.mark.parametrize(
    ("name", "ahead", "nested", "picks", "of_batches"),
    [
        ("before_run", True, False, "", False),
        ("before_train_iter", True, False, "", True),
        ("after_train_iter", False, False, "", True),
        ("after_train_epoch", False, False, "", False),
        ("after_val_iter", False, False, "", True),
        ("forward", True, True, "modules", True),
        ("parameter_grad", True, True, "parameters", True),
        ("state_dict_post", False, True, "modules", False),
        ("on_log", False, True, "", False),
    ],
)
def test_what_a_point_is_by_its_kind(name: str, ahead: bool, nested: bool, picks: str, of_batches: bool) -> None:
    point = mine()[name]
    assert (point.ahead, point.nested, point.picks, point.of_batches) == (ahead, nested, picks, of_batches)


def test_an_around_is_left_at_the_after_of_its_before() -> None:
    points = mine()
    assert points.pairs["val"] == "after_val"
    assert points.pairs["save_checkpoint"] == "after_copy_checkpoint"
    assert points.pairs["tuning"] == "after_tuning"
    assert {"load_checkpoint", "alone", "forward"}.isdisjoint(points.pairs), "these have no before, or no after"
    assert points.names == (*(point.name for point in points), *(f"around_{pair}" for pair in points.pairs))
    assert "around_val" not in points
    inside = ("after_train_iter", "forward", "b", "after_tuning", "after_val_iter", "before_alone")
    assert list(map(points.in_iteration, inside)) == [True] * 4 + [False] * 2, "own ones where those are they follow"


@pytest.mark.parametrize(
    ("since", "until", "before_one", "after_one"),
    [
        ("5", "3", True, True),
        ("3", "5", False, False),
        ("3", "3", True, False),  # before an iteration, `until` is that iteration itself
        ("2ep", "3it", False, False),  # which is the later one the data decide
        ("50%", "25%", True, True),
        ("3", None, False, False),
    ],
)
def test_a_window_is_empty_where_it_ends_before_it_begins(
    since: str | None, until: str | None, before_one: bool, after_one: bool
) -> None:
    trigger = Trigger(since=since, until=until)
    assert window_is_empty(trigger, POINTS["before_train_iter"]) is before_one
    assert window_is_empty(trigger, POINTS["after_train_iter"]) is after_one


@pytest.mark.parametrize(
    ("written", "point", "totals", "measured"),
    [
        ("25%", "after_train_iter", Totals(iters=202), Measure("it", 101, 2)),
        ("25%", "after_train_epoch", Totals(iters=202, epochs=2, iters_per_epoch=101), Measure("it", 101, 2)),
        ("50%", "after_train_iter", Totals(epochs=3), Measure("ep", 3, 2)),
        ("50%", "after_train_iter", Totals(), Measure("ep", 0, 1)),
        ("2ep", "after_train_iter", Totals(iters=50, iters_per_epoch=5), Measure("it", 10, 1)),
        ("2ep", "after_train_iter", Totals(epochs=3), Measure("ep", 2, 1)),
        ("3", "after_train_epoch", Totals(iters=50, iters_per_epoch=5), Measure("ep", 3, 1)),
        ("3", "after_val_iter", Totals(iters=50, iters_per_epoch=5), Measure("firing", 3, 1)),
        ("90s", "after_train_iter", Totals(iters=50), Measure("s", 90, 1)),
    ],
)
def test_an_amount_is_measured_in_what_its_point_counts(
    written: str, point: str, totals: Totals, measured: Measure
) -> None:
    assert measure(parsed(written), POINTS[point], totals) == measured


def test_which_multiple_a_count_has_entered_and_when_one_is_reached_and_passed() -> None:
    every = Measure("it", 5, 2)
    assert [every.multiple(count) for count in (0, 2, 3, 5, 7, 8)] == [0, 0, 1, 2, 2, 3]
    assert [Measure("s", 3, 2).multiple(seconds) for seconds in (1.25, 1.5, 3.0)] == [0, 1, 2]
    assert (Measure("it", 3, 1).reached(), Measure("it", 3, 1).passed(), Measure("it", 3, 2).reached()) == (3, 4, 2)
    assert (Measure("s", 3, 2).reached(), Measure("s", 3, 2).passed()) == (1.5, nextafter(1.5, inf))
