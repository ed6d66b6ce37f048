"""The page of the output, searched, filtered and followed; and the timeline of a replay."""

import time
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from hookflow.events.rundir import RunDir
from hookflow.monitor.app import MonitorApp
from hookflow.monitor.feed import Recording
from hookflow.monitor.keys import press
from hookflow.monitor.panels.output import level_of
from hookflow.monitor.view import Line, Notice, Scene
from tests.golden_files import check_golden
from tests.monitor.conftest import At
from tests.monitor.fake_run import BEGAN, TRACEBACK, Training, append, make
from tests.monitor.test_keys import pressed, shown, until_shown, visit, walk, write
from tests.monitor.test_screens import SIZES, draw_at_any_size, drawn

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
    assert {text: level_of(text) for text in levels} == levels


def test_the_page(scene: At) -> None:
    at = printed(scene)
    at.view.search = "error"
    press("n", at)
    for width, height in (*SIZES, (200, 60)):
        check_golden(f"monitor/output-{width}x{height}.txt", drawn(at, width, height))
    draw_at_any_size(at)


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
    write(at, "step 7")
    assert "/ step 7: 1" in drawn(at, 80, 24), "while it is typed"
    assert press("enter", at) == ""
    assert "/ step 7: 1 of 1" in drawn(at, 80, 24)
    at.view.search = "warning"
    assert "1 of 2" in pressed(at, "N", size=(80, 24))
    assert "2 of 2" in pressed(at, "N", size=(80, 24))
    assert "1 of 2" in pressed(at, "N", size=(80, 24)), "round and round"
    assert "2 of 2" in pressed(at, "n", size=(80, 24))
    at.view.search = "Warning"
    assert ": 1 of 1" in pressed(at, "n", size=(80, 24))
    at.view.search = "none"
    assert press("n", at) == Notice('no line with "none"')
    press("slash", at)
    press("escape", at)
    assert at.view.search == "none"


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
    assert "no such line: l shows all" in drawn(at, 120, 40)
    pressed(at, "l")
    names = set()
    for _ in range(20):
        pressed(at, "s")
        names.add(at.view.output.source)
    assert {"", "messages", "ema", "run"} <= names
    at.output = []
    at.view.output.source = ""
    assert "nothing was printed so far: s shows the messages" in drawn(at, 80, 24)


def test_the_app_reads_on_and_has_no_timeline(going: RunDir) -> None:
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
    walk(going, ("I", "[g] graph", "go to iteration"))


@pytest.fixture
def resumed(tmp_path: Path) -> RunDir:
    """A run of two attempts: the second goes on from iteration 392, and has a NaN."""
    run = make(tmp_path / "runs", upto=70, synthetic=False)
    training = Training(BEGAN + 1000, synthetic=False)
    (start, *_), training.it, training.ep = next(training.records()), 392, 4
    append(run, [{**start, "it": 392, "ep": 4, "resumed_from": "checkpoints/ep0004.pt"}])
    for step in range(1, 40):
        training.t, training.it = BEGAN + 1000 + step / 4, 392 + 5 * step
        lost = [training._stamp("scalars", v={"loss": "nan"})] * (step == 20)
        append(run, [*lost, training._frame("train", 5 * step, 196, {}, 5)])
    return run


def replayed(scene: At, run: RunDir, moment: float) -> Scene:
    recording = Recording(run)
    recording.seek(recording.first + moment)
    at = scene()
    at.state, at.clock, at.replay = recording.state, recording.first + moment, True
    at.badge = "REPLAY 1x ▶"
    at.timeline = recording.timeline
    return at


def test_the_strip_shows_the_whole_run_and_where_the_replay_is(scene: At, whole: RunDir) -> None:
    at = replayed(scene, whole, 20.0)
    for width, height in (*SIZES, (200, 60)):
        check_golden(f"monitor/replay-{width}x{height}.txt", drawn(at, width, height))
    draw_at_any_size(at)
    at.view.page = "runs"
    assert "┤ 0:00:32" not in drawn(at, 120, 40), "the page is about other runs"


def test_attempts_stand_on_the_strip_and_an_iteration_is_of_the_last_one(scene: At, resumed: RunDir) -> None:
    at = replayed(scene, resumed, 1009.0)
    strip = drawn(at, 120, 40).splitlines()[2]
    assert strip.count("↻") == 1, "the beginning is no mark"
    assert strip.count("▲") == 2, "the warning of a hook, and the NaN"
    assert press("e", at) == f"moment {BEGAN + 1005.0!r}"
    assert 40 < strip.index("↻") < 110, "the time between attempts takes no room"
    assert press("E", at) == Notice("no warning or error after this moment")
    assert press("right_curly_bracket", at) == Notice("no end of an epoch after this moment")
    recording = Recording(resumed)
    moments = {it: recording.moment_of(it) for it in (1, 392, 400, 587, 588)}
    assert moments[1] is not None and moments[1] < BEGAN + 2
    assert moments[400] == BEGAN + 1000.75, "iteration 402 is the first frame from there on"
    assert moments[587] is not None and moments[588] is None
    recording.seek(BEGAN + 1000.75)
    assert recording.state.it == 402


def test_keys_go_to_troubles_epochs_and_iterations(whole: RunDir) -> None:
    walk(
        whole,
        ("E", " 0:00:09.2 ├"),
        ("", "ema took 8.1 ms at iteration 236"),
        ("E", " 0:00:11.7 ├"),
        ("E", "no warning or error after this moment"),
        ("e", " 0:00:09.2 ├"),
        ("right_curly_bracket", "epoch 3/8"),
        ("right_curly_bracket", "iter 98/98"),
        ("left_curly_bracket e e e", "no warning or error before this moment"),
        ("I 4 0 0", "go to iteration 400█"),
        ("enter", "iter  9/98"),
        ("I 9 9 9 9 enter", "iteration 9999 is not in this recording"),
        ("I x enter", '"x" is no iteration'),
        ("I escape", "‖", "go to iteration"),
        replay=0.25,
    )


def test_the_moments_of_a_recording_are_read_once(whole: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    recording, reads = Recording(whole), list[Any]()
    read = Recording._read
    monkeypatch.setattr(Recording, "_read", lambda self, *where: reads.append(where) or read(self, *where))
    assert [moment.kind for moment in recording.timeline.moments][:3] == ["run", "epoch", "metrics"]
    assert len(reads) < 60, "frames and scalars are not read"
    before = len(reads)
    assert recording.timeline
    assert len(reads) == before
    assert time.time() > recording.last
