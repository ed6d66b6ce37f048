"""The page of the metrics: the tree, the chart and its cursor, heat, and each of its keys; bounded series."""

from __future__ import annotations

import math
import random
import re
import sys
from itertools import pairwise
from typing import Any

import pytest

from hookflow.monitor.charts import Axis, Curve, Mark, chart, marks_on
from hookflow.monitor.keys import press
from hookflow.monitor.panels.metrics import matches
from hookflow.monitor.series import Bucket, Progress, Series
from hookflow.monitor.state import RunState
from hookflow.monitor.view import Notice, Scene
from tests.golden_files import check_golden
from tests.monitor.conftest import At
from tests.monitor.fake_run import BEGAN
from tests.monitor.test_keys import pressed
from tests.monitor.test_screens import SIZES, drawn

LAYERS = 8


def explored(scene: At, **choices: Any) -> Scene:
    """Return the page of a run with the gradients of layers, of which one explodes, and a metric with NaNs."""
    at, chance = scene(synthetic=False), random.Random(0)
    for it in range(10, 590, 10):
        values: dict[str, float | str] = {}
        for layer in range(LAYERS):
            growth = max(it - 350, 0) / 40 if layer == 5 else 0.0
            values[f"grad_norm/layers.{layer}"] = 0.02 * (layer + 1) * math.exp(chance.gauss(0, 0.3)) * (1 + growth)
        values["activation/head/mean"], values["activation/head/std"] = -it / 1000, 1.0
        values["temperature"] = "nan" if 300 <= it < 330 else 1 + it / 500
        at.state.apply({"k": "scalars", "t": at.state.now, "it": it, "ep": at.state.ep, "v": values})  # type: ignore[typeddict-item]
    at.state.it = 588
    at.view.page = "metrics"
    for name, value in choices.items():
        setattr(at.view.metrics, name, value)
    return at


PAGES: dict[str, dict[str, Any]] = {
    "loss": {},
    "cursor": {"name": "loss", "at": 300, "unit": "epoch", "smooth": 0.9, "large": True},
    "heat": {"name": "grad_norm/", "turned": {"grad_norm/"}},
    "layer": {"name": "grad_norm/layers.5", "turned": {"grad_norm/"}, "at": 400},
    "nan": {"name": "temperature", "at": 311, "zoom": 1, "large": True},
}


@pytest.mark.parametrize(("name", "size"), [(name, size) for name in PAGES for size in (*SIZES, (200, 60))])
def test_the_page(scene: At, name: str, size: tuple[int, int]) -> None:
    check_golden(f"monitor/metrics-{name}-{size[0]}x{size[1]}.txt", drawn(explored(scene, **PAGES[name]), *size))


@pytest.mark.parametrize("name", PAGES)
def test_no_terminal_is_too_small_for_the_page(scene: At, name: str) -> None:
    at = explored(scene, **PAGES[name])
    for width in (1, 2, 7, 12, 20, 33, 59, 76, 110, 300):
        for height in (1, 2, 4, 6, 11, 18, 30, 90):
            drawn(at, width, height)


def test_a_run_without_numbers_says_how_to_log_them(scene: At) -> None:
    at = scene(0)
    assert "no scalars yet: run.log(name, value)" in pressed(at, "m")
    answers = {press(key, at) for key in ("left", "x", "plus")}
    assert all(isinstance(answer, Notice) for answer in answers)
    assert [press(key, at) for key in ("down", "right_square_bracket", "enter", "s", "l")] == [""] * 5
    drawn(at, 120, 40)


def reading(scene: Scene) -> str:
    """Return the row of the chart with the values at its cursor."""
    return next(line.strip("┃│ ") for line in drawn(scene, 80, 24).splitlines() if "it " in line)


def test_the_cursor_reads_values_and_extremes(scene: At) -> None:
    at = explored(scene, large=True)
    assert reading(at) == "it 580  ⠤⠤ train 0.3550 @ 580  ◇ val 0.5431 @ 490"
    assert press("right", at) == Notice("this is the newest value")
    assert reading(at) and press("left", at) == ""
    assert reading(at).startswith("it 574  ⠤⠤ train 0.4081 @ 570"), "the newest value up to there"
    press("shift+left", at)
    assert at.view.metrics.at == 514
    for _ in range(20):
        press("shift+left", at)
    assert reading(at) == "it 10  ⠤⠤ train 2.210 @ 10"
    for _ in range(20):
        press("shift+right", at)
    assert at.view.metrics.at is None, "it follows the newest again"
    at.view.metrics.name, at.view.metrics.at = "temperature", 321
    assert "NaN @ 320" in reading(at)
    at.view.metrics.at = None
    assert reading(at).endswith("NaN since it 300")


