"""The axes of charts: values of any size have a place between bottom and top."""

from __future__ import annotations

import math
import sys

import pytest

from hookflow.monitor.charts import Scale

MAX = sys.float_info.max


@pytest.mark.parametrize(
    "values", [[0.0], [3.0, 3.0], [-(2.0**63)], [2.0**63], [MAX], [-MAX], [-MAX, MAX], [5e-324], [-5e-324, 5e-324]]
)
@pytest.mark.parametrize("log", [False, True])
def test_a_scale_holds_values_of_any_size(values: list[float], log: bool) -> None:
    scale = Scale.of(values, log)
    assert scale.low < scale.high
    for value in values:
        assert 0 <= scale.place(value) <= 1
        assert math.isfinite(scale.at(scale.place(value)))
