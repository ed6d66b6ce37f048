"""The pages of metrics and of media: the tree, charts, cursors, images, texts, histograms, and each of their keys."""

import io
import math
import random
import re
import struct
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hookflow.events.rundir import RunDir
from hookflow.monitor import plain
from hookflow.monitor.charts import Axis, Curve, Mark, Pixels, chart, half_blocks, marks_on, read_image
from hookflow.monitor.journal import KEPT, Gallery
from hookflow.monitor.keys import press
from hookflow.monitor.layout import screen
from hookflow.monitor.panels.gallery import beside_each_other
from hookflow.monitor.panels.metrics import marks, matches, words_of_holes
from hookflow.monitor.series import Bucket, Progress, Series
from hookflow.monitor.state import RunState
from hookflow.monitor.view import Notice, Scene
from hookflow.png import decode_png, encode_png
from tests.conftest import hookflow_here
from tests.golden_files import check_golden
from tests.monitor.conftest import At
from tests.monitor.fake_run import BEGAN, append, end
from tests.monitor.test_keys import pressed, walk, write
from tests.monitor.test_screens import SIZES, draw_at_any_size, drawn

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


@pytest.mark.parametrize("name", PAGES)
def test_the_page(scene: At, name: str) -> None:
    at = explored(scene, **PAGES[name])
    for width, height in (*SIZES, (200, 60)):
        check_golden(f"monitor/metrics-{name}-{width}x{height}.txt", drawn(at, width, height))
    draw_at_any_size(at)


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
    assert reading(at).endswith("NaN at it 300–320")


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


def test_the_chart_states_smoothing_and_scale_and_enter_makes_it_large(scene: At) -> None:
    at = explored(scene, large=True)
    assert "ema 0.6" in pressed(at, "s", size=(80, 24))
    assert "0.9  log" in pressed(at, "s", "l", size=(80, 24))
    assert "ema" not in pressed(at, "s", "s", size=(80, 24))
    at.view.metrics.name = "activation/head/mean"
    assert "linear: not all above 0" in drawn(at, 80, 24)
    at = explored(scene)
    assert "metrics: 14" in pressed(at, size=(60, 15))
    assert "┏━ loss" in pressed(at, "enter", size=(60, 15))
    assert "metrics: 14" in pressed(at, "enter", size=(60, 15))


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
    write(at, "layers.[2-4]")
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


@pytest.mark.parametrize("every", [2, 7, 50])
def test_values_that_are_now_and_then_nan_hide_no_finite_one(every: int) -> None:
    series = Series()
    for it in range(1, 1601):
        series.add(it, math.nan if it % every == 0 else 0.5)
    for columns in (100, 1600):
        edges = [1600 * k / columns for k in range(columns + 1)]
        drawn = series.stretches(edges)
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
    drawn = series.stretches([float(edge) for edge in range(0, 5001, 100)])
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
    assert words_of_holes(series) == words


def test_a_series_is_small_has_what_is_not_finite_and_is_smoothed_without_bias() -> None:
    series = Series()
    for it in range(10 * Series.LIMIT):
        series.add(it, it if it % 7 else math.nan)
    assert [it for it, _ in series] == sorted(it for it, _ in series) and len([*series]) <= Series.LIMIT + 1
    assert all(abs(mean - (before + it) / 2) < 1.5 for (before, _), (it, mean) in pairwise(series)), "no bias"
    held = sum(sys.getsizeof(each) for each in (series.its, series._means, series._lows, series.highs))
    assert held < 64 * 1024
    assert len(series.broken) <= Series.LIMIT
    assert series.broken[0].first == 0
    assert series.broken[-1].first > 10 * Series.LIMIT - 8
    series = Series()
    for it, value in ((1, 1.0), (2, math.inf), (3, 3.0)):
        series.add(it, value)
    assert series.at(0) is None
    assert [each and each.mean for each in map(series.at, (1, 2, 3, 9))] == [1.0, math.inf, 3.0, 3.0]
    assert [each and each.high for each in series.stretches([0, 1, 2, 3])] == [1.0, math.inf, 3.0]
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


