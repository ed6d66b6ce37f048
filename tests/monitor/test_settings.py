"""dashboard.toml: keys and colours of the user's own, every mistake with its line; and what every theme must be."""

from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from rich.style import Style
from textual.color import Color
from textual.filter import Monochrome
from textual.pilot import Pilot
from textual.strip import Strip

from hookflow.errors import UserError
from hookflow.events.rundir import RunDir
from hookflow.monitor.app import MonitorApp
from hookflow.monitor.keys import press
from hookflow.monitor.layout import screen, visible
from hookflow.monitor.settings import Preferences, load, path_of
from hookflow.monitor.style import STYLES, THEMES, ThemeName, use
from hookflow.monitor.view import Notice
from tests.conftest import hookflow_here
from tests.golden_files import check_cases, check_golden
from tests.monitor.conftest import At
from tests.monitor.test_keys import shown, visit, walk
from tests.monitor.test_screens import drawn


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's file, in a folder that there is."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    path = tmp_path / "config" / "hookflow" / "dashboard.toml"
    path.parent.mkdir(parents=True)
    return path


def test_the_file_is_where_the_standard_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    assert path_of({}) == path_of({"XDG_CONFIG_HOME": "relative"}) == Path("/home/ada/.config/hookflow/dashboard.toml")
    assert path_of({"XDG_CONFIG_HOME": "/etc/ada"}) == Path("/etc/ada/hookflow/dashboard.toml")


def test_a_file_may_be_missing_or_empty_or_give_a_key_to_actions_of_two_pages(file: Path) -> None:
    assert load().settings.keymap == ()
    file.write_text("")
    assert load().path == file
    file.write_text('[keys]\nsmooth = "w"\nlevel = "w"\nfreeze = "w"\nplay = "w"\n')
    assert len(load().settings.keymap) == 4
    file.write_text('keys.level = ["a", "A", "ü", "[", "+", "f12", "ctrl+b", "alt+x", "ctrl+shift+left", "space"]')
    assert len(load().settings.keymap[0][1]) == 10


def test_keys_of_the_user_come_before_those_of_the_table(scene: At, file: Path) -> None:
    file.write_text('[keys]\nfreeze = "p"\nzoom = ["f2", "ctrl+b"]\nhelp = "h"\nleave = []\nsmooth = "k"\n')
    at = scene()
    at.keymap = load().settings.keymap
    assert press("p", at) == "freeze", "not pause"
    assert press("space", at) == Notice("space does nothing here; h lists the keys")
    assert press("f2", at) == press("ctrl+b", at) == "" and not at.view.zoomed
    assert press("z", at) == Notice("z does nothing here; h lists the keys")
    assert press("q", at) == Notice("q does nothing here; h lists the keys")
    assert "h help  s stop" in drawn(at, 120, 40).splitlines()[-1]
    assert press("h", at) == "" and "f2 ctrl+b" in drawn(at, 120, 100)
    assert "pause the training" not in drawn(at, 120, 100), "it has no key any more, but a name in the palette"
    at.view.open("metrics")
    assert press("k", at) == "" and at.view.metrics.smooth, "the page's own keys come first"


MISTAKES = (
    *('keys = { pauze = "p" }', '[keys]\nzoom = "f99"', 'keys.zoom = "ctrl+"', '[keys]\nzoom = "question mark"'),
    *("[keys]\nzoom = 3", '[keys]\npause = "w"\nfreeze = "w"', '[keyz]\nzoom = "z"', "[keys", 'theme = "lihgt"'),
    'hidden = ["event"]',
)


def test_a_mistake_is_shown_in_its_line(file: Path) -> None:
    told = {}
    for text in MISTAKES:
        file.write_text(text)
        with pytest.raises(UserError) as raised:
            load()
        told[text] = [str(raised.value).replace(str(file), file.name)]
    check_cases("monitor/settings-mistakes.txt", told)


def test_a_mistake_ends_the_command_before_anything_begins(
    file: Path, tmp_path: Path, whole: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text('[keys]\nzoom = "f99"\n')
    monkeypatch.setattr("hookflow.cli.control.has_terminal", lambda: True)
    done = hookflow_here("watch", whole.id, "--dir", str(whole.path.parent.parent), cwd=tmp_path, code=2)
    assert done.stderr.startswith('config/hookflow/dashboard.toml:2:1: there is no key "f99"')
    monkeypatch.setattr("hookflow.cli.run.has_terminal", lambda: True)
    monkeypatch.delenv("CI", raising=False)
    done = hookflow_here("run", "hello", "--dir", "new", cwd=tmp_path)
    assert done.returncode == 2 and not (tmp_path / "new").exists()


def test_what_keys_choose_is_remembered_beside_what_the_user_wrote(file: Path, going: RunDir) -> None:
    written = '# mine\ntheme = "light"  # by day\n\n[keys]\nzoom = "w"\n'
    file.write_text(written)
    walk(going, ("T", "theme: colour-blind"), preferences=load())
    assert file.read_text() == written.replace("light", "colour-blind")
    assert load().settings.theme == "colour-blind"
    file.write_text("[keys")
    walk(going, ("T", "not remembered: "), preferences=Preferences(path=file))
    assert file.read_text() == "[keys"
    file.unlink()
    walk(going, ("T T", "theme: colour-blind"), preferences=load())
    assert file.read_text() == 'theme = "colour-blind"\n'
    use("dark")


def test_panels_are_as_they_were_left_and_the_dashboard_obeys(file: Path, going: RunDir) -> None:
    walk(going, ("3 H", "[1] metrics"), ("plus", "[1] metrics"), preferences=load())
    assert file.read_text() == 'hidden = ["events"]\nlower = 1\n'
    app = walk(going, ("", "[1] metrics"), preferences=load())
    assert "[3] events" not in shown(app)
    file.write_text('[keys]\nzoom = "w"\n')
    walk(going, ("w", "[g] graph", "[2] system"), ("z", "z does nothing here"), preferences=load())


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
        return app.preferences.settings.theme

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
