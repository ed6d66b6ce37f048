"""The line in which text is typed, the palette; mouse, search and copies, which read the screen as it is drawn."""

import base64
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from rich.cells import cell_len
from textual import events
from textual.pilot import Pilot

from hookflow.events.commands import COMMANDS
from hookflow.events.rundir import RunDir
from hookflow.monitor import pointer
from hookflow.monitor.app import MonitorApp
from hookflow.monitor.health import Health
from hookflow.monitor.keys import ACTIONS, OF_PAGES, PAGES, press
from hookflow.monitor.layout import screen, visible
from hookflow.monitor.prompt import candidates
from hookflow.monitor.settings import Preferences, Settings
from hookflow.monitor.terminal import CLICKS, NO_MOUSE, announcement, clipboard
from hookflow.monitor.view import Line, Notice, Prompt, Scene, View
from tests.golden_files import check_golden
from tests.limits import LIMIT
from tests.monitor.conftest import At
from tests.monitor.fake_run import append, end
from tests.monitor.test_keys import shown, until_shown, visit, walk, write
from tests.monitor.test_screens import SIZES, draw_at_any_size, drawn

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


def test_enter_submits_what_is_picked_and_no_terminal_is_too_small_for_the_line(scene: At) -> None:
    line = Listener(scene())
    assert line.type("l", "r", "enter") == Notice("got lr")
    line = Listener(line.scene, complete=of_names)
    assert line.type("s", "t", "down", "down", "enter") == Notice("got step")
    assert line.submitted == ["step"]
    at = scene()
    Listener(at, text="日本語", complete=lambda *_: ["日本" * 40] * 40)
    draw_at_any_size(at)


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
    write(at, text)
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


def test_letters_find_names_and_then_sentences_and_commands_take_arguments(scene: At) -> None:
    at = scene()
    assert offered(at, "chkp")[0] == "checkpoint"
    assert offered(at, "log")[0] == "log-scale"
    assert "image" in offered(at, "svg")
    assert offered(at, "zzz") == []
    assert typed(at, "zzz", "enter") == Notice('there is no action "zzz"')
    assert typed(at, "", "enter") == ""
    assert typed(at, "zo", "enter") == "" and at.view.zoomed, "the best match is called"
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


SIZE = (120, 40)


def draw(scene: Scene) -> Any:
    return screen(scene, *SIZE)


def place(scene: Scene, text: str) -> tuple[int, int]:
    """Return the cell in the middle of a text on the screen."""
    lines = drawn(scene, *SIZE).splitlines()
    y = next(y for y, line in enumerate(lines) if text in line)
    return lines[y].index(text) + len(text) // 2, y


def focused(scene: Scene) -> str:
    return next(line for line in drawn(scene, *SIZE).splitlines() if "┏━ [" in line).partition("┏━ ")[2][:8]


def at_large(scene: At, **made: Any) -> Scene:
    at = scene(**made)
    at.visible = visible(*SIZE)
    return at


def test_clicks_and_the_wheel_go_to_what_is_under_them(scene: At) -> None:
    at = at_large(scene)
    assert pointer.click(at, draw, *place(at, "[3] events")) == ""
    assert focused(at).startswith("[3]")
    assert pointer.click(at, draw, *place(at, "done at iteration 419")) == ""
    assert at.entry is not None and "419" in at.entry.text
    assert pointer.click(at, draw, *place(at, "done at iteration 419")) == "" and at.view.page == "event"
    assert pointer.click(at, draw, *place(at, "esc back  ↑")) == "" and at.view.page == "main"
    at = at_large(scene)
    pointer.wheel(at, draw, *place(at, "[3] events"), -1)
    newest = list(at.state.journal)[-1].number
    assert focused(at).startswith("[3]") and at.view.event is not None and at.view.event < newest
    at.view.open("help")
    pointer.wheel(at, draw, 5, 10, 1)
    assert at.view.scroll == pointer.WHEEL
    pointer.wheel(at, draw, 5, 10, -1)
    assert at.view.scroll == 0
    at = at_large(scene)
    for text, page in (("? help", "help"), ("esc back  ↑", "main")):
        assert pointer.click(at, draw, *place(at, text)) == "" and at.view.page == page
    assert pointer.click(at, draw, *place(at, "c checkpoint")) == "send checkpoint"
    assert pointer.click(at, draw, SIZE[0] - 1, SIZE[1] - 1) == "", "nothing is there"
    for point in ("after_backward", "after_train_iter", "after_val_epoch"):
        assert pointer.click(at, draw, *place(at, point)) == "" and at.point == point, "over rows without hooks"


def test_copies_are_text_without_frames(scene: At) -> None:
    at = at_large(scene)
    press("3", at)
    press("up", at)
    row, panel = (pointer.copied(at, draw(at), whole) for whole in (False, True))
    assert row in panel and row.startswith("14:13:") and "\n" not in row
    assert panel.startswith("[3] events") and not set("│┃━▸╭┏") & set(panel)
    at.view.open("help")
    assert pointer.copied(at, draw(at), False).startswith("help"), "a page without a cursor, as a whole"


