"""The page of metrics: the tree, charts to read values off, the heat of layers,
a rerun; each of its keys.
"""

import math
import random
import re
from collections.abc import Sequence
from typing import Any

import pytest
from textual.pilot import Pilot

from hookflow.events.rundir import RunDir
from hookflow.monitor.app import MonitorApp
from hookflow.monitor.screens import metrics as metrics_screen
from hookflow.monitor.screens.dialogs import ChoiceDialog
from hookflow.monitor.screens.metrics import MetricsScreen
from hookflow.monitor.widgets.heat_map import find_metric_kind, make_heat_rows, scale_of
from tests.monitor.conftest import read
from tests.monitor.fake_run import BEGAN, append, make
from tests.monitor.shown import NORMAL, WIDE, Size, check_screens, press, screen_text, visit

LAYERS = 8


@pytest.fixture
def explored(whole: RunDir) -> RunDir:
    """A run with the gradients of layers, of which one explodes, and a metric with NaNs."""
    chance = random.Random(0)
    records = []
    for it in range(10, 790, 10):
        values: dict[str, float | str] = {}
        for layer in range(LAYERS):
            growth = max(it - 350, 0) / 40 if layer == 5 else 0.0
            values[f"grad_norm/layers.{layer}"] = (
                0.02 * (layer + 1) * math.exp(chance.gauss(0, 0.3)) * (1 + growth)
            )
        for layer_name in ("stem", "head"):
            values[f"activation/{layer_name}/mean"] = -it / 1000
            values[f"activation/{layer_name}/std"] = 1.0
        values["temperature"] = "nan" if 300 <= it < 330 else 1 + it / 500
        records.append(
            {"k": "scalars", "t": BEGAN + it / 36, "it": it, "ep": it // 98, "v": values}
        )
    append(whole, records)
    return whole


def notices(app: MonitorApp) -> str:
    """Return what the page has said."""
    return "\n".join(notice.message for notice in app._notifications)


def after(run: RunDir, *keys: str, size: Size = NORMAL) -> str:
    """Return the page after these keys, and below it what it has said."""
    texts: list[str] = []

    async def look(app: MonitorApp, pilot: Pilot[Any]) -> None:
        await press(app, pilot, "3", *keys)
        texts.append(f"{screen_text(app)}\n{notices(app)}")

    visit(run, look, size=size)
    return texts[0]


def reading(text: str) -> str:
    """Return the row with the values at the cursor of the chart."""
    found = [line.strip() for line in text.splitlines() if re.match(r" it \d+", line)]
    return found[0] if found else ""


@pytest.mark.parametrize(
    ("name", "keys"), [("loss", ()), ("heat", ("slash", *"grad", "enter", "z"))]
)
def test_the_page(
    explored: RunDir, monkeypatch: pytest.MonkeyPatch, name: str, keys: Sequence[str]
) -> None:
    # A header with this memory.
    monkeypatch.setattr(MonitorApp, "_read_sensors_if_due", lambda app: None)
    check_screens(f"metrics-{name}", explored, "3", *keys)


def test_a_run_without_numbers_says_how_to_log_them(tmp_path: Any) -> None:
    run = make(tmp_path, upto=1)
    text = after(run, "left", "x", "plus", "s", "l", "L", "O", "f", "z", "R", "down", "enter", "y")
    assert "no scalars yet: run.log(name, value)" in text


def test_the_cursor_reads_values_off_the_chart(explored: RunDir) -> None:
    assert reading(after(explored, "z")) == "it 784  ⠤⠤ train 0.2265 @ 780  ◇ val 0.4475 @ 784"
    assert "this is the newest value" in after(explored, "right")
    assert reading(after(explored, "z", "left")).startswith("it 777  ⠤⠤ train 0.3296 @ 770")
    far = reading(after(explored, "z", "shift+left"))
    assert far.startswith("it 714") and "◇ val 0.4" in far and "@ 686" in far
    assert reading(after(explored, "z", *["shift+left"] * 20)).startswith("it 10  ⠤⠤ train 2.2")
    assert reading(after(explored, "z", "left", "right")).startswith("it 784")


def test_the_axis_zooms_and_counts_epochs_and_seconds(explored: RunDir) -> None:
    assert re.search(r"it 0 .* it 784", after(explored, "z"))
    zoomed = after(explored, "z", "plus")
    assert re.search(r"it 392 .* it 784", zoomed) and "×2" in zoomed
    assert re.search(r"epoch 4.00 .* epoch 8.00", after(explored, "z", "plus", "x"))
    assert re.search(r"it 784 = 0:00:\d\d", after(explored, "z", "x", "x"))
    assert "the chart shows the whole run" in after(explored, "z", "minus")
    assert "as near as it gets" in after(explored, "z", *["equals_sign"] * 9)


def test_the_title_says_how_the_chart_is_drawn(explored: RunDir) -> None:
    async def do(app: MonitorApp, pilot: Pilot[Any]) -> None:
        await press(app, pilot, "3", "s", "l", "L", "O")
        assert "loss  0.2265  ◇ 0.4475  log  log x  1st to 99th percentile  ema 0.6" in screen_text(
            app
        )
        assert re.search(r"it 1 .* it 784", screen_text(app))
        await press(app, pilot, "right_square_bracket", "right_square_bracket")
        assert "accuracy  ◇ 0.9365  ema 0.6 ─" in screen_text(app), (
            "the scales are those of the loss"
        )
        await press(app, pilot, "left_square_bracket", "s", "s", "s", "l")
        assert "loss  0.2265  ◇ 0.4475  log x  1st to 99th percentile ─" in screen_text(app)

    visit(explored, do, size=(160, 40))


def test_a_metric_below_zero_stays_linear_and_says_so(explored: RunDir) -> None:
    assert "linear: not all above 0" in after(explored, "slash", *"stem/mean", "enter", "l")


def test_values_that_are_not_finite_are_named_with_their_iterations(explored: RunDir) -> None:
    assert "✗ train: NaN at it 300–320" in after(explored, "slash", *"temp", "enter")


def test_enter_makes_the_chart_large_and_small_again(explored: RunDir) -> None:
    small, large = after(explored, size=(60, 15)), after(explored, "enter", size=(60, 15))
    assert "metrics: 16" in small and "╭─ loss" not in small
    assert "metrics: 16" not in large and "╭─ loss" in large
    assert after(explored, "enter", "enter", size=(60, 15)) == small
    assert after(explored, "z", "escape", size=(60, 15)) == small


def test_groups_fold(explored: RunDir) -> None:
    async def do(app: MonitorApp, pilot: Pilot[Any]) -> None:
        await press(app, pilot, "3")
        page = app.screen
        assert isinstance(page, MetricsScreen)
        assert "▸ grad_norm/ (8)" in screen_text(app), "a large group is closed at first"
        assert "▾ activation/ (4)" in screen_text(app)
        page.metric_tree.go_to("grad_norm/")
        await press(app, pilot, "enter", "down")
        assert page.metric_tree.picked.key == "grad_norm/layers.0"
        await press(app, pilot, "f")
        assert page.metric_tree.picked.key == "grad_norm/"
        assert "▸ grad_norm/ (8)" in screen_text(app)
        await press(app, pilot, "home")
        assert page.metric_tree.picked.key == "loss"

    visit(explored, do)


def test_the_filter_opens_groups_and_esc_clears_it(explored: RunDir) -> None:
    assert "metrics: 8 of 16" in after(explored, "slash", *"layers.", "enter")
    assert "layers.7" in after(explored, "slash", *"layers.", "enter", size=WIDE)
    assert "no metric matches" in after(explored, "slash", *"layers.[2-4]", "enter"), (
        "a glob is of the whole name"
    )
    assert "metrics: 3 of 16" in after(explored, "slash", *"*layers.[2-4]", "enter")
    assert "metrics: 16" in after(explored, "slash", *"layers.", "enter", "escape")


def test_the_cursor_stays_on_its_metric_when_others_come(explored: RunDir) -> None:
    async def do(app: MonitorApp, pilot: Pilot[Any]) -> None:
        await press(app, pilot, "3", "down", "down", "down")
        page = app.screen
        assert isinstance(page, MetricsScreen)
        assert page.metric_tree.picked.key == "lr"
        append(explored, [{"k": "scalars", "t": BEGAN + 90, "it": 784, "ep": 8, "v": {"aaa": 1.0}}])
        app.store.poll()
        await press(app, pilot)
        await pilot.pause()
        app.show_changes()
        await pilot.pause()
        assert page.metric_tree.picked.key == "lr"
        assert "aaa" in screen_text(app)

    visit(explored, do)


def test_each_kind_of_metric_has_its_own_scale(explored: RunDir) -> None:
    lines = metrics_screen.gather_metrics(read(explored).state)
    group = {name: each for name, each in lines.items() if name.startswith("activation/")}
    rows = make_heat_rows("activation/", group)
    assert [(row.kind, row.label) for row in rows] == [
        ("activation/*/mean", "stem"),
        ("activation/*/mean", "head"),
        ("activation/*/std", "stem"),
        ("activation/*/std", "head"),
    ]
    assert scale_of(rows[:2]).high < 0 < scale_of(rows[2:]).low
    assert (
        find_metric_kind("grad_norm/layers.0") == find_metric_kind("grad_norm/head") == "grad_norm"
    )


def test_a_layer_that_stands_out_is_marked(explored: RunDir) -> None:
    marked = [
        line
        for line in after(explored, "slash", *"grad", "enter", "z").splitlines()
        if "▲×" in line
    ]
    assert len(marked) == 1 and "layers.5" in marked[0]


def test_a_rerun_is_asked_for_and_may_be_copied(
    explored: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []

    def start(run: RunDir, it: int) -> None:
        started.append(it)
        raise OSError(12, "no memory")

    monkeypatch.setattr(metrics_screen, "RerunProcess", start)

    async def do(app: MonitorApp, pilot: Pilot[Any]) -> None:
        await press(app, pilot, "3", "left", "R")
        assert isinstance(app.screen, ChoiceDialog) and "do iteration 777 again?" in screen_text(
            app
        )
        await press(app, pilot, "enter")
        assert started == [], "the first answer changes nothing"
        await press(app, pilot, "R", "c")
        assert "clipboard" in notices(app) and started == []
        await press(app, pilot, "R", "y")
        assert started == [777]
        assert "cannot start a rerun" in notices(app)

    visit(explored, do)


@pytest.mark.parametrize("size", [(1, 1), (20, 6), (60, 15), (76, 20), (200, 60)])
def test_it_is_drawn_at_any_size(explored: RunDir, size: Size) -> None:
    after(explored, "end", "z", size=size)
    after(explored, "z", "l", "L", "O", "plus", size=size)


def test_a_chart_with_values_that_are_not_finite_says_what_their_sign_is(explored: RunDir) -> None:
    assert "✗ not finite" in after(explored, "slash", *"temperature", "enter")
    assert "✗ not finite" not in after(explored, "slash", *"lr", "enter")


def test_the_footer_offers_a_log_scale_where_there_can_be_one(explored: RunDir) -> None:
    def footer(*keys: str) -> str:
        page, _, _said = after(explored, *keys, size=WIDE).rpartition("keys : commands")
        return page.splitlines()[-1]

    assert " l log" in footer("home"), "the loss is above 0"
    assert " l log" not in footer("slash", *"stem/mean", "enter"), "it is below 0"
    assert " l log" not in footer("slash", *"grad_norm", "enter", "home"), "a group has none"
