"""The line in which text is typed, and the palette of actions and commands."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from rich.cells import cell_len
from textual import events
from textual.pilot import Pilot

from hookflow.events.commands import COMMANDS
from hookflow.events.rundir import RunDir
from hookflow.monitor.app import MonitorApp
from hookflow.monitor.keys import ACTIONS, OF_PAGES, press
from hookflow.monitor.prompt import candidates
from hookflow.monitor.view import Notice, Prompt, Scene, View
from tests.golden_files import check_golden
from tests.monitor.conftest import At
from tests.monitor.test_keys import shown, visit
from tests.monitor.test_screens import SIZES, drawn

NAMES = ("stop", "step", "checkpoint")


class Listener:
    """Opens a line in a scene, and keeps what it was asked."""

    def __init__(self, scene: Scene, **options: Any) -> None:
        self.scene, self.live, self.submitted = scene, list[str](), list[str]()
        scene.view.prompt = Prompt(":", self.submit, lambda _, text: self.live.append(text), **options)

    def submit(self, scene: Scene, text: str) -> Notice:
        assert scene.view.prompt is None, "it is closed when its text is submitted"
        self.submitted.append(text)
        return Notice(f"got {text}")

    def type(self, *keys: str) -> str | Notice:
        answers = [press(key, self.scene, key if cell_len(key) <= 2 and len(key) == 1 else "") for key in keys]
        return answers[-1]

    @property
    def text(self) -> str:
        assert self.scene.view.prompt
        return self.scene.view.prompt.text


def of_names(scene: Scene, text: str) -> Sequence[tuple[str, str]]:
    return [(name, f"to {name}") for name in NAMES if text in name]


EDITS: dict[str, tuple[str, tuple[str, ...], str]] = {
    "printable characters, also those that are keys": ("", ("q", "?", "7", "日"), "q?7日"),
    "backspace": ("loss", ("backspace", "ctrl+h"), "lo"),
    "backspace where nothing is": ("", ("backspace",), ""),
    "ctrl+u": ("some words", ("ctrl+u",), ""),
    "ctrl+w": ("some words", ("ctrl+w",), "some "),
    "ctrl+w after blanks": ("some words  ", ("ctrl+w", "ctrl+w"), ""),
    "tab takes the first candidate": ("st", ("tab",), "stop"),
    "tab where nothing matches": ("xx", ("tab",), "xx"),
    "tab takes the picked one": ("st", ("down", "down", "tab"), "step"),
    "up picks the last one": ("", ("up", "tab"), "checkpoint"),
    "a change forgets what was picked": ("", ("up", "s", "tab"), "stop"),
    "keys that type nothing": ("st", ("f5", "left", "home"), "st"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_each_key_edits_the_line(scene: At, edit: str) -> None:
    before, keys, after = EDITS[edit]
    line = Listener(scene(), text=before, complete=of_names)
    assert line.type(*keys) == ""
    assert line.text == after
    assert line.live[-1:] == [after] * (before != after)


def test_enter_submits_the_text_or_the_picked_candidate(scene: At) -> None:
    line = Listener(scene())
    assert line.type("l", "r", "enter") == Notice("got lr")
    line = Listener(line.scene, complete=of_names)
    assert line.type("s", "t", "down", "down", "enter") == Notice("got step")
    assert line.submitted == ["step"]


@pytest.mark.parametrize("key", ["escape", "ctrl+c"])
def test_esc_closes_the_line_and_undoes_what_it_has_filtered(scene: At, key: str) -> None:
    line = Listener(scene(), text="loss")
    assert line.type("ctrl+u", "l", "r", key) == ""
    assert line.scene.view.prompt is None
    assert line.live == ["", "l", "lr", "loss"]
    assert not line.submitted
    assert line.type("question_mark") == ""
    assert line.scene.view.page == "help", "keys are commands again"


@pytest.mark.parametrize("size", SIZES)
def test_the_line_and_its_candidates_are_drawn_at_every_size(scene: At, size: tuple[int, int]) -> None:
    at = scene()
    before = drawn(at, *size).splitlines()
    Listener(at, text="st", complete=of_names)
    press("down", at)
    rows = drawn(at, *size).splitlines()
    assert rows[:-4] == before[:-4]
    assert rows[-4:-1] == ["─" * size[0], "  stop  to stop", "  step  to step"]
    assert rows[-1].startswith(" :st█")
    assert rows[-1].endswith("tab complete  enter ok esc back")
    at.view.prompt = Prompt("go to iteration", lambda _, text: text, text="日本語 " * 50)
    last = drawn(at, *size).splitlines()[-1]
    assert last.startswith(" go to iteration …")
    assert "日本語 █ " in last
    at.view.prompt = Prompt(":", lambda _, text: text, complete=lambda *_: [f"name-{each}" for each in range(40)])
    press("up", at)
    assert "name-39" in drawn(at, *size)


def test_no_terminal_is_too_small_for_the_line(scene: At) -> None:
    at = scene()
    Listener(at, text="日本語", complete=lambda *_: ["日本" * 40] * 40)
    for width in (1, 2, 3, 7, 20, 59):
        for height in (1, 2, 3, 11):
            drawn(at, width, height)


def test_keys_and_pastes_reach_the_line_in_the_app(going: RunDir) -> None:
    lines: list[str] = []

    def submit(scene: Scene, text: str) -> Notice:
        lines.append(text)
        return Notice(f"got {text}")

    async def what(app: MonitorApp, pilot: Pilot[Any]) -> None:
        app._view.prompt = Prompt("/", submit)
        await pilot.press("q", "tab", "left_square_bracket", "space", "S", "日")
        app.post_message(events.Paste("two\nlines\t\x1b"))
        await pilot.pause()
        assert " /q[ S日two lines    ·█" in shown(app)
        await pilot.press("enter")
        assert "got q[ S日two lines" in shown(app)
        app.post_message(events.Paste("q"))
        await pilot.press("s")
        assert app._view.asking == "stop", "what is pasted elsewhere is no key"

    visit(going, what)
    assert lines == ["q[ S日two lines    ·"]


def typed(at: Scene, text: str, *keys: str) -> str | Notice:
    """Type a text into the palette, and press keys; return the answer to the last of them."""
    press(":", at)
    for character in text:
        press(character, at, character)
    return [press(key, at) for key in keys][-1] if keys else ""


def offered(at: Scene, text: str = "") -> list[str]:
    typed(at, text)
    assert at.view.prompt is not None
    names = [name for name, _ in candidates(at, at.view.prompt)]
    press("escape", at)
    return names


@pytest.mark.parametrize("replay", [False, True])
@pytest.mark.parametrize("page", ["main", *OF_PAGES])
def test_every_action_of_the_page_is_offered_and_can_be_called(scene: At, replay: bool, page: str) -> None:
    at = scene(world=2, late={})
    at.replay, at.view.page = replay, page
    modes = ("", "ranks", "replay" if replay else "live")
    expected = [action.name for action in (*ACTIONS, *OF_PAGES.get(page, ())) if action.only in modes]
    assert [*offered(at)][: len(expected)] == expected
    assert {*offered(at)} >= COMMANDS.keys()
    for name in expected:
        answer = typed(replace(at, view=View(page=page)), name, "enter")
        assert not isinstance(answer, Notice) or "there is no action" not in answer.text


def test_letters_find_names_and_then_sentences(scene: At) -> None:
    at = scene()
    assert offered(at, "chkp")[0] == "checkpoint"
    assert offered(at, "log")[0] == "log-scale"
    assert "image" in offered(at, "svg")
    assert offered(at, "zzz") == []
    assert typed(at, "zzz", "enter") == Notice('there is no action "zzz"')
    assert typed(at, "", "enter") == ""
    assert typed(at, "zo", "enter") == "" and at.view.zoomed, "the best match is called"


def test_commands_take_arguments(scene: At) -> None:
    at = scene()
    assert typed(at, "trace 20", "enter") == "send trace 20"
    assert typed(at, "off ema", "enter") == "send off ema"
    assert typed(at, "off emma", "enter") == Notice('there is no hook "emma"; did you mean "ema"?')
    assert typed(at, "on", "enter") == "" and at.view.prompt and at.view.prompt.text == "on "
    press("escape", at)
    assert "off ema" in offered(at, "off e") and offered(at, "set cl") == ["set clip.max_norm="]
    assert typed(at, "set clip.max_norm=0.5", "enter") == "send set clip.max_norm=0.5"
    assert typed(at, "stop", "enter") == "" and at.view.asking == "stop", "what is destructive asks"
    at.view.asking = ""
    assert typed(at, "rewind best", "enter") == Notice("rewind takes no argument here: it asks")


@pytest.mark.parametrize("size", [(120, 40), (60, 15)])
def test_the_palette_over_the_screen(scene: At, size: tuple[int, int]) -> None:
    at = scene()
    typed(at, "po", "down")
    check_golden(f"monitor/palette-{size[0]}x{size[1]}.txt", drawn(at, *size))
