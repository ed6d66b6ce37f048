"""The page Log: events and output in one list, filtered and followed; all of a line;
the widgets of failures.
"""

import math
import time
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from hookflow.events.rundir import RunDir
from hookflow.monitor import health
from hookflow.monitor.app import MonitorApp
from hookflow.monitor.log_lines import EVENTS, EVERYTHING, PRINTED, make_word_filter
from hookflow.monitor.printed_output import MAX_LINES, find_severity
from hookflow.monitor.screens.event_details import EventDetailsScreen
from hookflow.monitor.screens.log import LogScreen
from hookflow.monitor.widgets.log_view import LogView
from hookflow.monitor.widgets.traceback_view import make_traceback_text
from tests.conftest import records
from tests.monitor.fake_run import BEGAN, TRACEBACK, append, make, record
from tests.monitor.shown import check_screens, press, screen_text, settle, shown, visit

PRINTED_LINES = [
    *(f"step {number}: loss {2 / (number + 1):.4f}" for number in range(60)),
    "net.py:12: UserWarning: a mask of all zeros",
    "WARNING:data:the cache is cold",
    *TRACEBACK.splitlines(),
    "epoch 3  87%|████████▋ | 85/98",
]


@pytest.fixture
def printing(whole: RunDir) -> RunDir:
    """A finished run whose training has printed something."""
    whole.output.write_text("\n".join(PRINTED_LINES) + "\n")
    return whole