SEARCHES: dict[str, tuple[str, str, Callable[[Scene], object]]] = {
    "events": ("3", "419", lambda at: at.entry and at.entry.text),
    "hook": ("enter", "last firing", lambda at: drawn(at, 80, 15)),
    "help": ("question_mark", "signs", lambda at: drawn(at, 80, 15)),
}


@pytest.mark.parametrize("name", SEARCHES)
def test_search_goes_to_rows_that_are_not_on_the_screen(scene: At, name: str) -> None:
    at = at_large(scene)
    key, text, read = SEARCHES[name]
    press(key, at)
    assert press("/", at) == "search"
    pointer.search(at, 80)
    write(at, text)
    assert press("enter", at) == ""
    assert text in str(read(at))
    assert press("n", at) == "find next" and not isinstance(pointer.find(1, at, 80), Notice)
    assert not isinstance(pointer.find(-1, at, 80), Notice)
    at.view.search = "zzz"
    assert pointer.find(1, at, 80) == Notice('no row with "zzz"')
    press("escape", at)
    assert at.view.search == "" and pointer.find(1, at, 80) == Notice("/ searches for a text")


@pytest.mark.parametrize("page", [*PAGES])
def test_every_page_has_a_search_of_its_own_or_this(scene: At, page: str) -> None:
    at = at_large(scene)
    at.view.page, at.output = page, [Line(1, 0, "", "text")]
    answer = press("/", at)
    assert answer == "search" or (answer == "" and at.view.prompt and at.view.prompt.label == "/")
    if answer == "search":
        at.view.search = "a"
        pointer.find(0, at, 80)
        drawn(at, *SIZE)


def test_matches_stand_out(scene: At) -> None:
    at = at_large(scene)
    before = drawn(at, *SIZE)
    at.view.search = "EMA"
    assert drawn(at, *SIZE) == before
    at.view.search = "ema"
    badges = [each.text for row in draw(at) for each in row if each.style and each.style.bgcolor is not None]
    assert drawn(at, *SIZE) == before and badges.count("ema") >= 2


def written(app: MonitorApp, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what the app sends to its terminal from now on."""
    sent: list[str] = []
    monkeypatch.setattr(app, "write", sent.append)
    return sent


def test_the_mouse_and_a_key_that_leaves_it_to_the_terminal(going: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    async def what(app: MonitorApp, pilot: Pilot[Any]) -> None:
        def at(kind: type[events.MouseEvent], text: str) -> events.MouseEvent:
            lines = shown(app).splitlines()
            y = next(y for y, line in enumerate(lines) if text in line)
            return kind(None, lines[y].index(text) + 1, y, 0, 0, 1, False, False, False)

        sent = written(app, monkeypatch)
        app.post_message(at(events.MouseDown, "[3] events"))
        await pilot.pause()
        assert "┏━ [3] events" in shown(app)
        app.post_message(at(events.MouseScrollUp, "[3] events"))
        await pilot.pause()
        await pilot.press("y", "Y", "M")
        assert "the mouse is the terminal's" in shown(app)
        row, panel, mouse = sent
        assert clipboard("").removesuffix("\a") in row and mouse == NO_MOUSE
        copied = base64.b64decode(panel.removeprefix("\x1b]52;c;").removesuffix("\a")).decode()
        assert copied.startswith("[3] events")
        await pilot.press("M")
        assert sent[-1] == CLICKS

    visit(going, what)


def test_tmux_is_passed_through(monkeypatch: pytest.MonkeyPatch, whole: RunDir) -> None:
    monkeypatch.delenv("TMUX", raising=False)
    assert clipboard("é\n") == "\x1b]52;c;w6kK\a"
    monkeypatch.setenv("TMUX", "socket,1,0")
    assert clipboard("é\n") == "\x1b]52;c;w6kK\a\x1bPtmux;\x1b\x1b]52;c;w6kK\a\x1b\\"
    assert announcement(whole, Health("lost", "gone\x1b[2J")).endswith("lost  gone·[2J\a\x1b\\\a")


@pytest.mark.parametrize(("notify", "count"), [(["end"], 1), (["failure", "stall"], 0)])
def test_the_terminal_announces_an_end_that_comes_while_the_run_is_watched(
    going: RunDir, monkeypatch: pytest.MonkeyPatch, notify: Any, count: int
) -> None:
    async def what(app: MonitorApp, pilot: Pilot[Any]) -> None:
        sent = written(app, monkeypatch)
        until = time.monotonic() + LIMIT
        while app._condition != "running" or app._behind:
            assert time.monotonic() < until
            await pilot.pause(0.01)
        append(going, [end(time.time())])
        await until_shown(app, pilot, "FINISHED")
        assert len(sent) == count and all("]9;hookflow cifar" in text and "finished" in text for text in sent)

    visit(going, what, preferences=Preferences(Settings(notify=notify)))


def test_the_end_of_a_run_that_was_over_is_not_announced(whole: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []
    monkeypatch.setattr(MonitorApp, "write", lambda app, text: sent.append(text))
    walk(whole, ("", "FINISHED"))
    assert set(sent) == {CLICKS}