def test_troubles_on_an_axis_are_never_left_out(scene: At) -> None:
    axis = Axis(0, 100)
    many = [Mark(x, "◆", "checkpoint") for x in range(100)] + [Mark(x, "✗", "error") for x in (10, 11, 12)]
    cells = marks_on(axis, many, 101)
    assert {x for x, (sign, _) in cells.items() if sign == "✗"} == {10, 11, 12}
    columns = sorted(x for x, (sign, _) in cells.items() if sign == "◆")
    assert all(after - before >= 3 for before, after in pairwise(columns))
    state = scene().state
    state.journal.add(state.now, "error", "boom", "KeyError", it=state.it + 1)
    assert marks(state, Progress())[-1].x == state.it, "that of the iteration which fails, at the end"


VERSE = "It was the best of times,\nit was the worst of times.\n\n    indented\n\tby a tab\n数据数据" + "数据" * 40


def stamped(kind: str, it: int, hook: str = "draw", **fields: Any) -> dict[str, Any]:
    return {"k": kind, "t": BEGAN + it / 36, "it": it, "ep": it // 98, "name": "sample", "hook": hook, **fields}


def image(it: int, name: str = "rendered/ring", width: int = 24, height: int = 16, caption: str = "") -> dict[str, Any]:
    path = f"images/{name}/it{it:08}.png"
    size = {"width": width, "height": height}
    return stamped("image", it, name=name, path=path, caption=caption, figure=False, **size)


def text(it: int, words: str = VERSE) -> dict[str, Any]:
    return stamped("text", it, text=words)


def histogram(it: int, name: str = "head.weight", bins: int = 30) -> dict[str, Any]:
    counts = [round(900 * np.exp(-(((k - bins / 2) / bins * 5) ** 2))) for k in range(bins)]
    edges = np.linspace(-0.31, 0.42, bins + 1).round(4).tolist()
    return stamped("histogram", it, hook="stats", name=name, edges=edges, counts=counts)


def ring(width: int = 24, height: int = 16) -> NDArray[np.uint8]:
    """Return a ring of colours."""
    y, x = np.mgrid[0:height, 0:width]
    y, x = (y / height - 0.5) * 2, (x / width - 0.5) * 2
    distance = np.hypot(x, y)
    colours = np.stack([x / 2 + 0.5, y / 2 + 0.5, 1 - distance / 1.5], axis=-1)
    return np.where(abs(distance - 0.6)[..., None] < 0.25, colours * 255, 12).clip(0, 255).astype(np.uint8)


SOLID = np.array([17, 21, 26])  # what lies behind everything


@pytest.mark.parametrize("size", [(1, 1), (7, 5), (33, 64)])
def test_grey_and_transparent_images_are_shown_before_the_ground(tmp_path: Path, size: tuple[int, int]) -> None:
    def seen(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        path = tmp_path / "image.png"
        path.write_bytes(encode_png(pixels))
        image = read_image(path)
        assert isinstance(image, Pixels)
        return image.rgb

    random = np.random.default_rng(0)
    grey, colour = (random.integers(0, 256, (*size, channels), np.uint8) for channels in (1, 3))
    assert (seen(grey) == np.repeat(grey, 3, axis=2)).all()
    assert (seen(colour) == colour).all()
    opaque, clear = (np.concatenate([colour, np.full((*size, 1), alpha, np.uint8)], axis=2) for alpha in (255, 0))
    assert (decode_png(encode_png(opaque)) == opaque).all()
    assert (seen(opaque) == colour).all()
    assert (seen(clear) == SOLID).all()


def test_what_is_no_image_of_a_run_says_why(tmp_path: Path) -> None:
    whole = encode_png(ring())
    path = tmp_path / "image.png"
    for data, why in (
        (b"GIF89a", "cannot be shown: not a PNG file"),
        (whole[:40], "cannot be shown"),
        (whole.replace(struct.pack(">II", 24, 16), struct.pack(">II", 24, 99)), "the file ends too early"),
        (whole.replace(b"\x08\x02\x00\x00\x00", b"\x08\x02\x00\x00\x01"), "unsupported PNG format"),
    ):
        path.write_bytes(data)
        assert why in str(read_image(path))
    assert read_image(tmp_path / "gone.png") == "cannot be read: No such file or directory"


def colours(image: Pixels, width: int, height: int) -> list[list[tuple[Any, Any]]]:
    """Return the upper and the lower colour of each cell of a drawn image."""
    return [
        [(style.color.triplet, style.bgcolor.triplet) for text, style, _ in strip for _ in text]  # type: ignore[union-attr]
        for strip in half_blocks(image, width, height)
    ]


def test_an_image_grows_by_a_whole_factor_and_shrinks_to_its_means() -> None:
    pixels = np.array([[[255, 0, 0], [0, 255, 0], [0, 0, 255]], [[1, 2, 3], [4, 5, 6], [7, 8, 9]]], np.uint8)
    cells = colours(Pixels(pixels), 10, 4)
    assert [len(row) for row in cells] == [9, 9, 9], "three times as large: of 3 × 2 pixels 9 × 6"
    assert cells[0][0] == ((255, 0, 0), (255, 0, 0))
    assert cells[1][4] == ((0, 255, 0), (4, 5, 6))
    assert cells[2][8] == ((7, 8, 9), (7, 8, 9))
    pixels = np.zeros((200, 400, 3), np.uint8)
    pixels[:, ::2] = 100
    cells = colours(Pixels(pixels), 50, 50)
    assert (len(cells), len(cells[0])) == (13, 50), "25 pixels are 12 cells and a half"
    assert cells[0][0] == ((50, 50, 50), (50, 50, 50))
    assert cells[-1][0] == ((50, 50, 50), tuple(SOLID))


def gallery(scene: At, page: str) -> Scene:
    """Return a scene whose gallery shows one of a kind."""
    seen = scene()
    for record in (image(200), image(300, caption="a ring"), text(300), histogram(100), histogram(300)):
        seen.state.apply(record)  # type: ignore[arg-type]
    seen.view.page = "gallery"
    seen.images = dict.fromkeys(range(10), Pixels(ring()))
    seen.view.logged = next(key for key in seen.state.gallery.keys if key[0] == page)
    return seen


@pytest.mark.parametrize("kind", ["image", "text", "histogram"])
def test_the_gallery(scene: At, kind: str) -> None:
    seen = gallery(scene, kind)
    for width, height in SIZES:
        check_golden(f"monitor/gallery-{kind}-{width}x{height}.txt", drawn(seen, width, height))
    draw_at_any_size(seen)


def test_a_text_that_was_logged_cannot_move_the_cursor(scene: At) -> None:
    seen = gallery(scene, "text")
    seen.state.apply(text(301, "\x1b[2J\x1b]0;mine\x07red\r\x9b31m\u202e\x00"))  # type: ignore[arg-type]
    seen.state.apply(image(302, name="\x1b[2Jevil", caption="a\x1b[2Jb"))  # type: ignore[arg-type]
    for key in seen.state.gallery.keys:
        seen.view.logged = key
        assert all(strip.text.isprintable() for strip in screen(seen, 120, 40))
    for focus in (3, 0):
        seen.view.page, seen.view.focus = "main", focus
        assert all(strip.text.isprintable() for strip in screen(seen, 120, 40))


def test_the_newest_of_each_name_are_kept_and_what_is_logged_at_once_is_one_event() -> None:
    held = Gallery()
    for it in range(KEPT + 10):
        held.add(image(it))  # type: ignore[arg-type]
    held.add(text(105))  # type: ignore[arg-type]
    kept = held.of(("image", "rendered/ring"))
    assert [shown.record["it"] for shown in kept] == list(range(10, KEPT + 10))
    assert held.find(0) is None
    held.forget_after(20)
    assert [shown.record["it"] for shown in held.of(("image", "rendered/ring"))] == list(range(10, 21))
    assert held.keys == [("image", "rendered/ring")]
    state = RunState()
    for it in (100, 200):
        for k in range(20):
            state.apply(histogram(it, f"layer{k}.weight"))  # type: ignore[arg-type]
        state.apply(image(it))  # type: ignore[arg-type]
    entries = list(state.journal)
    expected = [(kind, it, more) for it in (100, 200) for kind, more in (("histogram", 19), ("image", 0))]
    assert [(entry.kind, entry.it, entry.more) for entry in entries] == expected
    assert entries[0].text == '"layer0.weight": 9.6k values, -0.3100 … 0.4200, and 19 more'
    assert state.it == 0, "they come late: they do not say how far the run is"


def test_keys_go_through_names_and_iterations_and_back(scene: At) -> None:
    at = gallery(scene, "image")
    at.view.page, at.view.logged = "main", None
    assert "iteration 300   24×16   draw   a ring" in pressed(at, "i")
    assert "iteration 200   24×16   draw" in pressed(at, "left")
    assert "[ ] 1 of 2" in pressed(at, "left")
    assert "[ ] 2 of 2" in pressed(at, "right_square_bracket")
    assert at.view.shown is None, "it follows the newest again"
    assert "It was the best of times" in pressed(at, "down")
    assert "█████" in pressed(at, "down")
    assert "24×16" in pressed(at, "j")
    assert "[g] graph" in pressed(at, "i")
    at.view.event, at.view.focus = next(entry.number for entry in at.state.journal if entry.kind == "image"), 3
    assert "iteration 200   24×16   draw" in pressed(at, "enter"), "its event opens an image"
    assert "[3] events" in pressed(at, "escape")


def test_images_of_one_name_stand_beside_each_other(scene: At) -> None:
    at = gallery(scene, "image")
    for it in range(400, 1000, 100):
        at.state.apply(image(it))  # type: ignore[arg-type]
    at.images = {number: Pixels(ring() // (1 + number % 3)) for number in range(20)}
    assert press("b", at) == ""
    draw_at_any_size(at)
    for (width, height), tiles in {(60, 15): 2, (80, 24): 2, (120, 40): 3, (200, 60): 7}.items():
        check_golden(f"monitor/gallery-beside-{width}x{height}.txt", drawn(at, width, height))
        its = [shown.record["it"] for shown in beside_each_other(at, width)]
        assert its == list(range(200, 1000, 100))[-tiles:]
    press("left_square_bracket", at)
    assert beside_each_other(at, 80)[-1].record["it"] == 800
    press("b", at)
    assert len(beside_each_other(at, 80)) == 1
    press("down", at)
    assert press("b", at) == Notice("only images stand beside each other")


@pytest.fixture
def logging(going: RunDir) -> RunDir:
    """A run that goes on and has logged something."""
    records = [image(100), image(200, caption="later"), text(200), histogram(200)]
    append(going, [{**record, "t": time.time()} for record in records])
    for record in records[:2]:
        path = going.path / record["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode_png(ring(record["width"], record["height"])))
    return going


def test_the_app_reads_images_and_says_where_a_file_is_gone(logging: RunDir) -> None:
    walk(logging, ("", " i images"), ("i", "▀▀▀"))
    for path in logging.path.glob("images/rendered/ring/*.png"):
        path.unlink()
    walk(logging, ("i left", "cannot be read: No such file or directory"))


def test_a_line_each_where_there_is_no_screen(logging: RunDir) -> None:
    append(logging, [end(time.time(), 200, 2)])
    out = io.StringIO()
    plain.follow(logging, out)
    lines = [line[9:] for line in out.getvalue().splitlines() if line[9:].startswith(("image", "text", "hist"))]
    check_golden("monitor/plain-media.txt", "\n".join([*lines, ""]))
    page = hookflow_here("show", str(logging.path), cwd=logging.path).stdout
    assert "image, text, histogram  kind" in page
    assert "rendered/ring           image      200" in page
