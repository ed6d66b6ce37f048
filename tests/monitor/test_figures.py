"""Axes fit what they show; numbers and ticks keep their digits and their width."""

from __future__ import annotations

import pytest

from hookflow.monitor.charts import Iterations, ticks
from hookflow.numbers import counted, number


@pytest.mark.parametrize("total", [0, 128, 784, 100_000])
def test_the_axis_ends_where_the_run_is_and_holds_still_for_a_while(total: int) -> None:
    for it in range(1, 3000, 7):
        span = Iterations.of([it // 10, it], it, total)
        assert it <= span.last <= max(1.1 * it, it + 1), "at most a tenth of it is empty"
        assert span.last <= max(it, total) or not total
        assert span.place(it) <= 1
    assert len({Iterations.of([1, it], it, 100_000).last for it in range(1000, 2000)}) < 20


def test_what_begins_late_fills_the_axis_too() -> None:
    assert Iterations.of([32, 64], 64, 128) == Iterations(30, 65)
    assert Iterations.of([32, 64, 120], 120, 640) == Iterations(30, 120)
    assert Iterations.of([32, 64, 200], 200, 640) == Iterations(0, 200)
    assert Iterations.of([32], 32, 128) == Iterations(0, 32), "one value is drawn at its place in the run"
    assert Iterations.of([], 0, 0) == Iterations.of([0], 0, 128) == Iterations(0, 1), "before the first value"


@pytest.mark.parametrize(
    ("values", "written"),
    [
        ([1.3, 1.4015, 1.503], ["1.300", "1.401", "1.503"]),
        ([1200.0, 1300.5, 1401.0], ["1200", "1300", "1401"]),
        ([12345.1, 12345.2, 12345.3], ["12345.1", "12345.2", "12345.3"]),
        ([0.0, 1.5e-4, 3e-4], ["0.00000", "0.00015", "0.00030"]),
        ([0.0, 1e-7, 2e-7], ["0", "1e-07", "2e-07"]),
        ([-3.2, -1.0, 2.0], ["-3.20", "-1.00", "2.00"]),
        ([0.02, 0.02, 0.02], ["0.02000", "0.02000", "0.02000"]),
    ],
)
def test_ticks_of_one_axis_have_as_many_decimals(values: list[float], written: list[str]) -> None:
    assert ticks(values, 7) == written


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (0.0, "0"),
        (0.0012345, "0.00123"),
        (1.24e-5, "1.2e-05"),
        (0.39876, "0.3988"),
        (2.2104, "2.210"),
        (16956.4, "16956"),
        (1234567.0, "1.2e+06"),
        (float("nan"), "NaN"),
        (float("inf"), "inf"),
    ],
)
def test_a_scalar_keeps_its_digits_and_its_width(value: float, written: str) -> None:
    assert number(value) == written
    assert len(number(value)) <= 7


def test_one_thing_is_no_plural() -> None:
    assert [counted(count, "edge") for count in (0, 1, 2, 1000)] == ["0 edges", "1 edge", "2 edges", "1,000 edges"]
    assert [counted(2, thing) for thing in ("batch", "epoch")] == ["2 batches", "2 epochs"]
