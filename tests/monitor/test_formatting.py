"""Numbers as the screens write them."""

from __future__ import annotations

import pytest

from hookflow.numbers import counted, number


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (0.0, "0"),
        (0.001, "0.00100"),
        (0.0012345, "0.00123"),
        (1e-5, "1e-05"),
        (1.24e-5, "1.2e-05"),
        (0.4, "0.4000"),
        (0.39876, "0.3988"),
        (2.2104, "2.210"),
        (16956.4, "16956"),
        (100.0, "100.0"),
        (1234567.0, "1.2e+06"),
        (float("nan"), "NaN"),
        (float("inf"), "inf"),
        (float("-inf"), "-inf"),
    ],
)
def test_a_scalar_keeps_its_digits_and_its_width(value: float, written: str) -> None:
    assert number(value) == written
    assert len(number(value)) <= 7


def test_one_thing_is_no_plural() -> None:
    assert [counted(count, "edge") for count in (0, 1, 2, 1000)] == ["0 edges", "1 edge", "2 edges", "1,000 edges"]
    assert [counted(2, thing) for thing in ("batch", "epoch")] == ["2 batches", "2 epochs"]
