"""The points of a run: what each is by its kind, and where those of the pipeline's own stand."""

from __future__ import annotations

import pytest

from hookflow.graph.points import POINTS, STANDARD, Point, Points


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
