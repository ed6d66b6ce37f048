"""Mouse, search and copies: all of them read the screen as it is drawn."""

import base64
import time
from collections.abc import Callable
from typing import Any

import pytest
from textual import events
from textual.pilot import Pilot

from hookflow.events.rundir import RunDir
from hookflow.monitor import pointer
from hookflow.monitor.app import MonitorApp
from hookflow.monitor.health import Health
from hookflow.monitor.keys import PAGES, press
from hookflow.monitor.layout import screen, visible
from hookflow.monitor.settings import Preferences, Settings
from hookflow.monitor.terminal import CLICKS, NO_MOUSE, announcement, clipboard
from hookflow.monitor.view import Line, Notice, Scene
from tests.limits import LIMIT
from tests.monitor.conftest import At
from tests.monitor.fake_run import append
from tests.monitor.test_keys import shown, until_shown, visit, walk
from tests.monitor.test_screens import drawn

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


def test_a_click_goes_to_a_panel_and_a_row_and_enter_is_a_click_at_the_cursor(scene: At) -> None:
    at = at_large(scene)
    assert pointer.click(at, draw, *place(at, "[5] events")) == ""
    assert focused(at).startswith("[5]")
    assert pointer.click(at, draw, *place(at, "done at iteration 419")) == ""
    assert at.entry is not None and "419" in at.entry.text
    assert pointer.click(at, draw, *place(at, "done at iteration 419")) == "" and at.view.page == "event"
    assert pointer.click(at, draw, *place(at, "esc back  ↑")) == "" and at.view.page == "main"


def test_the_wheel_moves_what_it_is_over(scene: At) -> None:
    at = at_large(scene)
    pointer.wheel(at, draw, *place(at, "[5] events"), -1)
    newest = list(at.state.journal)[-1].number
    assert focused(at).startswith("[5]") and at.view.event is not None and at.view.event < newest
    at.view.open("help")
    pointer.wheel(at, draw, 5, 10, 1)
    assert at.view.scroll == pointer.WHEEL
    pointer.wheel(at, draw, 5, 10, -1)
    assert at.view.scroll == 0


def test_a_click_on_the_footer_is_the_key(scene: At) -> None:
    at = at_large(scene)
    for text, page in (("? help", "help"), ("esc back  ↑", "main")):
        assert pointer.click(at, draw, *place(at, text)) == "" and at.view.page == page
    assert pointer.click(at, draw, *place(at, "c checkpoint")) == "send checkpoint"
    assert pointer.click(at, draw, SIZE[0] - 1, SIZE[1] - 1) == "", "nothing is there"


def test_copies_are_text_without_frames(scene: At) -> None:
    at = at_large(scene)
    press("5", at)
    press("up", at)
    row, panel = (pointer.copied(at, draw(at), whole) for whole in (False, True))
    assert row in panel and row.startswith("14:13:") and "\n" not in row
    assert panel.startswith("[5] events") and not set("│┃━▸╭┏") & set(panel)
    at.view.open("help")
    assert pointer.copied(at, draw(at), False).startswith("help"), "a page without a cursor, as a whole"


SEARCHES: dict[str, tuple[str, str, Callable[[Scene], object]]] = {
    "events": ("5", "419", lambda at: at.entry and at.entry.text),
    "hook": ("enter", "share", lambda at: drawn(at, 80, 15)),
    "help": ("question_mark", "signs", lambda at: drawn(at, 80, 15)),
}


@pytest.mark.parametrize("name", SEARCHES)
def test_search_goes_to_rows_that_are_not_on_the_screen(scene: At, name: str) -> None:
    at = at_large(scene)
    key, text, read = SEARCHES[name]
    press(key, at)
    assert press("/", at) == "search"
    pointer.search(at, 80)
    for character in text:
        press(character, at, character)
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


def test_the_mouse_in_the_app_and_a_key_that_leaves_it_to_the_terminal(
    going: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def what(app: MonitorApp, pilot: Pilot[Any]) -> None:
        def at(kind: type[events.MouseEvent], text: str) -> events.MouseEvent:
            lines = shown(app).splitlines()
            y = next(y for y, line in enumerate(lines) if text in line)
            return kind(None, lines[y].index(text) + 1, y, 0, 0, 1, False, False, False)

        sent = written(app, monkeypatch)
        app.post_message(at(events.MouseDown, "[5] events"))
        await pilot.pause()
        assert "┏━ [5] events" in shown(app)
        app.post_message(at(events.MouseScrollUp, "[5] events"))
        await pilot.pause()
        await pilot.press("y", "Y", "M")
        assert "the mouse is the terminal's" in shown(app)
        row, panel, mouse = sent
        assert clipboard("").removesuffix("\a") in row and mouse == NO_MOUSE
        copied = base64.b64decode(panel.removeprefix("\x1b]52;c;").removesuffix("\a")).decode()
        assert copied.startswith("[5] events")
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
        end = {"k": "end", "t": time.time(), "it": 784, "ep": 8, "status": "finished", "exit": 0, "reason": ""}
        append(going, [{**end, "seconds": 9.0}])
        await until_shown(app, pilot, "FINISHED")
        assert len(sent) == count and all("]9;hookflow cifar" in text and "finished" in text for text in sent)

    visit(going, what, preferences=Preferences(Settings(notify=notify)))
    walk(going, ("", "FINISHED"))


def test_the_end_of_a_run_that_was_over_is_not_announced(whole: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []
    monkeypatch.setattr(MonitorApp, "write", lambda app, text: sent.append(text))
    walk(whole, ("", "FINISHED"))
    assert set(sent) == {CLICKS}
