"""The palette: every action by its name and its letters, and commands to the run with their arguments."""

from __future__ import annotations

import pytest

from hookflow.events.commands import COMMANDS
from hookflow.monitor.keys import ACTIONS, OF_PAGES, press
from hookflow.monitor.prompt import candidates
from hookflow.monitor.view import Notice, Scene
from tests.golden_files import check_golden
from tests.monitor.conftest import At
from tests.monitor.test_screens import drawn


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
        fresh = scene(world=2, late={})
        fresh.replay, fresh.view.page = replay, page
        answer = typed(fresh, name, "enter")
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
