"""The timeline of a replay: its strip, and the keys that go to troubles, epochs and iterations."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from hookflow.events.rundir import RunDir
from hookflow.monitor.feed import Recording
from hookflow.monitor.keys import press
from hookflow.monitor.view import Notice, Scene
from tests.golden_files import check_golden
from tests.monitor.conftest import At
from tests.monitor.fake_run import BEGAN, Training, append, make
from tests.monitor.test_keys import walk
from tests.monitor.test_screens import SIZES, drawn


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
    at.badge = "REPLAY 1x ▶ 0:00:20.0 / 0:00:32"
    at.timeline = recording.timeline
    return at


@pytest.mark.parametrize("size", [*SIZES, (200, 60)])
def test_the_strip_shows_the_whole_run_and_where_the_replay_is(scene: At, whole: RunDir, size: tuple[int, int]) -> None:
    at = replayed(scene, whole, 20.0)
    text = drawn(at, *size)
    check_golden(f"monitor/replay-{size[0]}x{size[1]}.txt", text)
    strip = text.splitlines()[2]
    assert strip.startswith(" 0:00:20 ├") and strip.endswith("┤ 0:00:32")
    assert strip.count("●") == 1 and strip.index("✗") < strip.index("●")
    assert size == (60, 15) or f"┏━ {'[2] hooks' if size == (80, 24) else '[g] graph'}" in text
    for width in (1, 7, 20, 33, 300):
        for height in (1, 2, 3, 30):
            drawn(at, width, height)


def test_attempts_stand_on_the_strip_and_the_trouble_that_the_monitor_saw(scene: At, resumed: RunDir) -> None:
    at = replayed(scene, resumed, 1009.0)
    strip = drawn(at, 120, 40).splitlines()[2]
    assert strip.count("↻") == 1, "the beginning is no mark"
    assert strip.count("▲") == 2, "the warning of a hook, and the NaN"
    assert press("e", at) == f"moment {BEGAN + 1005.0!r}"
    assert 40 < strip.index("↻") < 110, "the time between attempts takes no room"
    assert press("E", at) == Notice("no warning or error after this moment")
    assert press("right_curly_bracket", at) == Notice("no end of an epoch after this moment")


def test_an_iteration_is_found_in_the_last_attempt_that_did_it(resumed: RunDir) -> None:
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
        ("E", "0:00:09.2 / 0:00:32"),
        ("", "ema took 8.1 ms at iteration 236"),
        ("E", "0:00:11.7 / 0:00:32"),
        ("E", "no warning or error after this moment"),
        ("e", "0:00:09.2 / 0:00:32"),
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


def test_a_live_run_has_no_timeline(going: RunDir) -> None:
    walk(going, ("I", "[g] graph", "go to iteration"))


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
