"""Live and replay are the same fold, however a log was torn, also with snapshots;
and a log is only data.
"""

import io
import json
import os
import pickle
import random
import time
import zlib
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import pytest

from hookflow.events.log import TailReader
from hookflow.events.rundir import RunDir
from hookflow.monitor import feed, log_reader, plain, snapshots
from hookflow.monitor import recording as recording_module
from hookflow.monitor.app import MonitorApp
from hookflow.monitor.feed import LogFollower
from hookflow.monitor.health import assess_health
from hookflow.monitor.hook_costs import compute_binding_cost
from hookflow.monitor.metric_lines import gather_metrics
from hookflow.monitor.ranks import NO_PLAN
from hookflow.monitor.recording import Recording
from hookflow.monitor.snapshots import MAX_KEPT_RUNS, SNAPSHOT_HEADER, Snapshots
from hookflow.monitor.state import RunState
from hookflow.monitor.summary import read_run_summary
from hookflow.monitor.throughput import Throughput
from tests.monitor.conftest import read
from tests.monitor.fake_run import append, end, make
from tests.monitor.shown import LOW, NORMAL, WIDE
from tests.monitor.shown import shown as screen_of
from tests.support.corruption import seeds
from tests.support.random_records import hostile_line


def told(state: RunState, recording: Recording) -> list[str]:
    """Return what the pages tell of a state: its health, its log, its metrics,
    the costs of its hooks, its ranks.
    """
    plan = recording.plan or NO_PLAN
    pace = Throughput.of(state)
    facts: list[object] = [
        assess_health(state, "alive", state.now, plan),
        state.it,
        state.ep,
        pace.iters_per_s,
    ]
    facts += [
        (entry.t, entry.kind, entry.source, entry.text, entry.detail) for entry in state.journal
    ]
    for name, lines in gather_metrics(state).items():
        facts += [(name, line.split, *line.series) for line in lines]
    for binding in plan.bindings:
        facts.append(compute_binding_cost(state, plan, pace, binding, whole_attempt=False))
        facts.append(compute_binding_cost(state, plan, pace, binding, whole_attempt=True))
    for rank, of_rank in state.ranks.of.items():
        facts.append((rank, of_rank.it, of_rank.now, of_rank.attempt.sums))
    facts += [state.gallery.keys, state.checkpoints, state.traces, state.disabled, state.throttled]
    facts += [(id_, request.text, request.answer) for id_, request in state.requests.items()]
    return [repr(fact) for fact in facts]