@pytest.fixture
def going(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    """A run that goes on, and does not count as stalled;
    what it has recorded is of the last minute.
    """
    monkeypatch.setattr(health, "PATIENCE", math.inf)
    run = make(tmp_path / "runs", upto=100, began=time.time() - 60)
    run.sign_process()
    return run


def log_view(app: MonitorApp) -> LogView:
    assert isinstance(app.screen, LogScreen)
    return app.screen.log_view


def rows(app: MonitorApp) -> list[str]:
    """Return the rows of the list, without the scrollbar."""
    return [line[:-2] for line in screen_text(app).splitlines()[5:-2]]


def texts(app: MonitorApp) -> list[str]:
    return [line.text for line in log_view(app).lines]


def test_a_printed_line_has_the_level_of_its_words() -> None:
    levels = {
        "loss 0.3, error_rate 0.1": 0,
        "no warnings": 0,
        "a.py:3: UserWarning: slow": 1,
        "[W] Warning: x": 1,
        "ERROR:root:gone": 2,
        "Traceback (most recent call last):": 2,
        "ValueError: bad": 2,
        "RuntimeError: CUDA error: out of memory": 2,
        "2026-01-01 12:00:00,123 - data - ERROR - no such file": 2,
        "[error] the file is torn": 2,
        "12:00:01 error: 3 files missing": 2,
        "an error occurred": 2,
        "socket.gaierror: [Errno -2] Name or service not known": 2,
        "epoch 3  loss 0.21  error 0.12  lr 1e-3": 0,
        "top-1 error: 12.3 %": 0,
        "error=0.25 accuracy=0.75": 0,
        "error: 12%": 0,
        "error rate 0.3": 0,
        "{'error': 0.5}": 0,
        "| epoch | loss | error |": 0,
        "best error so far 0.2": 0,
        "val_error 0.12": 0,
        "error: nan": 0,
        "MeanError 0.12": 0,
        "step 5 error 3": 0,
        "warning 0.3": 0,
    }
    assert {text: find_severity(text) for text in levels} == levels


@pytest.mark.parametrize(
    ("words", "line", "passes"),
    [
        ("", "anything", True),
        ("loss step", "step 3: loss 0.2", True),
        ("loss epoch", "step 3: loss 0.2", False),
        ("warning", "UserWarning: x", True),
        ("Warning", "a warning", False),
        ("ep*3", "ep0003.pt", True),
        ("ep*9", "ep0003.pt", False),
        ("ep?00", "ep0003.pt", True),
        ("a.b", "axb", False),
    ],
)
def test_a_filter_is_of_words_and_globs_and_capitals_matter_if_there_are_some(
    words: str, line: str, passes: bool
) -> None:
    assert make_word_filter(words)(line) is passes


def test_the_page(whole: RunDir) -> None:
    check_screens("page-log", whole, "5")


def test_events_and_output_stand_in_one_list_with_the_newest_at_the_end(going: RunDir) -> None:
    going.output.write_text("before\n")

    async def look(app: MonitorApp, pilot: Pilot[Any]) -> None:
        await press(app, pilot, "5")
        assert "before" in texts(app)
        with going.output.open("a") as file:
            file.write("one\nhalf a li")
        app.store.poll()
        await settle(app, pilot)
        assert texts(app)[-2:] == ["one", "half a li"]
        now = app.store.clock
        append(going, [record("message", now + 1, 590, 6, text="slow disk")])
        with going.output.open("a") as file:
            file.write("ne\n")
        app.store.poll()
        await settle(app, pilot)
        assert texts(app)[-3:] == ["one", "half a line", "slow disk"]
        times = {line.text: line.time for line in log_view(app).lines}
        assert times["before"] is None, "nobody knows when that was printed"
        assert times["one"] is not None
        assert times["slow disk"] == now + 1
        assert "▲ data" in screen_text(app)

    visit(going, look)


def test_it_follows_the_newest_unless_the_cursor_is_elsewhere(going: RunDir) -> None:
    going.output.write_text("".join(f"line {number}\n" for number in range(200)))

    async def grow(app: MonitorApp, pilot: Pilot[Any], text: str) -> None:
        with going.output.open("a") as file:
            file.write(text)
        app.store.poll()
        await settle(app, pilot)

    async def look(app: MonitorApp, pilot: Pilot[Any]) -> None:
        await press(app, pilot, "5")
        assert "following" in screen_text(app)
        await grow(app, pilot, "new 1\n")
        assert "new 1" in screen_text(app)
        await press(app, pilot, "up")
        picked, before = log_view(app).picked_line, rows(app)
        await grow(app, pilot, "new 2\nnew 3\n")
        assert log_view(app).picked_line == picked
        assert rows(app) == before, "what is read stays where it is"
        assert "3 newer" in screen_text(app)
        await press(app, pilot, "end")
        assert "new 3" in screen_text(app)
        assert log_view(app).is_following
        await press(app, pilot, "home")
        assert log_view(app).cursor == 0
        await press(app, pilot, "pagedown", "pagedown", "pageup", "down", "up", "j", "k")
        assert 0 < log_view(app).cursor < 60
        await press(app, pilot, "end")
        view = log_view(app)
        view._scroll_lines(-3)
        assert not view.is_following, (
            "the wheel scrolls, and the cursor stays on a row that is seen"
        )
        await grow(app, pilot, "new 4\n")
        assert "new 4" not in screen_text(app)
        view._scroll_lines(300)
        assert view.is_following

    visit(going, look, size=(80, 24))


def test_lines_are_chosen_by_level_source_and_words(printing: RunDir) -> None:
    async def look(app: MonitorApp, pilot: Pilot[Any]) -> None:
        await press(app, pilot, "5")
        everything = len(texts(app))
        await press(app, pilot, "L")
        assert "net.py:12: UserWarning: a mask of all zeros" in texts(app)
        assert not any("loss" in text for text in texts(app))
        await press(app, pilot, "L")
        assert "Traceback (most recent call last):" in texts(app)
        assert not any("UserWarning" in text for text in texts(app))
        await press(app, pilot, "L")
        assert len(texts(app)) == everything
        chosen = []
        for _ in range(30):
            await press(app, pilot, "S")
            assert isinstance(app.screen, LogScreen)
            source = app.screen._filter.source
            if source in chosen:
                break
            chosen.append(source)
            sources = {line.source for line in log_view(app).lines}
            assert (PRINTED in sources) is (source in (EVERYTHING, PRINTED))
        assert chosen[:2] == [EVENTS, PRINTED]
        assert {"ema", "run", EVERYTHING} <= {*chosen}
        await press(app, pilot, "S", "slash", *"step 7")
        assert "step 7: loss 0.2500" in screen_text(app)

    visit(printing, look)


def test_escape_clears_the_filter_first(printing: RunDir) -> None:
    async def look(app: MonitorApp, pilot: Pilot[Any]) -> None:
        await press(app, pilot, "5", "slash", *"zebra")
        assert "no such line" in screen_text(app)
        await press(app, pilot, "enter")
        assert isinstance(app.screen, LogScreen)
        await press(app, pilot, "escape")
        assert len(texts(app)) > 60
        await press(app, pilot, "escape")
        assert not isinstance(app.screen, LogScreen)

    visit(printing, look)


def test_a_trouble_is_gone_to_though_a_filter_hides_it(printing: RunDir) -> None:
    async def look(app: MonitorApp, pilot: Pilot[Any]) -> None:
        await press(app, pilot, "5", "slash", *"zebra", "enter")
        gone_to = []
        for key in ("e", "e", "E", "E", "E"):
            await press(app, pilot, key)
            picked = log_view(app).picked_line
            assert picked is not None
            gone_to.append(picked.source)
        assert gone_to[:2] == ["visual", "ema"]
        assert gone_to[2] == "visual"
        assert app.choices.log_entry is None
        numbers = [entry.number for entry in app.store.state.journal if entry.trouble]
        app._trouble_number = numbers[0]
        app.action_older_trouble()
        assert app._trouble_number == numbers[-1], "round and round"
        app.action_newer_trouble()
        assert app._trouble_number == numbers[0]

    visit(printing, look)


def test_a_replay_has_no_output(printing: RunDir) -> None:
    text = shown(printing, "ctrl+end", "5", "S", "S", replay=1.0)
    assert "a replay has no output" in text


def test_an_empty_list_says_why(tmp_path: Path) -> None:
    run = make(tmp_path / "runs", upto=0)
    assert "nothing has happened yet" in shown(run, "5")
    assert "nothing was printed so far" in shown(run, "5", "S", "S")


def test_only_the_last_lines_are_kept(whole: RunDir) -> None:
    whole.output.write_text("".join(f"{number}\n" for number in range(MAX_LINES + 500)))

    async def look(app: MonitorApp, pilot: Pilot[Any]) -> None:
        await press(app, pilot, "5", "S", "S")
        assert len(log_view(app).lines) == MAX_LINES
        assert log_view(app).lines[-1].text == str(MAX_LINES + 499)

    visit(whole, look)


def details_at(run: RunDir, words: str, *keys: str) -> str:
    """Return the details of the newest line that has these words."""
    return shown(run, "5", "slash", *words, "enter", "end", "enter", *keys)


def test_all_of_a_validation_is_beside_the_one_before_and_the_best(whole: RunDir) -> None:
    text = details_at(whole, "accuracy")
    assert "value    before      best" in text
    assert "accuracy" in text
    assert "at iteration 784" in text


def test_all_of_a_checkpoint_is_what_can_be_done_with_it(whole: RunDir) -> None:
    text = details_at(whole, "ep0008")
    assert "not on the disk any more" in text
    folder = whole.path / "checkpoints" / "ep0008.pt"
    folder.mkdir(parents=True)
    (folder / "model.pt").touch()
    text = details_at(whole, "ep0008")
    assert "hookflow fork" in text
    assert "hookflow val" in text
    assert "model.pt" in text
    assert "weights = " in text
    assert "(of iteration 784)" in text


def test_a_checkpoint_whose_path_is_none_of_a_folder_counts_as_removed(whole: RunDir) -> None:
    saved = records(whole, "checkpoint")[-1] | {"path": "ep0009" + 300 * "x"}
    append(whole, [saved])
    assert "not on the disk any more" in details_at(whole, "ep0009")


def test_all_of_an_error_is_its_traceback_with_the_culprit_marked(whole: RunDir) -> None:
    text = details_at(whole, "OSError")
    assert "No space left on device" in text
    assert '▸ File "visual.py", line 31, in after_val_epoch' in text
    assert "▸   self.canvas.write(image)" in text


def test_brackets_go_to_the_lines_around_and_escape_leaves(whole: RunDir) -> None:
    async def look(app: MonitorApp, pilot: Pilot[Any]) -> None:
        await press(app, pilot, "5", "enter")
        assert isinstance(app.screen, EventDetailsScreen)
        last = app.screen.line
        await press(app, pilot, "left_square_bracket")
        assert app.screen.line != last
        await press(app, pilot, "right_square_bracket", "right_square_bracket")
        assert app.screen.line == last
        await press(app, pilot, "escape")
        assert isinstance(app.screen, LogScreen)

    visit(whole, look)


@pytest.mark.parametrize("page", ["1", "2", "3", "5", "6", "i"])
def test_every_page_can_be_drawn_without_colour(
    printing: RunDir, monkeypatch: pytest.MonkeyPatch, page: str
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    text = shown(printing, page)
    assert "FINISHED" in text
    assert "✗" in text, "signs stand beside colours"


def test_an_image_is_opened_on_its_own_page(whole: RunDir) -> None:
    image = {"k": "image", "t": BEGAN + 40, "it": 784, "ep": 8, "hook": "visual", "name": "sample"}
    image |= {"path": "images/sample.png", "width": 8, "height": 8, "caption": "", "figure": False}
    append(whole, [image])

    async def look(app: MonitorApp, pilot: Pilot[Any]) -> None:
        await press(app, pilot, "5", "enter")
        assert app.page is not None
        assert app.page.page_name == "media"
        assert "▣ sample" in screen_text(app)

    visit(whole, look)


def test_a_row_is_copied_with_its_time(whole: RunDir) -> None:
    async def look(app: MonitorApp, pilot: Pilot[Any]) -> None:
        await press(app, pilot, "5")
        assert isinstance(app.screen, LogScreen)
        assert app.screen.text_of_row().endswith("· run  finished after 0:00:32, 784 iterations")

    visit(whole, look)


def test_the_culprit_of_a_traceback_is_the_frame_that_the_record_names() -> None:
    traceback = (
        'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    g()\n  File "b.py",'
        " line 2, in g\n"
    )
    traceback += "    boom()\nValueError: bad\n"
    text = make_traceback_text(traceback, "a.py:1")
    assert text.before.plain == "Traceback (most recent call last):"
    assert text.culprit.plain.splitlines() == ['▸ File "a.py", line 1, in f', "▸   g()"]
    assert text.after.plain.splitlines()[0] == '  File "b.py", line 2, in g'
    text = make_traceback_text(traceback)
    assert text.culprit.plain.splitlines()[0] == '▸ File "b.py", line 2, in g', (
        "the innermost frame of one's own files"
    )
    assert text.after.plain == "ValueError: bad"


def test_a_traceback_has_the_files_of_packages_by_their_names() -> None:
    traceback = (
        'Traceback (most recent call last):\n  File "/x/lib/site-packages/torch/nn.py", line 1,'
        " in f\n"
    )
    lines = make_traceback_text(traceback, "a.py:1").whole.plain.splitlines()
    assert lines[1] == '  File "…/torch/nn.py", line 1, in f'
