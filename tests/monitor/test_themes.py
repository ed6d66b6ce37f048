"""The themes: every meaning has a style, text can be read, and who lacks a kind of cones can tell colours apart."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any, cast

import numpy as np
import pytest
from rich.style import Style
from textual.color import Color
from textual.filter import Monochrome
from textual.pilot import Pilot
from textual.strip import Strip

from hookflow.events.rundir import RunDir
from hookflow.monitor.app import MonitorApp
from hookflow.monitor.layout import screen, visible
from hookflow.monitor.style import STYLES, THEMES, ThemeName, use
from tests.golden_files import check_golden
from tests.monitor.conftest import At
from tests.monitor.test_keys import visit

READ = ("", "strong", "title", "picked", "good", "warn", "error", "alarm", "badge", "command", "checkpoint", "val")
APART = (("good", "warn", "error"), ("train", "val", "checkpoint"), ("heat1", "heat2", "heat3", "heat4"))
APART += (("data", "forward"), ("forward", "backward"), ("backward", "optimizer"), ("optimizer", "hooks"))
"""Meanings that stand beside one another, and that colours are to tell apart."""

# Machado, Oliveira and Fernandes (2009), severity 1: what those without a kind of cones see, in linear RGB.
BLINDNESS = {
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
WHITE = np.array([0.9505, 1.0, 1.089])


@pytest.fixture(autouse=True)
def _dark_afterwards() -> Iterator[None]:
    yield
    use("dark")


def linear(style: Style, ground: bool = False) -> Any:
    colour = style.bgcolor if ground else style.color
    assert colour is not None
    rgb = np.array(colour.get_truecolor()) / 255
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def lab(rgb: Any) -> Any:
    xyz = TO_XYZ @ np.clip(rgb, 0, 1) / WHITE
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def contrast(style: Style) -> float:
    ink, ground = (float(TO_XYZ[1] @ linear(style, of)) for of in (False, True))
    return (max(ink, ground) + 0.05) / (min(ink, ground) + 0.05)


@pytest.mark.parametrize("name", THEMES)
def test_text_can_be_read(name: ThemeName) -> None:
    assert THEMES[name].inks.keys() == THEMES["dark"].inks.keys()
    use(name)
    weak = {meaning: round(contrast(STYLES[meaning]), 2) for meaning in READ if contrast(STYLES[meaning]) < 4.5}
    assert not weak
    assert contrast(STYLES["dim"]) >= 3 and STYLES["cursor"].bgcolor != STYLES[""].bgcolor


@pytest.mark.parametrize("blindness", BLINDNESS)
@pytest.mark.parametrize("name", THEMES)
def test_colours_can_be_told_apart(name: ThemeName, blindness: str) -> None:
    use(name)
    seen = {}
    for meaning, style in STYLES.items():
        if meaning != "cursor":  # what has a ground of its own is known by that
            ground = style.bgcolor != STYLES[""].bgcolor
            seen[meaning] = lab(np.array(BLINDNESS[blindness]) @ linear(style, ground))
    near = {}
    for first, second in (pair for meanings in APART for pair in combinations(meanings, 2)):
        if (distance := float(np.linalg.norm(seen[first] - seen[second]))) < (20 if name == "colour-blind" else 12):
            near[first, second] = round(distance, 1)
    assert not near


def test_a_key_goes_to_the_next_theme(going: RunDir) -> None:
    grounds = []

    async def what(app: MonitorApp, pilot: Pilot[Any]) -> None:
        for _ in range(3):
            await pilot.press("T")
            row = app._canvas._rows[0]
            assert next(iter(row)).style and app.screen.styles.background.hex.lower() == THEMES[theme(app)].ground
            grounds.append({segment.style.bgcolor.name for segment in row if segment.style and segment.style.bgcolor})

    def theme(app: MonitorApp) -> ThemeName:
        return app._preferences.settings.theme

    app = visit(going, what)
    assert theme(app) == "dark"
    assert [ground & {theme.ground for theme in THEMES.values()} for ground in grounds] == [
        {THEMES[name].ground} for name in ("light", "colour-blind", "dark")
    ]


@pytest.mark.parametrize(
    ("look", "size"),
    [("light", (80, 24)), ("colour-blind", (80, 24))]
    + [(look, size) for look in ("dark", "no-color") for size in ((60, 15), (80, 24), (120, 40), (200, 60))],
)
def test_the_styles_of_a_screen(scene: At, look: str, size: tuple[int, int]) -> None:
    at = scene()
    at.visible = visible(*size)
    use("dark" if look == "no-color" else cast("ThemeName", look))
    rows = screen(at, *size)
    if look == "no-color":
        rows = [Strip(Monochrome().apply(list(row), Color.parse("black"))) for row in rows]
    text = "\n".join("".join(f"[{each.style}]{each.text}" for each in row) for row in rows)
    check_golden(f"monitor/{look}-{size[0]}x{size[1]}.txt", f"{text}\n")