def test_the_newest_of_a_log_is_read_without_old_frames(
    whole: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_reader, "RECENT_BYTES", whole.events.stat().st_size // 2)
    monkeypatch.setattr(TailReader, "chunk", 1 << 13)
    newest, every = LogFollower(whole, newest=True), read(whole)
    newest.read_all()
    state = newest.state
    assert 0 < state.frames < 0.6 * every.state.frames
    assert (state.it, state.ep, state.end, state.checkpoints) == (
        every.state.it,
        every.state.ep,
        every.state.end,
        every.state.checkpoints,
    )
    assert state.metrics.by_name == every.state.metrics.by_name
    assert [(entry.t, entry.kind) for entry in state.journal] == [
        (e.t, e.kind) for e in every.state.journal
    ]
    assert Throughput.of(state).iters_per_s == pytest.approx(
        Throughput.of(every.state).iters_per_s, rel=0.1
    )
    assert state.histories.of("iteration").compute_means(state.it, 4)[0] is None, (
        "nothing is known of it yet"
    )


def test_replay_shows_at_every_moment_what_the_live_view_showed(whole: RunDir, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(Recording, "KEPT", 8)
    monkeypatch.setattr(Recording, "LINES", 20)
    recording = Recording(whole)
    shown = {}
    live = RunState()
    for place, line in enumerate(whole.events.read_text("utf-8").splitlines(), start=1):
        live.apply(json.loads(line), plan=recording.plan or NO_PLAN)
        if place % 15 == 0:
            shown[place] = told(live, recording)
    places = list(shown)
    random.Random(0).shuffle(places)
    for place in places:
        recording._go(place)
        assert told(recording.state, recording) == shown[place]


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


def test_a_replay_goes_on_where_it_was_after_it_was_suspended(
    whole: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now, time=time.time)
    monkeypatch.setattr(recording_module, "time", clock)
    app = MonitorApp(whole, replay=2.0)
    player = app.store.player
    assert player is not None
    began = player.moment
    clock.now += 0.25
    player.tick()
    assert player.moment == began + 0.5

    def stop() -> None:
        clock.now += 3600.0

    app.stop_and_continue(stop)
    clock.now += 0.25
    player.tick()
    assert player.moment == began + 1.0


def test_a_torn_line_costs_only_itself(tmp_path: Path) -> None:
    run = make(tmp_path, upto=20)
    lines = run.events.read_bytes().splitlines(keepends=True)
    run.events.write_bytes(
        b"".join([*lines[:10], lines[10][:40] + b"\n", b"\xff\x00garbage\n", b"[1]\n", *lines[11:]])
    )
    live = read(run)
    recording = Recording(run)
    recording.seek(recording.last)
    whole = sum(b'"frame"' in line for line in lines)
    assert live.state.frames == recording.state.frames == whole - (b'"frame"' in lines[10])
    assert told(live.state, recording) == told(recording.state, recording)
    run.plan.write_text("{")
    state = read(run).state
    assert [entry.t for entry in state.journal if "plan.json cannot be read" in entry.text] == [
        state.run["t"]
    ]


SECONDS = 60
KEYS = (
    "o",
    "enter",
    "escape",
    "2",
    "H",
    "3",
    "s",
    "4",
    "5",
    "enter",
    "escape",
    "6",
    "7",
    "i",
    "question_mark",
)
"""Keys that open every page and some of what they have."""


def hostile_run(root: Path, chance: random.Random) -> RunDir:
    """Return a run of two ranks whose logs go on with records that nobody writes."""
    run = make(root, upto=chance.choice([0, 40]))
    for log, count in ((run.events, 40), (run.find_events_path(1), chance.choice([0, 20]))):
        with log.open("ab") as file:
            file.writelines(hostile_line(chance) for _ in range(count))
    return run


def show(run: RunDir, chance: random.Random) -> LogFollower:
    """Show a run in every way that there is."""
    live = read(run)
    size = chance.choice([WIDE, NORMAL, LOW])
    assert screen_of(run, *KEYS, size=size)
    recording = Recording(run)
    recording.seek(recording.last)
    recording.step(-3)
    for follow in (plain.print_run, plain.print_records):
        assert follow(run, io.StringIO(), child_exit=lambda: 0) in range(256)
    read_run_summary(run, live.state.now)
    return live


@seeds(6, many=300)  # each opens every page: 3 seconds
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
        ('"rank":0,"world":1', '"rank":0,"world":2048'),
        ('"rank":0,"world":1', '"rank":0,"world":2147483648'),
        ('"exit":0', '"exit":300'),
    ],
)
def test_numbers_as_large_as_can_be_are_bounded(tmp_path: Path, old: str, new: str) -> None:
    run = make(tmp_path, upto=60)
    append(run, [end()])
    text = run.events.read_text()
    assert old in text
    run.events.write_text(text.replace(old, new))
    began = time.process_time()
    show(run, random.Random(0))
    assert time.process_time() - began < SECONDS


