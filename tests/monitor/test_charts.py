"""Series of values, and the charts that are drawn of them."""

import math
import random
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from rich.cells import cell_len

from hookflow.monitor.charts import (
    Axis,
    Curve,
    Mark,
    Scale,
    format_ticks,
    place_marks,
    render_chart,
    without_outliers,
    x_labels,
)
from hookflow.monitor.metric_lines import compute_column_edges, describe_holes, make_marks, matches
from hookflow.monitor.series import Progress, Series, ValueBucket
from hookflow.numbers import number_of_4_digits
from tests.monitor.conftest import read
from tests.monitor.fake_run import BEGAN, make


def test_a_mean_hides_no_spike() -> None:
    series = Series()
    for it in range(100_000):
        series.add(it, 1000.0 if it == 70_000 else 1.0)
    assert len(series.its) <= Series.LIMIT
    assert (series.low, series.high) == (1.0, 1000.0)
    (bucket,) = series.split_at_edges([69_999, 71_000])
    assert bucket is not None
    assert (bucket.low, bucket.high) == (1.0, 1000.0)
    assert bucket.mean < 20
    stretches = series.split_at_edges([-1, 50_000, 69_000, 71_000, 10**6, 10**7])
    assert [stretch and stretch.high for stretch in stretches] == [1.0, 1.0, 1000.0, 1.0, None]
    assert 70_000 <= series.best("max") < 70_200
    points = [
        (bucket.it, bucket.mean, bucket.low, bucket.high)
        for it in series.its
        if (bucket := series.at(it))
    ]
    rows = render_chart([Curve("train", points)], Axis(0, 100_000), 60, 12)
    assert any("⠅" in row.text or "⢐" in row.text for row in rows[:3]), (
        "the band reaches up to the spike"
    )
    series.forget_after(60_000)
    assert series.high == 1.0
    assert series.its[-1] <= 60_000


@pytest.mark.parametrize("broken", [(), (700, 1501)], ids=["finite", "broken"])
def test_values_that_come_together_are_those_that_come_alone(broken: tuple[int, ...]) -> None:
    chance, together, alone = random.Random(0), Series(), Series()
    values = [math.inf if it in broken else chance.gauss(0, 1) for it in range(5000)]
    at = 0
    while at < len(values):
        to = min(at + chance.randint(1, 300), len(values))
        together.extend(range(at, to), values[at:to])
        at = to
    for it, value in enumerate(values):
        alone.add(it, value)
    assert [*together] == [(it, pytest.approx(mean)) for it, mean in alone]
    assert (together.low, together.high, together.last) == (alone.low, alone.high, alone.last)
    assert (together._lows, together.highs, together.broken) == (
        alone._lows,
        alone.highs,
        alone.broken,
    )


@pytest.mark.parametrize("every", [2, 7, 50])
def test_values_that_are_now_and_then_nan_hide_no_finite_one(every: int) -> None:
    series = Series()
    for it in range(1, 1601):
        series.add(it, math.nan if it % every == 0 else 0.5)
    for columns in (100, 1600):
        edges = [1600 * k / columns for k in range(columns + 1)]
        drawn = series.split_at_edges(edges)
        for (after, upto), bucket in zip(pairwise(edges), drawn, strict=True):
            finite = [it for it in series.its if after < it <= upto]
            assert bucket is None or math.isfinite(bucket.mean) == bool(finite)
        if columns == 1600 and every > 2:
            gaps = [it for it, bucket in enumerate(drawn, 1) if bucket and math.isnan(bucket.mean)]
            assert gaps == [*range(every, 1601, every)], "each hole is one"


