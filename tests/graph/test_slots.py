"""Which writers of a slot need no order."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hookflow.graph.plan import Ranks
from hookflow.graph.points import POINTS, Point
from hookflow.graph.slots import commutes
from tests.hook_nodes import node, plan


@pytest.mark.parametrize("point", [*POINTS], ids=lambda point: point.name)
def test_requests_need_no_order_and_what_is_changed_does(point: Point) -> None:
    assert commutes("control", point)
    assert commutes("checkpoint", point) == ("checkpoint" not in point.offers), "at hand it is changed"
    assert not commutes("model", point)
    assert not commutes("metrics", point)


def test_some_points_offer_the_state_of_a_checkpoint_and_some_do_not() -> None:
    assert {"checkpoint" in point.offers for point in POINTS} == {True, False}


def test_a_slot_of_its_own_is_no_slip_where_its_one_hook_writes_it() -> None:
    assert plan(node("a", reads=["mine"], writes=["mine"])).warnings == ()
    (warned,) = plan(node("a", reads=["mine"])).warnings
    assert "which no hook writes" in warned.message


@pytest.mark.parametrize(
    ("ranks", "writes", "told"),
    [
        ("zero", ["metrics.loss", "model", "control"], "model, metrics"),
        ("zero", ["control"], ""),
        ("all", ["model"], ""),
    ],
)
def test_what_is_the_same_on_all_ranks_is_not_written_by_one(ranks: Ranks, writes: list[str], told: str) -> None:
    made = node("a", writes=writes)
    warnings = plan(replace(made, hook=replace(made.hook, ranks=ranks))).warnings
    assert [warning.message for warning in warnings] == [
        f'hook "a" fires on rank 0 alone and writes {slots}: several ranks would drift apart'
        for slots in [told]
        if slots
    ]
