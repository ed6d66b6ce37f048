"""dashboard.toml: keys and colours of the user's own, every mistake with its line;
and what every theme must be.
"""

import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.style import Style
from textual.pilot import Pilot

from hookflow.errors import UserError
from hookflow.events.rundir import RunDir
from hookflow.monitor.app import MonitorApp, list_pages_of_actions
from hookflow.monitor.screens.help import HelpScreen
from hookflow.monitor.screens.metrics import MetricsScreen
from hookflow.monitor.screens.overview import OverviewScreen
from hookflow.monitor.screens.system import SystemScreen
from hookflow.monitor.settings import Preferences, Settings, load, path_of
from hookflow.monitor.style import STYLES, THEME_PALETTES, ThemeName, use
from hookflow.monitor.widgets.log_tail import LogTail
from tests.conftest import hookflow_here
from tests.monitor.shown import Visit, press, screen_text, visit
from tests.support.golden_files import check_cases


def pressing(*keys: str) -> Visit:
    """Return what presses these keys."""

    async def do(app: MonitorApp, pilot: Pilot[Any]) -> None:
        await press(app, pilot, *keys)

    return do


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's file, in a folder that there is."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    path = tmp_path / "config" / "hookflow" / "dashboard.toml"
    path.parent.mkdir(parents=True)
    return path


def test_the_file_is_where_the_standard_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    assert (
        path_of({})
        == path_of({"XDG_CONFIG_HOME": "relative"})
        == Path("/home/ada/.config/hookflow/dashboard.toml")
    )
    assert path_of({"XDG_CONFIG_HOME": "/etc/ada"}) == Path("/etc/ada/hookflow/dashboard.toml")


def load_settings() -> Preferences:
    """Return the settings in the user's file, with the actions that there are."""
    return load(list_pages_of_actions())


def test_a_file_may_be_missing_or_empty_or_give_a_key_to_actions_of_two_pages(file: Path) -> None:
    assert load_settings().settings.make_keymap() == {}
    file.write_text("")
    assert load_settings().path == file
    file.write_text('[keys]\nsmooth = "w"\nlevel = "w"\nfreeze = "w"\n')
    assert load_settings().settings.make_keymap() == {"smooth": "w", "level": "w", "freeze": "w"}
    file.write_text(
        'keys.level = ["a", "A", "ü", "[", "+", "f12", "ctrl+b", "alt+x", "ctrl+shift+left",'
        ' "space"]'
    )
    assert load_settings().settings.make_keymap()["level"].count(",") == 9


def test_keys_of_the_user_come_before_those_of_the_table(going: RunDir, file: Path) -> None:
    file.write_text(
        '[keys]\nfreeze = "M"\nsystem = ["f2", "ctrl+b"]\nhelp = "h"\nleave = []\nsmooth ='
        ' "w"\nenlarge = "+"\n'
    )

    async def do(app: MonitorApp, pilot: Pilot[Any]) -> None:
        await press(app, pilot, "M")
        assert app.store.is_frozen and app.preferences.settings.mouse, (
            "not the mouse, whose key it was"
        )
        await press(app, pilot, "space")
        assert app.store.is_frozen, "that key has no action any more"
        for key in ("f2", "ctrl+b"):
            await press(app, pilot, key)
            assert isinstance(app.screen, SystemScreen)
            await press(app, pilot, key)
            assert not isinstance(app.screen, SystemScreen)
        await press(app, pilot, "i", "q", "question_mark")
        assert app.page is not None and app.page.page_name == "overview"
        assert re.search(r"\bh keys", screen_text(app).splitlines()[-1])
        await press(app, pilot, "h")
        assert isinstance(app.screen, HelpScreen)
        await press(app, pilot, "h")
        assert isinstance(app.page, OverviewScreen), app.screen_stack
        await press(app, pilot, "3", "w")
        assert isinstance(app.page, MetricsScreen), (
            "the page's own key comes before that of the stacks"
        )

    visit(going, do, preferences=load_settings())


MISTAKES = (
    *(
        'keys = { pauze = "p" }',
        '[keys]\nsystem = "f99"',
        'keys.system = "ctrl+"',
        '[keys]\nsystem = "question mark"',
    ),
    *("[keys]\nsystem = 3", '[keys]\npause = "w"\nfreeze = "w"', '[keyz]\nsystem = "z"', "[keys"),
    *('theme = "lihgt"', 'hidden = ["curve"]'),
    # of the dashboard before this one
    *(
        'hidden = ["events"]',
        "lower = 4",
        '[keys]\nzoom = "f2"\npanel-metrics = "m"\npage-output = "o"',
    ),
)


def test_a_mistake_is_shown_in_its_line(file: Path) -> None:
    told = {}
    for text in MISTAKES:
        file.write_text(text)
        with pytest.raises(UserError) as raised:
            load_settings()
        told[text] = [str(raised.value).replace(str(file), file.name)]
    check_cases("monitor/settings-mistakes.txt", told)