def test_values_in_a_row_that_are_nan_are_one_hole() -> None:
    series = Series()
    for it in range(1, 5001):
        series.add(it, math.nan if 1000 <= it < 4000 else 1.0)
    assert series.broken == [(1000, 3999, pytest.approx(math.nan, nan_ok=True))]
    drawn = series.split_at_edges([float(edge) for edge in range(0, 5001, 100)])
    assert [bool(bucket and math.isnan(bucket.mean)) for bucket in drawn[10:39]] == [True] * 29
    at = series.at(2000)
    assert at is not None and (at.it, math.isnan(at.mean)) == (1000, True)
    series.forget_after(2000)
    assert series.broken[0][:2] == (1000, 2000)
    series.forget_after(500)
    assert series.broken == []


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([1.0, 2.0], ""),
        ([1.0, math.nan, 2.0], "NaN at it 2"),
        ([1.0, math.nan, math.nan, 2.0], "NaN at it 2–3"),
        ([1.0, math.nan, math.nan], "NaN since it 2; last finite at it 1"),
        ([math.nan], "NaN since it 1"),
        ([1.0, math.nan] * 5 + [1.0], "NaN at it 2, 4, …, 10"),
        ([1.0, math.nan] * 5, "NaN at it 2, 4, …, 10; last finite at it 9"),
        ([1.0, math.nan, math.inf, 2.0], "not finite at it 2, 3"),
    ],
)
def test_the_words_about_holes_are_true(values: list[float], words: str) -> None:
    series = Series()
    for it, value in enumerate(values, 1):
        series.add(it, value)
    assert describe_holes(series) == words


def test_a_series_is_small_has_what_is_not_finite_and_is_smoothed_without_bias() -> None:
    series = Series()
    for it in range(10 * Series.LIMIT):
        series.add(it, it if it % 7 else math.nan)
    assert [it for it, _ in series] == sorted(it for it, _ in series) and len(
        [*series]
    ) <= Series.LIMIT + 1
    assert all(
        abs(mean - (before + it) / 2) < 1.5 for (before, _), (it, mean) in pairwise(series)
    ), "no bias"
    held = sum(
        sys.getsizeof(each) for each in (series.its, series._means, series._lows, series.highs)
    )
    assert held < 64 * 1024
    assert len(series.broken) <= Series.LIMIT
    assert series.broken[0].first == 0
    assert series.broken[-1].first > 10 * Series.LIMIT - 8
    series = Series()
    for it, value in ((1, 1.0), (2, math.inf), (3, 3.0)):
        series.add(it, value)
    assert series.at(0) is None
    assert [each and each.mean for each in map(series.at, (1, 2, 3, 9))] == [
        1.0,
        math.inf,
        3.0,
        3.0,
    ]
    assert [each and each.high for each in series.split_at_edges([0, 1, 2, 3])] == [
        1.0,
        math.inf,
        3.0,
    ]
    series = Series()
    for it, value in enumerate((4.0, 4.0, 4.0, 8.0)):
        series.add(it, value)
    smooth = series.smooth(0.5)
    *means, last = (mean for _, mean in smooth)
    assert means == [4.0, 4.0, 4.0]
    assert 4.0 < last < 8.0
    assert smooth.at() == ValueBucket(3, last, 8.0, 8.0)
    assert [mean for _, mean in series][-1] == 8.0


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("", ["loss", "val/Loss", "lr"]),
        ("loss", ["loss", "val/Loss"]),
        ("val/*", ["val/Loss"]),
        ("l?", ["lr"]),
        ("lr val", ["val/Loss", "lr"]),
        ("[", []),
    ],
)
def test_a_filter_is_globs_or_parts_of_names(pattern: str, names: list[str]) -> None:
    assert [name for name in ("loss", "val/Loss", "lr") if matches(name, pattern)] == names


def test_troubles_on_an_axis_are_never_left_out(tmp_path: Path) -> None:
    axis = Axis(0, 100)
    many = [Mark(x, "◆", "checkpoint") for x in range(100)] + [
        Mark(x, "✗", "error") for x in (10, 11, 12)
    ]
    cells = place_marks(axis, many, 101)
    assert {x for x, (sign, _) in cells.items() if sign == "✗"} == {10, 11, 12}
    columns = sorted(x for x, (sign, _) in cells.items() if sign == "◆")
    assert all(after - before >= 3 for before, after in pairwise(columns))
    state = read(make(tmp_path, upto=100)).state
    state.journal.add(state.now, "error", "boom", "KeyError", it=state.it + 1)
    assert make_marks(state, Progress())[-1].x == state.it, (
        "that of the iteration which fails, at the end"
    )


