"""Live and replay are the same fold, whatever moment is asked for and however the log was torn."""

from __future__ import annotations

import json
import random
from pathlib import Path

from hookflow.events.rundir import RunDir
from hookflow.monitor.feed import Live, Recording
from hookflow.monitor.health import examine
from hookflow.monitor.layout import screen
from hookflow.monitor.ranks import NO_PLAN
from hookflow.monitor.state import RunState
from hookflow.monitor.view import Scene, View
from tests.limits import LIMIT
from tests.monitor.conftest import read
from tests.monitor.fake_run import make


def drawn(state: RunState, recording: Recording) -> list[str]:
    health, path = examine(state, "alive", state.now), Path("runs/cifar/20260921-141320-a3f9")
    scene = Scene(state, recording.plan or NO_PLAN, health, View(), path, clock=state.now)
    return [strip.text for strip in screen(scene, 160, 50)]


def test_replay_shows_at_every_moment_what_the_live_view_showed(whole: RunDir, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(Recording, "KEPT", 8)
    recording = Recording(whole)
    recording._every = 20
    shown = {}
    live = RunState()
    for place, line in enumerate(whole.events.read_text("utf-8").splitlines(), start=1):
        live.apply(json.loads(line))
        if place % 15 == 0:
            shown[place] = drawn(live, recording)
    places = list(shown)
    random.Random(0).shuffle(places)
    for place in places:
        recording._go(place)
        assert drawn(recording.state, recording) == shown[place]


def test_steps_go_from_frame_to_frame_and_stop_at_the_ends(whole: RunDir, tmp_path: Path) -> None:
    recording = Recording(whole)
    assert recording.step(-10) == recording._times[recording._frames[0]]
    moments = [recording.step(1) for _ in range(5)]
    assert moments == sorted(set(moments))
    assert recording.step(-1) == moments[3]
    recording.seek(recording.last)
    assert recording.state.end is not None
    assert recording.step(10**6) == recording._times[recording._frames[-1]]
    recording.seek(recording.first - 1)
    assert recording.state.frames == 0
    assert Recording(make(tmp_path, upto=0)).step(1) == 0.0, "an empty one has nothing to show"


def test_a_line_that_is_still_being_written_waits_for_its_end(tmp_path: Path) -> None:
    run = make(tmp_path, upto=20)
    log = run.events.read_bytes()
    cut = log.rindex(b'"stage"')
    run.events.write_bytes(log[:cut])
    live = Live(run)
    assert not live.poll(LIMIT)
    before = live.state.frames
    with run.events.open("ab") as file:
        file.write(log[cut:])
    live.poll(LIMIT)
    assert live.state.frames == before + 1


def test_a_torn_line_costs_only_itself(tmp_path: Path) -> None:
    run = make(tmp_path, upto=20)
    lines = run.events.read_bytes().splitlines(keepends=True)
    run.events.write_bytes(b"".join([*lines[:10], lines[10][:40] + b"\n", b"\xff\x00garbage\n", b"[1]\n", *lines[11:]]))
    live = read(run)
    recording = Recording(run)
    recording.seek(recording.last)
    whole = sum(b'"frame"' in line for line in lines)
    assert live.state.frames == recording.state.frames == whole - (b'"frame"' in lines[10])
    assert drawn(live.state, recording) == drawn(recording.state, recording)
