"""With snapshots a log shows what it shows without them; what is no snapshot of this log, by this code, is ignored."""

from __future__ import annotations

import io
import os
import pickle
import zlib
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from hookflow.events.log import Tail
from hookflow.events.rundir import RunDir
from hookflow.monitor import feed, plain, snapshots
from hookflow.monitor.feed import Live, Recording
from hookflow.monitor.snapshots import HEAD, RUNS, Snapshots
from tests.monitor.conftest import read
from tests.monitor.fake_run import make
from tests.monitor.test_feed import drawn


@pytest.fixture(params=[1])
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> RunDir:
    """A run of so many ranks whose logs were read, with a snapshot every few lines."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(feed, "STRIDE", 1 << 13)
    monkeypatch.setattr(Tail, "chunk", 1 << 13)
    run = make(tmp_path / "runs", world=request.param)
    Live(run, kept=True).read_all()
    return run


def file_of(run: RunDir) -> Path:
    (path,) = snapshots.folder().iterdir()
    return path


def shown(live: Live, run: RunDir) -> list[str]:
    live.read_all()
    return drawn(live.state, Recording(run))


@pytest.mark.parametrize("kept", [1, 3], indirect=True)
def test_a_reader_goes_on_from_the_last_snapshot(kept: RunDir) -> None:
    places = Snapshots(kept.events).places
    assert len(places) > 4
    again = Live(kept, kept=True)
    assert again._logs.first.at == places[-1]
    assert again.unread[0] < again.unread[1] / 4
    assert shown(again, kept) == shown(read(kept), kept)
    assert Snapshots(kept.events).places == places


@pytest.mark.parametrize("kept", [2], indirect=True)
def test_a_snapshot_fits_the_logs_of_all_ranks(kept: RunDir) -> None:
    other = kept.events_of(1)
    other.write_text(other.read_text().replace('"cost":', '"cost":1'))
    again = Live(kept, kept=True)
    assert again.unread[0] == again.unread[1]
    assert shown(again, kept) == shown(read(kept), kept)


@pytest.mark.parametrize("follow", [plain.follow, plain.follow_json])
def test_lines_keep_snapshots_of_the_run_that_they_start(
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
        screens.append(drawn(recording.state, recording))
    file_of(kept).unlink()
    without = Recording(kept)
    for moment, screen in zip((middle, recording.last, recording.first, middle), screens, strict=True):
        without.seek(moment)
        assert drawn(without.state, without) == screen


def boom(path: Path) -> None:
    """Put in what does harm when it is unpickled, with the checksum of another log."""

    class Harm:
        def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
            return os.mkdir, (str(path.with_name("harm")),)

    data = zlib.compress(pickle.dumps((Harm(), 0, 0, "")))
    path.write_bytes(snapshots._code() + HEAD.pack(20_000, len(data), sha256(data).digest()) + data)


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
    "sizes beyond the file": lambda path: path.write_bytes(snapshots._code() + HEAD.pack(9, 1 << 62, bytes(32))),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_no_snapshot_is_ignored(kept: RunDir, damage: str) -> None:
    expected, path = shown(read(kept), kept), file_of(kept)
    DAMAGES[damage](path)
    assert shown(Live(kept, kept=True), kept) == expected
    recording = Recording(kept)
    recording.seek(recording.last)
    assert drawn(recording.state, recording) == expected
    assert not path.with_name("harm").exists()
    assert shown(Live(kept, kept=True), kept) == expected, "with what was written in its place"


def test_snapshots_of_another_log_are_ignored(kept: RunDir) -> None:
    lines = kept.events.read_text().replace('"hooks":{"', '"hooks":{ "').splitlines(keepends=True)
    kept.events.write_text("".join(line.replace('"cost":', '"cost":1') for line in lines))
    live = Live(kept, kept=True)
    assert live.unread[0] == live.unread[1]
    assert shown(live, kept) == shown(read(kept), kept)


def test_snapshots_of_few_runs_are_kept(kept: RunDir, tmp_path: Path) -> None:
    for k in range(RUNS + 2):
        Live(make(tmp_path / f"runs{k}"), kept=True).read_all()
    assert len([*snapshots.folder().iterdir()]) == RUNS
    assert Snapshots(kept.events).places == []


def test_a_folder_that_cannot_be_written_harms_nothing(kept: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(kept.events))
    assert shown(Live(kept, kept=True), kept) == shown(read(kept), kept)