def test_the_axis_zooms_and_counts_epochs_and_seconds(scene: At) -> None:
    at = explored(scene, large=True, at=300)
    assert re.search("it 0 .* it 600", pressed(at, size=(80, 24)))
    assert re.search("it 150 .* it 450", pressed(at, "plus", size=(80, 24)))
    assert "×2" in drawn(at, 80, 24)
    assert re.search(r"epoch 1.5\d .* epoch 4.5\d", pressed(at, "x", size=(80, 24)))
    assert re.search(r"it 300 = 0:00:\d\d", pressed(at, "x", size=(80, 24)))
    assert " = " not in reading(at) or press("x", at) == ""
    assert at.view.metrics.unit == "it"
    assert press("minus", at) == ""
    assert press("minus", at) == Notice("the chart shows the whole run")
    answers = [press("equals_sign", at) for _ in range(10)]
    assert answers[-1] == Notice("the chart is as near as it gets")
    first, last = (int(it) for it in re.findall(r"it (\d+)", drawn(at, 80, 24).splitlines()[-3]))
    assert first <= 300 <= last <= first + 16


def test_smoothing_and_the_scale_are_stated_on_the_chart(scene: At) -> None:
    at = explored(scene, large=True)
    assert "ema 0.6" in pressed(at, "s", size=(80, 24))
    assert "0.9  log" in pressed(at, "s", "l", size=(80, 24))
    assert "ema" not in pressed(at, "s", "s", size=(80, 24))
    at.view.metrics.name = "activation/head/mean"
    assert "linear: not all above 0" in drawn(at, 80, 24)


def test_the_tree_opens_groups_and_filters_names(scene: At) -> None:
    at = explored(scene)
    assert "▸grad_norm/ (8)" in drawn(at, 120, 40), "a large group is closed at first"
    assert "▾activation/ (2)" in drawn(at, 120, 40)
    at.view.metrics.name = "grad_norm/"
    assert "layers.7" in pressed(at, "enter")
    assert "▸  layers.1" in pressed(at, "down", "down", size=(60, 15))
    assert at.view.metrics.name == "grad_norm/layers.1"
    assert press("right_square_bracket", at) == "" and at.view.metrics.name == "grad_norm/layers.2"
    assert press("left_square_bracket", at) == "" and at.view.metrics.name == "grad_norm/layers.1"
    pressed(at, "home")
    assert at.view.metrics.name == "loss"
    press("slash", at)
    for key in "layers.[2-4]":
        press(key, at, key)
    shown = drawn(at, 120, 40)
    assert "3 of 14  / layers.[2-4]" not in shown, "a glob is of the whole name"
    assert 'no metric matches "layers.[2-4]"' in shown
    for _ in range(len("[2-4]")):
        press("backspace", at)
    assert "8 of 14  / layers." in drawn(at, 120, 40)
    assert press("enter", at) == ""
    at.view.metrics.name = "grad_norm/"
    assert press("enter", at) == Notice("groups are open while a filter is set")
    press("slash", at)
    press("escape", at)
    assert at.view.metrics.pattern == "layers.", "esc leaves the filter as it was"
    assert "[g] graph" in pressed(at, "m")


def test_enter_makes_the_chart_large(scene: At) -> None:
    at = explored(scene)
    assert "metrics: 14" in pressed(at, size=(60, 15))
    assert "┏━ loss" in pressed(at, "enter", size=(60, 15))
    assert "metrics: 14" in pressed(at, "enter", size=(60, 15))


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


def test_a_layer_beyond_its_own_past_is_marked_in_the_heat(scene: At) -> None:
    lines = drawn(explored(scene, name="grad_norm/", turned={"grad_norm/"}), 120, 40).splitlines()
    marked = [line for line in lines if "▲×" in line]
    assert len(marked) == 1
    assert "layers.5" in marked[0].split("││")[-1] or "layers.5" in marked[0]
    assert "█" in marked[0]


