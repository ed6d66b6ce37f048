"""Amounts in the counters that they are measured in, and windows in which a binding can never fire."""

from __future__ import annotations

from math import inf, nextafter

import pytest

from hookflow.graph.plan import Trigger
from hookflow.graph.points import POINTS
from hookflow.graph.schedule import Measure, window_is_empty


@pytest.mark.parametrize(
    ("since", "until", "before_one", "after_one"),
    [
        ("5", "3", True, True),
        ("3", "5", False, False),
        ("3", "3", True, False),  # before an iteration, `until` is that iteration itself
        ("3", "3it", True, False),
        ("2ep", "3it", False, False),  # which is the later one the data decide
        ("50%", "25%", True, True),
        (None, "3", False, False),
        ("3", None, False, False),
    ],
)
def test_a_window_is_empty_where_it_ends_before_it_begins(
    since: str | None, until: str | None, before_one: bool, after_one: bool
) -> None:
    trigger = Trigger(since=since, until=until)
    assert window_is_empty(trigger, POINTS["before_train_iter"]) is before_one
    assert window_is_empty(trigger, POINTS["after_train_iter"]) is after_one


def test_what_is_counted_moves_on_by_one_and_seconds_by_as_little_as_there_is() -> None:
    assert (Measure("it", 3, 2).reached(), Measure("it", 3, 2).passed()) == (2, 2)
    assert (Measure("it", 3, 1).reached(), Measure("it", 3, 1).passed()) == (3, 4)
    assert (Measure("s", 3, 2).reached(), Measure("s", 3, 2).passed()) == (1.5, nextafter(1.5, inf))
