"""Amounts in the counters that they are measured in, and windows in which a binding can never fire."""

from __future__ import annotations

from math import inf, nextafter

import pytest

from hookflow.graph.plan import Trigger
from hookflow.graph.points import POINTS
from hookflow.graph.schedule import Measure, Totals, measure, parsed, window_is_empty


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