def test_a_mean_hides_no_spike() -> None:
    series = Series()
    for it in range(100_000):
        series.add(it, 1000.0 if it == 70_000 else 1.0)
    assert len(series.its) <= Series.LIMIT
    assert (series.low, series.high) == (1.0, 1000.0)
    (bucket,) = series.stretches([69_999, 71_000])
    assert bucket is not None
    assert (bucket.low, bucket.high) == (1.0, 1000.0)
    assert bucket.mean < 20
    stretches = series.stretches([-1, 50_000, 69_000, 71_000, 10**6, 10**7])
    assert [stretch and stretch.high for stretch in stretches] == [1.0, 1.0, 1000.0, 1.0, None]
    assert 70_000 <= series.best("max") < 70_200
    points = [(bucket.it, bucket.mean, bucket.low, bucket.high) for it in series.its if (bucket := series.at(it))]
    rows = chart([Curve("train", points)], Axis(0, 100_000), 60, 12)
    assert any("⠅" in row.text or "⢐" in row.text for row in rows[:3]), "the band reaches up to the spike"
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
    assert (together._lows, together.highs, together.broken) == (alone._lows, alone.highs, alone.broken)


def test_hundreds_of_series_of_long_runs_stay_small() -> None:
    series = Series()
    for it in range(10 * Series.LIMIT):
        series.add(it, it if it % 7 else math.nan)
    held = sum(sys.getsizeof(each) for each in (series.its, series._means, series._lows, series.highs))
    assert held < 64 * 1024
    assert len(series.broken) <= Series.BROKEN
    assert series.broken[0][0] == 0
    assert series.broken[-1][0] > 10 * Series.LIMIT - 8


def test_what_is_not_finite_is_the_newest_value_until_the_next_one() -> None:
    series = Series()
    for it, value in ((1, 1.0), (2, math.inf), (3, 3.0)):
        series.add(it, value)
    assert series.at(0) is None
    assert [each and each.mean for each in map(series.at, (1, 2, 3, 9))] == [1.0, math.inf, 3.0, 3.0]
    assert [each and each.high for each in series.stretches([0, 1, 2, 3])] == [1.0, math.inf, 3.0]


def test_smoothing_has_no_bias_to_its_beginning_and_keeps_the_extremes() -> None:
    series = Series()
    for it, value in enumerate((4.0, 4.0, 4.0, 8.0)):
        series.add(it, value)
    smooth = series.smoothed(0.5)
    *means, last = (mean for _, mean in smooth)
    assert means == [4.0, 4.0, 4.0]
    assert 4.0 < last < 8.0
    assert smooth.at() == Bucket(3, last, 8.0, 8.0)
    assert [mean for _, mean in series][-1] == 8.0


def test_progress_turns_iterations_into_seconds_of_the_path_that_was_kept(scene: At) -> None:
    assert Progress().at(7.5) == Progress().it(7.5) == 7.5
    state: RunState = scene(synthetic=False).state
    epochs, seconds = state.progress("epoch"), state.progress("time")
    assert epochs.at(0) == 0
    assert epochs.at(98) == pytest.approx(1)
    assert epochs.at(147) == pytest.approx(1.5)
    assert epochs.it(1.5) == pytest.approx(147)
    assert 0 < seconds.at(100) < seconds.at(400) < state.elapsed
    at_300 = seconds.at(300)
    again = {**state.run, "k": "run", "it": 300, "ep": 3, "t": BEGAN + 10_000, "resumed_from": "checkpoints/it300"}
    state.apply(again)  # type: ignore[typeddict-item]
    frame = {"k": "frame", "stage": "train", "bi": 1, "bn": 98, "samples": 1, "phases": {}, "hooks": {}, "cost": 0}
    state.apply({**frame, "t": BEGAN + 10_002, "it": 310, "ep": 3, "iters": [10, 10, 1, 1, [0]], "elapsed": 2.0})  # type: ignore[typeddict-item]
    assert state.progress("time").at(310) == pytest.approx(at_300 + 2, abs=0.5), (
        "the pause between attempts is left out"
    )


def test_troubles_on_an_axis_are_never_left_out() -> None:
    axis = Axis(0, 100)
    many = [Mark(x, "◆", "checkpoint") for x in range(100)] + [Mark(x, "✗", "error") for x in (10, 11, 12)]
    cells = marks_on(axis, many, 101)
    assert {x for x, (sign, _) in cells.items() if sign == "✗"} == {10, 11, 12}
    columns = sorted(x for x, (sign, _) in cells.items() if sign == "◆")
    assert all(after - before >= 3 for before, after in pairwise(columns))