@pytest.fixture(params=[1])
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> RunDir:
    """A run of so many ranks whose logs were read, with a snapshot every few lines."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(feed, "SNAPSHOT_STRIDE_BYTES", 1 << 13)
    monkeypatch.setattr(recording_module, "SNAPSHOT_STRIDE_BYTES", 1 << 13)
    monkeypatch.setattr(TailReader, "chunk", 1 << 13)
    run = make(tmp_path / "runs", world=request.param, upto=90)
    LogFollower(run, kept=True).read_all()
    return run


def file_of(run: RunDir) -> Path:
    (path,) = snapshots.find_snapshot_folder().iterdir()
    return path


def read_on(live: LogFollower, run: RunDir) -> list[str]:
    live.read_all()
    return told(live.state, Recording(run))


@pytest.mark.parametrize("kept", [1, 3], indirect=True)
def test_a_reader_goes_on_from_the_last_snapshot(kept: RunDir) -> None:
    places = Snapshots(kept.events).places
    assert len(places) > 4
    again = LogFollower(kept, kept=True)
    assert again._logs.first.at == places[-1]
    assert again.unread[0] < again.unread[1] / 4
    assert read_on(again, kept) == read_on(read(kept), kept)
    assert Snapshots(kept.events).places == places


@pytest.mark.parametrize("kept", [1, 2], indirect=True)
def test_snapshots_that_do_not_fit_the_logs_of_all_ranks_are_ignored(kept: RunDir) -> None:
    other = max(kept.path.glob("events*.jsonl"))  # that of the last rank
    other.write_text(other.read_text().replace('"cost":', '"cost":1'))
    again = LogFollower(kept, kept=True)
    assert again.unread[0] == again.unread[1]
    assert read_on(again, kept) == read_on(read(kept), kept)


@pytest.mark.parametrize("follow", [plain.print_run, plain.print_records])
def test_lines_keep_their_snapshots(
    kept: RunDir, monkeypatch: pytest.MonkeyPatch, follow: Callable[..., int]
) -> None:
    file_of(kept).unlink()
    monkeypatch.setattr(plain, "count_attempts", lambda run: 0)
    follow(kept, io.StringIO(), child_exit=lambda: 0)
    assert len(Snapshots(kept.events).places) > 4


def test_a_recording_shows_at_every_moment_what_it_shows_without_snapshots(kept: RunDir) -> None:
    recording = Recording(kept)
    assert [*map(type, recording._kept.values())].count(int) == len(Snapshots(kept.events).places)
    middle = recording._times[len(recording._times) // 2]
    screens = []
    for moment in (middle, recording.last, recording.first, middle):
        recording.seek(moment)
        screens.append(told(recording.state, recording))
    file_of(kept).unlink()
    without = Recording(kept)
    for moment, shown in zip(
        (middle, recording.last, recording.first, middle), screens, strict=True
    ):
        without.seek(moment)
        assert told(without.state, without) == shown


@pytest.mark.parametrize("kept", [3], indirect=True)
def test_a_recording_of_several_ranks_has_its_own_snapshots(
    kept: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Recording, "LINES", 20)
    first = Recording(kept)
    first.seek(first.last)
    assert [*map(type, first._kept.values())].count(int) == 0
    places = Snapshots(kept.events, "replay").places
    assert len(places) > 4
    moments = [first.first + share * (first.last - first.first) for share in (0.9, 0.3, 1.0, 0.6)]
    applied = []
    for changed in (False, True):
        if changed:  # as where a rank has written more before these moments
            other = kept.find_events_path(1)
            other.write_text(other.read_text().replace('"cost":', '"cost":1'))
            first = Recording(kept)
        again = Recording(kept)
        assert [*map(type, again._kept.values())].count(int) == len(places)
        for moment in moments:
            first.seek(moment)
            again.seek(moment)
            assert told(again.state, again) == told(first.state, first)
        applied.append([*map(type, again._kept.values())].count(int))
    assert applied[0] == len(places) > applied[1], "what does not fit the logs is taken for none"


def boom(path: Path) -> None:
    """Put in what does harm when it is unpickled, with the checksum of another log."""

    class Harm:
        def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
            return os.mkdir, (str(path.with_name("harm")),)

    data = zlib.compress(pickle.dumps((Harm(), 0, 0, "")))
    path.write_bytes(
        snapshots._code() + SNAPSHOT_HEADER.pack(20_000, len(data), sha256(data).digest()) + data
    )


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    for at in range(100, len(data), 50):
        data[at] ^= 1
    path.write_bytes(data)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "torn": lambda path: path.write_bytes(path.read_bytes()[:-100]),
    "torn at its first": lambda path: path.write_bytes(path.read_bytes()[:60]),
    "empty": lambda path: path.write_bytes(b""),
    "flipped": flipped,
    "of other code": lambda path: path.write_bytes(b"x" * 32 + path.read_bytes()[32:]),
    "writable by others": lambda path: path.chmod(0o666),
    "forged": boom,
    "a pipe": lambda path: (path.unlink(), os.mkfifo(path)),
    "sizes beyond the file": lambda path: path.write_bytes(
        snapshots._code() + SNAPSHOT_HEADER.pack(9, 1 << 62, bytes(32))
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_no_snapshot_is_ignored(kept: RunDir, damage: str) -> None:
    expected, path = read_on(read(kept), kept), file_of(kept)
    DAMAGES[damage](path)
    assert read_on(LogFollower(kept, kept=True), kept) == expected
    recording = Recording(kept)
    recording.seek(recording.last)
    assert told(recording.state, recording) == expected
    assert not path.with_name("harm").exists()
    assert read_on(LogFollower(kept, kept=True), kept) == expected, (
        "with what was written in its place"
    )


def test_snapshots_are_of_few_runs_in_any_folder(
    kept: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for k in range(MAX_KEPT_RUNS + 2):
        LogFollower(make(tmp_path / f"runs{k}", upto=20), kept=True).read_all()
    assert len([*snapshots.find_snapshot_folder().iterdir()]) == MAX_KEPT_RUNS
    assert Snapshots(kept.events).places == []
    monkeypatch.setenv("XDG_CACHE_HOME", str(kept.events))
    assert read_on(LogFollower(kept, kept=True), kept) == read_on(read(kept), kept)
