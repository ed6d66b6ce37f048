"""The page of the output: what is searched, filtered and followed."""

from __future__ import annotations

from typing import Any

import pytest
from textual.pilot import Pilot

from hookflow.events.rundir import RunDir
from hookflow.monitor.app import MonitorApp
from hookflow.monitor.keys import press
from hookflow.monitor.panels.output import level_of
from hookflow.monitor.view import Line, Notice, Scene
from tests.golden_files import check_golden
from tests.monitor.conftest import At
from tests.monitor.fake_run import TRACEBACK
from tests.monitor.test_keys import pressed, shown, until_shown, visit, walk
from tests.monitor.test_screens import SIZES, drawn

PRINTED = [
    *(f"step {number}: loss {2 / (number + 1):.4f}" for number in range(60)),
    "net.py:12: UserWarning: a mask of all zeros",
    "WARNING:data:the cache is cold",
    *TRACEBACK.splitlines(),
    "epoch 3  87%|████████▋ | 85/98",
]


def printed(scene: At) -> Scene:
    at = scene(synthetic=False)
    at.output = [Line(number, level_of(text), "", text) for number, text in enumerate(PRINTED)]
    at.view.page = "output"
    return at


def test_a_printed_line_has_the_level_of_its_words() -> None:
    levels = {
        "loss 0.3, error_rate 0.1": 0,
        "no warnings": 0,
        "a.py:3: UserWarning: slow": 1,
        "[W] Warning: x": 1,
        "ERROR:root:gone": 2,
        "Traceback (most recent call last):": 2,
        "ValueError: bad": 2,
    }
    assert {text: level_of(text) for text in levels} == levels


@pytest.mark.parametrize("size", [*SIZES, (200, 60)])
def test_the_page(scene: At, size: tuple[int, int]) -> None:
    at = printed(scene)
    at.view.output.search = "error"
    press("n", at)
    check_golden(f"monitor/output-{size[0]}x{size[1]}.txt", drawn(at, *size))
    for width in (1, 2, 7, 20, 300):
        for height in (1, 2, 4, 90):
            drawn(at, width, height)


def test_it_follows_the_newest_unless_it_is_scrolled(scene: At) -> None:
    at = printed(scene)
    assert "85/98" in drawn(at, 80, 24)
    assert "85/98" not in pressed(at, "up", size=(80, 24))
    before = drawn(at, 80, 24)
    at.output = [*at.output, Line(len(PRINTED), 0, "", "new")]
    assert drawn(at, 80, 24).splitlines()[3:-2] == before.splitlines()[3:-2], "what is read stays where it is"
    assert "↓ 2 more" in drawn(at, 80, 24)
    assert "new" in pressed(at, "end", size=(80, 24))
    assert at.view.output.at is None
    assert "step 0:" in pressed(at, "home", size=(80, 24))


def test_a_text_is_searched_and_capitals_matter_only_if_there_are_some(scene: At) -> None:
    at = printed(scene)
    assert press("n", at) == Notice("/ searches for a text")
    press("slash", at)
    for key in "step 7":
        press(key, at, key)
    assert "/ step 7: 1" in drawn(at, 80, 24), "while it is typed"
    assert press("enter", at) == ""
    assert "/ step 7: 1 of 1" in drawn(at, 80, 24)
    at.view.output.search = "warning"
    assert "1 of 2" in pressed(at, "N", size=(80, 24))
    assert "2 of 2" in pressed(at, "N", size=(80, 24))
    assert "1 of 2" in pressed(at, "N", size=(80, 24)), "round and round"
    assert "2 of 2" in pressed(at, "n", size=(80, 24))
    at.view.output.search = "Warning"
    assert ": 1 of 1" in pressed(at, "n", size=(80, 24))
    at.view.output.search = "none"
    assert press("n", at) == Notice('no line with "none"')
    press("slash", at)
    press("escape", at)
    assert at.view.output.search == "none"


def test_levels_and_sources_are_chosen(scene: At) -> None:
    at = printed(scene)
    shown = pressed(at, "l")
    assert "warnings and errors" in shown and "UserWarning" in shown and "step" not in shown
    shown = pressed(at, "l")
    assert "Traceback" in shown and "UserWarning" not in shown
    pressed(at, "l")
    assert "▲ ema" in pressed(at, "s") and "output  messages" in drawn(at, 120, 40)
    assert "✗ visual" in pressed(at, "l", "l") and "▲ ema" not in drawn(at, 120, 40)
    at.view.output.source = "ema"
    assert "nothing yet" in drawn(at, 120, 40)
    pressed(at, "l")
    names = set()
    for _ in range(20):
        pressed(at, "s")
        names.add(at.view.output.source)
    assert {"", "messages", "ema", "run"} <= names
    at.output = []
    at.view.output.source = ""
    assert "nothing yet" in drawn(at, 80, 24)


def test_the_app_reads_on(going: RunDir) -> None:
    going.output.write_text("one\nhalf a li")

    async def what(app: MonitorApp, pilot: Pilot[Any]) -> None:
        await pilot.press("o")
        assert "one" in shown(app) and "half a li" in shown(app)
        with going.output.open("a") as file:
            file.write("ne\nthree\n")
        await until_shown(app, pilot, "three")
        assert "half a line" in shown(app)
        assert [line.number for line in app._lines] == [0, 1, 2]

    visit(going, what)
    walk(going, ("o slash t h r", "/ thr: 1"), ("enter", "1 of 1"))