def test_progress_turns_iterations_into_seconds_of_the_path_that_was_kept(tmp_path: Path) -> None:
    assert Progress().at(7.5) == Progress().it(7.5) == 7.5
    state = read(make(tmp_path, upto=100, synthetic=False)).state
    epochs, seconds = state.progress("epoch"), state.progress("time")
    assert epochs.at(0) == 0
    assert epochs.at(98) == pytest.approx(1)
    assert epochs.at(147) == pytest.approx(1.5)
    assert epochs.it(1.5) == pytest.approx(147)
    assert 0 < seconds.at(100) < seconds.at(400) < state.elapsed
    at_300 = seconds.at(300)
    again = {
        **state.run,
        "k": "run",
        "it": 300,
        "ep": 3,
        "t": BEGAN + 10_000,
        "resumed_from": "checkpoints/it300",
    }
    state.apply(again)  # type: ignore[typeddict-item]
    frame = {
        "k": "frame",
        "stage": "train",
        "bi": 1,
        "bn": 98,
        "samples": 1,
        "phases": {},
        "hooks": {},
        "cost": 0,
    }
    state.apply(
        {
            **frame,
            "t": BEGAN + 10_002,
            "it": 310,
            "ep": 3,
            "iters": [10, 10, 1, 1, [0]],
            "elapsed": 2.0,
        }
    )  # type: ignore[typeddict-item]
    assert state.progress("time").at(310) == pytest.approx(at_300 + 2, abs=0.5), (
        "the pause between attempts is left out"
    )


@pytest.mark.parametrize("value", [3.14159e-5, -2.71828e-4, 1e-3, 0.5, 0.0, 4e-9])
def test_a_number_below_a_thousandth_has_four_digits(value: float) -> None:
    text = number_of_4_digits(value)
    assert float(text) == pytest.approx(value, rel=5e-4)
    assert len(text) <= 9


@pytest.mark.parametrize("width", [5, 12, 20, 33, 60, 117])
@pytest.mark.parametrize(
    "axis",
    [
        Axis(0, 784),
        Axis(0, 12_345_678),
        Axis(0.5, 3.25, "epoch"),
        Axis(0, 9_000, "time"),
        Axis(1, 1e6, log=True),
    ],
)
def test_the_numbers_below_a_chart_never_overlap(axis: Axis, width: int) -> None:
    line = x_labels(axis, width)
    assert cell_len(line) <= width
    ends = (axis.label(axis.first), axis.label(axis.last))
    if width > len(ends[0]) + len(ends[1]):
        assert line.startswith(ends[0]) and line.endswith(ends[1])
        between = line.removeprefix(ends[0]).removesuffix(ends[1])
        values = [word for word in between.split("  ") if word.strip()]
        assert all(
            word.strip()
            in {axis.tick(x * 10.0**e) for e in range(-2, 8) for x in (1, 2, 3, 4, 5, 6, 7, 8, 9)}
            or axis.unit == "time"
            or float(word) > axis.first
            for word in values
        )


def test_a_logarithmic_axis_has_decades_at_equal_distances() -> None:
    axis = Axis(1, 10_000, log=True)
    places = [axis.place(x) for x in (1, 10, 100, 1_000, 10_000)]
    assert places == pytest.approx([0, 0.25, 0.5, 0.75, 1])
    assert axis.at(0.5) == pytest.approx(100)
    assert compute_column_edges(axis, Progress(), 4) == pytest.approx([0, 10, 100, 1_000, 10_000])
    assert x_labels(axis, 60).split() == ["it", "1", "10", "100", "1000", "it", "10000"]


def test_outliers_are_what_lies_beyond_the_percentiles() -> None:
    values = [float(value) for value in range(1, 201)]
    kept = without_outliers([1e9, *values, -1e9])
    assert (min(kept), max(kept), len(kept)) == (3.0, 198.0, 196), (
        "202 values: positions 2.01 to 198.99"
    )
    assert without_outliers([1.0, 1e9]) == [1.0, 1e9], "there are too few values to say"
    points = [(float(x), 1e6 if x == 50 else x / 100, 0.0, 1.0) for x in range(100)]
    whole = render_chart([Curve("train", points)], Axis(0, 100), 60, 10)
    cut = render_chart([Curve("train", points)], Axis(0, 100), 60, 10, outliers=False)
    assert float(whole[0].text.split()[0]) == 1e6
    assert float(cut[0].text.split()[0]) < 1


def test_the_numbers_of_an_axis_below_a_thousandth_have_four_digits() -> None:
    assert format_ticks([3.1416e-5, 3.1426e-5, 3.1436e-5], 7) == [
        "3.142e-5",
        "3.143e-5",
        "3.144e-5",
    ]


def test_a_scale_of_equal_values_has_room_on_both_sides() -> None:
    for value in (0.0, -3.0, 7.5):
        assert 0 < Scale.of([value], log=True).place(value) < 1