def test_a_mistake_ends_the_command_before_anything_begins(
    file: Path, tmp_path: Path, whole: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text('[keys]\nsystem = "f99"\n')
    monkeypatch.setattr("hookflow.cli.control.has_terminal", lambda: True)
    done = hookflow_here(
        "watch", whole.id, "--dir", str(whole.path.parent.parent), cwd=tmp_path, code=2
    )
    assert done.stderr.startswith('config/hookflow/dashboard.toml:2:1: there is no key "f99"')
    monkeypatch.setattr("hookflow.cli.run.has_terminal", lambda: True)
    monkeypatch.delenv("CI", raising=False)
    done = hookflow_here("run", "hello", "--dir", "new", cwd=tmp_path)
    assert done.returncode == 2 and not (tmp_path / "new").exists()


def test_what_keys_choose_is_remembered_beside_what_the_user_wrote(
    file: Path, going: RunDir
) -> None:
    written = '# mine\ntheme = "light"  # by day\n\n[keys]\nsystem = "S"\n'
    file.write_text(written)
    app = visit(going, pressing("T"), preferences=load_settings())
    assert app.preferences.settings.theme == "colour-blind"
    assert file.read_text() == written.replace("light", "colour-blind")
    assert load_settings().settings.theme == "colour-blind"
    file.write_text("[keys")
    app = visit(going, pressing("T"), preferences=Preferences(path=file))
    assert [notice.message for notice in app._notifications][-1].startswith("not remembered: ")
    assert file.read_text() == "[keys"
    file.unlink()
    visit(going, pressing("T", "T"), preferences=load_settings())
    assert file.read_text() == 'theme = "colour-blind"\n'


def test_what_the_overview_hides_is_as_it_was_left(file: Path, going: RunDir) -> None:
    hidden: list[tuple[bool, bool]] = []

    def after(*keys: str) -> Visit:
        async def do(app: MonitorApp, pilot: Pilot[Any]) -> None:
            await press(app, pilot, *keys)
            curves, log = app.screen.query_one("#curves"), app.screen.query_one(LogTail)
            hidden.append((not curves.display, not log.display))

        return do

    visit(going, after("H"), preferences=load_settings())
    assert file.read_text() == 'hidden = ["curves"]\n'
    visit(going, after(), preferences=load_settings())
    visit(going, after("H"), preferences=load_settings())
    assert file.read_text() == 'hidden = ["curves", "log"]\n'
    visit(going, after("H"), preferences=load_settings())
    assert file.read_text() == "hidden = []\n"
    assert hidden == [(True, False), (True, False), (True, True), (False, False)]


READ = (
    "",
    "strong",
    "title",
    "picked",
    "good",
    "warn",
    "error",
    "alarm",
    "badge",
    "command",
    "checkpoint",
    "val",
)
APART = (
    ("good", "warn", "error"),
    ("train", "val", "checkpoint"),
    ("heat1", "heat2", "heat3", "heat4"),
)
APART += (
    ("data", "forward"),
    ("forward", "backward"),
    ("backward", "optimizer"),
    ("optimizer", "hooks"),
)
"""Meanings that stand beside one another, and that colours are to tell apart."""

# Machado, Oliveira and Fernandes (2009), severity 1: what those without a kind of cones see, in
# linear RGB.
BLINDNESS = {
    "protan": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deutan": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritan": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
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


@pytest.mark.parametrize("name", THEME_PALETTES)
def test_text_can_be_read(name: ThemeName) -> None:
    assert THEME_PALETTES[name].inks.keys() == THEME_PALETTES["dark"].inks.keys()
    use(name)
    weak = {
        meaning: round(contrast(STYLES[meaning]), 2)
        for meaning in READ
        if contrast(STYLES[meaning]) < 4.5
    }
    assert not weak
    assert contrast(STYLES["dim"]) >= 3 and STYLES["cursor"].bgcolor != STYLES[""].bgcolor


@pytest.mark.parametrize("blindness", BLINDNESS)
@pytest.mark.parametrize("name", THEME_PALETTES)
def test_colours_can_be_told_apart(name: ThemeName, blindness: str) -> None:
    use(name)
    seen = {}
    for meaning, style in STYLES.items():
        if meaning != "cursor":  # what has a ground of its own is known by that
            ground = style.bgcolor != STYLES[""].bgcolor
            seen[meaning] = lab(np.array(BLINDNESS[blindness]) @ linear(style, ground))
    near = {}
    for first, second in (pair for meanings in APART for pair in combinations(meanings, 2)):
        if (distance := float(np.linalg.norm(seen[first] - seen[second]))) < (
            20 if name == "colour-blind" else 12
        ):
            near[first, second] = round(distance, 1)
    assert not near


def grounds_of(app: MonitorApp) -> set[str]:
    """Return the grounds that are on the screen."""
    rows = app.screen._compositor.render_strips(app.size)
    styles = [segment.style for row in rows for segment in row if segment.style is not None]
    return {style.bgcolor.name for style in styles if style.bgcolor is not None}


def test_a_key_goes_to_the_next_theme(going: RunDir) -> None:
    of_themes = {theme.ground for theme in THEME_PALETTES.values()}
    grounds = []

    async def do(app: MonitorApp, pilot: Pilot[Any]) -> None:
        for _ in range(3):
            await press(app, pilot, "T")
            grounds.append((app.preferences.settings.theme, grounds_of(app) & of_themes))

    visit(going, do)
    assert grounds == [
        (name, {THEME_PALETTES[name].ground}) for name in ("light", "colour-blind", "dark")
    ]


@pytest.mark.parametrize("page", ["1", "2", "3", "5", "7", "i"])
def test_a_page_has_the_grounds_of_its_theme_alone(going: RunDir, page: str) -> None:
    palette = THEME_PALETTES["light"]
    inks = {style.split(" on ")[1] for style in palette.inks.values() if " on " in style}

    async def do(app: MonitorApp, pilot: Pilot[Any]) -> None:
        await press(app, pilot, page)
        assert palette.ground in grounds_of(app)
        assert grounds_of(app) <= {palette.ground, palette.cursor, *inks, "default"}

    visit(going, do, preferences=Preferences(Settings(theme="light")))
