"""dashboard.toml: keys of the user's own, and every mistake with its line and the nearest right name."""

from __future__ import annotations

from pathlib import Path

import pytest

from hookflow.errors import UserError
from hookflow.events.rundir import RunDir
from hookflow.monitor.keys import press
from hookflow.monitor.settings import Preferences, is_key, load, path_of
from hookflow.monitor.style import use
from hookflow.monitor.view import Notice
from tests.conftest import hookflow_here
from tests.monitor.conftest import At
from tests.monitor.test_keys import shown, walk
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


def test_without_a_file_there_are_the_defaults(file: Path) -> None:
    assert load().settings.keymap == ()
    file.write_text("")
    assert load().path == file


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


MISTAKES = {
    'keys = { pauze = "p" }': (':1:10: there is no action "pauze"', 'did you mean "pause"?'),
    '[keys]\nzoom = "f99"': (':2:1: there is no key "f99"', 'did you mean "f9"?'),
    '[keys]\nzoom = "question mark"': (':2:1: there is no key "question mark"', "a key is a character"),
    "[keys]\nzoom = 3": (":2:1: keys.zoom must be a key or a list of keys, both as strings", 'for example "p"'),
    '[keys]\npause = "w"\nfreeze = "w"': (':3:1: the key "w" is given to pause already', "in line 2"),
    '[keyz]\nzoom = "z"': (':1:2: the file has no key "keyz"', 'did you mean "keys"?'),
    "[keys": (":1:6: this is not TOML", ""),
}


@pytest.mark.parametrize("text", MISTAKES)
def test_a_mistake_is_shown_in_its_line(file: Path, text: str) -> None:
    file.write_text(text)
    with pytest.raises(UserError) as raised:
        load()
    message, hint = MISTAKES[text]
    assert f"dashboard.toml{message}" in str(raised.value) and hint in str(raised.value)
    assert len(raised.value.problems) == 1


def test_a_key_may_belong_to_actions_of_two_pages(file: Path) -> None:
    file.write_text('[keys]\nsmooth = "w"\nlevel = "w"\nfreeze = "w"\nplay = "w"\n')
    assert len(load().settings.keymap) == 4


def test_what_is_a_key() -> None:
    assert all(map(is_key, ("a", "A", "ü", "[", "f12", "ctrl+b", "alt+x", "shift+left", "ctrl+shift+left", "space")))
    assert not any(map(is_key, ("", " ", "ab", "ctrl+", "hyper+a", "shift+a", "ctrl+ctrl+a", "ctrl+A", "\x1b", "+a")))


def test_a_mistake_ends_the_command_before_anything_begins(
    file: Path, tmp_path: Path, whole: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text('[keys]\nzoom = "f99"\n')
    monkeypatch.setattr("hookflow.cli.control.has_terminal", lambda: True)
    done = hookflow_here("watch", whole.id, "--dir", str(whole.path.parent.parent), cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith('config/hookflow/dashboard.toml:2:1: there is no key "f99"')
    monkeypatch.setattr("hookflow.cli.run.has_terminal", lambda: True)
    monkeypatch.delenv("CI", raising=False)
    done = hookflow_here("run", "hello", "--dir", "new", cwd=tmp_path)
    assert done.returncode == 2 and not (tmp_path / "new").exists()


def test_the_dashboard_obeys(file: Path, going: RunDir) -> None:
    file.write_text('[keys]\nzoom = "w"\n')
    walk(going, ("w", "[g] graph", "[4] system"), ("z", "z does nothing here"), preferences=load())


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


def test_panels_are_as_they_were_left(file: Path, going: RunDir) -> None:
    walk(going, ("5 H", "[3] metrics"), ("plus", "[3] metrics"), preferences=load())
    assert file.read_text() == 'hidden = ["events"]\nlower = 1\n'
    app = walk(going, ("", "[3] metrics"), preferences=load())
    assert "[5] events" not in shown(app)
    file.write_text('hidden = ["event"]')
    with pytest.raises(UserError, match=r'dashboard.toml:1:11: hidden.0 must be(.|\n)*did you mean "events"'):
        load()


def test_the_theme_is_one_that_there_is(file: Path) -> None:
    file.write_text('theme = "lihgt"')
    with pytest.raises(UserError, match=r'dashboard.toml:1:1: theme must be one of(.|\n)*did you mean "light"'):
        load()
