"""Live and replay are the same fold, however a log was torn; and a log is data, whoever wrote it."""

from __future__ import annotations

import io
import json
import random
import time
from pathlib import Path

import pytest

from hookflow.events.rundir import RunDir
from hookflow.monitor import plain
from hookflow.monitor.feed import Live, Recording
from hookflow.monitor.health import examine
from hookflow.monitor.layout import screen
from hookflow.monitor.ranks import NO_PLAN
from hookflow.monitor.state import RunState
from hookflow.monitor.summary import read_overview
from hookflow.monitor.view import Scene, View
from tests.garbling import seeds
from tests.hostile_records import hostile_line
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
        live.apply(json.loads(line), plan=recording.plan or NO_PLAN)
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


SECONDS = 20
PAGES = ("main", "hook", "event", "help", "output", "gallery")


def hostile_run(root: Path, chance: random.Random) -> RunDir:
    """Return a run of two ranks whose logs go on with records that nobody writes."""
    run = make(root, upto=chance.choice([0, 40]))
    for log, count in ((run.events, 40), (run.events_of(1), chance.choice([0, 20]))):
        with log.open("ab") as file:
            file.writelines(hostile_line(chance) for _ in range(count))
    return run


def show(run: RunDir, chance: random.Random) -> Live:
    """Show a run in every way that there is."""
    live = read(run)
    health = examine(live.state, "alive", live.state.now + 1, live.plan, {0: (3, 1.0)})
    for page in PAGES:
        for width, height in ((120, 40), (80, 24), (60, 15)):
            view = View(page=page, focus=chance.randrange(1, 6))
            shown = Scene(live.state, live.plan or NO_PLAN, health, view, run.path, clock=live.state.now + 1)
            assert {strip.cell_length for strip in screen(shown, width, height)} == {width}
    recording = Recording(run)
    recording.seek(recording.last)
    recording.step(-3)
    for follow in (plain.follow, plain.follow_json):
        assert follow(run, io.StringIO(), child_exit=lambda: 0) in range(256)
    read_overview(run, live.state.now)
    return live


@seeds(12)
def test_records_that_nobody_writes_are_refused_or_shown(tmp_path: Path, seeds: range) -> None:
    refused = 0
    for seed in seeds:
        chance, began = random.Random(seed), time.process_time()
        refused += show(hostile_run(tmp_path / str(seed), chance), chance).state.unreadable
        assert time.process_time() - began < SECONDS, seed
    assert refused > len(seeds), "some are refused"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"k":"frame"', '"k":"frame","phases":{"data":9223372036854775807},"x":1'),
        ('"rank":0,"world":1', '"rank":0,"world":16384'),
        ('"rank":0,"world":1', '"rank":0,"world":2147483648'),
        ('"exit":0', '"exit":300'),
    ],
)
def test_numbers_as_large_as_can_be_are_bounded(tmp_path: Path, old: str, new: str) -> None:
    run = make(tmp_path)
    text = run.events.read_text()
    assert old in text
    run.events.write_text(text.replace(old, new))
    began = time.process_time()
    show(run, random.Random(0))
    assert time.process_time() - began < SECONDS
