"""A recording of a run: its logs, folded up to any moment, and a player that moves through them."""

import re
import sys
import time
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO, NamedTuple

from hookflow.events.log import iter_whole_lines
from hookflow.events.reading import open_regular, read_record
from hookflow.events.records import Record
from hookflow.events.rundir import RunDir
from hookflow.graph.plan import Plan
from hookflow.monitor.feed import read_plan
from hookflow.monitor.journal import Moment, Timeline
from hookflow.monitor.log_reader import SHARED_STARTS, find_rank_logs
from hookflow.monitor.ranks import NO_PLAN
from hookflow.monitor.snapshots import (
    SNAPSHOT_STRIDE_BYTES,
    LogPosition,
    Snapshot,
    Snapshots,
    bytes_before,
    pack_snapshot,
    unpack_snapshot,
)
from hookflow.monitor.state import RunState

MARKED_KINDS = frozenset({"run", "epoch", "metrics", "checkpoint", "error", "message"})
"""The kinds of records of which a timeline shows some."""


class LogLineIndex(NamedTuple):
    """A line of a log.

    It has its time, which never falls, its rank, the byte that it starts at, its kind and
    iteration.
    """

    time: float
    rank: int
    start: int
    kind: str
    it: int


class Recording:
    """Finished logs, folded up to any moment.

    Only the places of their lines are held, and a few states on the way. A place is the number of
    lines before it, of all ranks together.
    """

    KEPT, LINES = 256, 500
    """States held on the way, at most, and lines of rank 0 between two, at least.

    With them, going back need not begin at the beginning. They are kept as snapshots, too.
    """

    def __init__(self, run: RunDir) -> None:
        self._paths = {0: run.events}
        for log in find_rank_logs(run):
            if not log.problem:
                self._paths[log.rank] = log.path
        lines: list[LogLineIndex] = []
        for rank, path in self._paths.items():
            lines += _index_lines(rank, path)
        lines.sort()
        self._index(lines)
        self.first = self._times[0] if self._times else 0.0
        self.last = self._times[-1] if self._times else 0.0
        num_attempts = max(len(self._begins), 1)
        self._plans = [read_plan(run, attempt) for attempt in range(1, num_attempts + 1)]
        self._sizes = {rank: path.stat().st_size for rank, path in self._paths.items()}
        lines_between = max(len(self._places[0]) // self.KEPT, self.LINES)
        self._stops = frozenset(self._places[0][::lines_between])
        self._kept: dict[int, bytes | int] = {0: pack_snapshot(Snapshot(RunState()))}
        """By place: a packed state, or the bytes of the log that a snapshot has folded.

        Packing a state is ten times as quick as copying it.
        """
        # Where there are several ranks, `RunLogReader` leaves out frames, and so has other
        # snapshots.
        reader = "" if len(self._paths) == 1 else "replay"
        self._snapshots = Snapshots(run.events, reader)
        for num_bytes in self._snapshots.places:
            self._kept[self._find_place_after(0, num_bytes)] = num_bytes
        self.state = RunState()
        self._at = 0

    def _index(self, lines: list[LogLineIndex]) -> None:
        self._times = array("d", [line.time for line in lines])
        self._its = array("q", [line.it for line in lines])
        self._ranks = array("H", [line.rank for line in lines])
        self._starts = array("Q", [line.start for line in lines])
        self._frames: list[int] = []
        self._begins: list[int] = []
        self._marked: list[int] = []
        self._places = {rank: array("Q") for rank in self._paths}
        for place, line in enumerate(lines):
            self._places[line.rank].append(place)
            if line.rank != 0:
                continue
            if line.kind == "frame":
                self._frames.append(place)
            if line.kind == "run":
                self._begins.append(place)
            if line.kind in MARKED_KINDS:
                self._marked.append(place)

    def _find_place_after(self, rank: int, num_bytes: int) -> int:
        """Return the place of the first line of a rank from a byte of its log on.

        It is behind all lines if there is none.
        """
        places = self._places[rank]
        first = bisect_left(places, num_bytes, key=lambda place: self._starts[place])
        if first < len(places):
            return places[first]
        return len(self._times)

    @property
    def plan(self) -> Plan | None:
        """The plan of the attempt that is shown."""
        attempt = bisect_left(self._begins, self._at)
        return self._plans[max(attempt - 1, 0)]

    @cached_property
    def timeline(self) -> Timeline:
        """The attempts, epochs, validations, checkpoints, warnings and errors of rank 0."""
        moments = []
        with open_regular(self._paths[0]) as file:
            for place in self._marked:
                record = self._read(file, place)
                if record is None:
                    continue
                kind = record["level"] if record["k"] == "message" else record["k"]
                if kind != "info":
                    moments.append(Moment(self._times[place], kind))
        attempts = []
        for begin, end in self._attempt_bounds():
            attempts.append((self._times[begin], self._times[end - 1]))
        return Timeline(moments, attempts or [(self.first, self.last)])

    def _attempt_bounds(self) -> list[tuple[int, int]]:
        """Return where each attempt begins and ends, in places."""
        return [*pairwise([*self._begins, len(self._times)])]

    def find_moment(self, it: int) -> float | None:
        """Return when `it` iterations were done, in the last attempt that did them.

        It is None where none did.
        """
        for begin, end in reversed(self._attempt_bounds()):
            frames = self._frames[bisect_left(self._frames, begin) : bisect_left(self._frames, end)]
            first = bisect_left(frames, it, key=lambda place: self._its[place])
            if self._its[begin] <= it and first < len(frames):
                return self._times[frames[first]]
        return None

    def _read(self, file: BinaryIO, place: int) -> Record | None:
        file.seek(self._starts[place])
        try:
            return read_record(file.readline())
        except ValueError:  # only its beginning was looked at before
            return None

    def seek(self, t: float) -> None:
        """Fold up to and including moment `t`, forwards or back."""
        self._go(bisect_right(self._times, t))

    def step(self, frames: int) -> float:
        """Go so many frames on or back, and return the moment that is reached."""
        if self._frames:
            here = bisect_left(self._frames, self._at) - 1
            there = min(max(here + frames, 0), len(self._frames) - 1)
            self._go(self._frames[there] + 1)
        if self._at == 0:
            return self.first
        return self._times[self._at - 1]

    def _go(self, target: int) -> None:
        """Fold the lines before a place."""
        self._begin_near(target)
        with ExitStack() as open_files:
            files = {
                rank: open_files.enter_context(open_regular(path))
                for rank, path in self._paths.items()
            }
            while self._at < target:
                rank = self._ranks[self._at]
                record = self._read(files[rank], self._at)
                if record is not None:
                    self.state.apply(record, rank, self.plan or NO_PLAN)
                self._at += 1
                if self._at in self._stops and self._at not in self._kept:
                    self._keep()

    def _begin_near(self, target: int) -> None:
        """Take the nearest state that is held, or kept, unless the present one is nearer."""
        earlier = [place for place in self._kept if place <= target]
        for place in sorted(earlier, reverse=True):
            if place <= self._at <= target:
                return
            state = self._state_at(place)
            if state is not None:
                self.state = state
                self._at = place
                return
            del self._kept[place]  # it does not fit the log

    def _state_at(self, place: int) -> RunState | None:
        """Return the state that is kept for a place.

        It is without the commands that had no answer then.
        """
        kept = self._kept[place]
        if isinstance(kept, bytes):
            snapshot: Snapshot | None = unpack_snapshot(kept)
        else:
            snapshot = self._snapshots.load(kept)
            if snapshot is not None and snapshot.others != self._find_other_positions(place):
                return None
        if snapshot is None:
            return None
        state = snapshot.state
        state.requests = {id_: request for id_, request in state.requests.items() if request.answer}
        return state

    def _keep(self) -> None:
        attempt = bisect_left(self._begins, self._at)
        snapshot = Snapshot(self.state, attempt, others=self._find_other_positions(self._at))
        self._kept[self._at] = pack_snapshot(snapshot)
        start = self._starts[self._at]
        if start >= SNAPSHOT_STRIDE_BYTES:
            self._snapshots.add(start, snapshot)

    def _find_other_positions(self, at: int) -> dict[int, LogPosition]:
        """Return how much of the logs of other ranks is folded at a place."""
        positions = {}
        for rank, path in self._paths.items():
            if rank == 0:
                continue
            places = self._places[rank]
            following = bisect_left(places, at)
            num_bytes = self._sizes[rank]
            if following < len(places):
                num_bytes = self._starts[places[following]]
            positions[rank] = LogPosition(path.name, num_bytes, bytes_before(path, num_bytes))
        return positions


_RECORD_START_PATTERN = re.compile(rb'\{"k":"([a-z]+)","t":(\d{1,10}(?:\.\d+)?),"it":(\d{1,18}),')
"""How a record begins.

A record is read whole where it begins otherwise, or begins an attempt, and else once it is shown.
"""


def _index_lines(rank: int, path: Path) -> Iterator[LogLineIndex]:
    """Yield each whole line of a log that is a record, or begins as one.

    Of other ranks it leaves out what rank 0 shows.
    """
    latest = 0.0
    with open_regular(path) as file:
        for start, line in iter_whole_lines(file):
            if rank and line.startswith(SHARED_STARTS):
                continue
            stamp = None
            if line.endswith(b"}\n"):
                stamp = _RECORD_START_PATTERN.match(line)
            if stamp is not None and stamp[1] != b"run":
                latest = max(latest, float(stamp[2]))
                yield LogLineIndex(
                    latest, rank, start, sys.intern(stamp[1].decode()), int(stamp[3])
                )
                continue
            with suppress(ValueError):
                record = read_record(line)
                latest = max(latest, record["t"])
                yield LogLineIndex(latest, rank, start, record["k"], record.get("it", 0))


MIN_SPEED, MAX_SPEED = 0.25, 256.0
"""Bounds of the speed of a replay, which keys halve and double."""


class Player:
    """Plays a recording: holds the moment that is shown."""

    def __init__(self, recording: Recording, speed: float) -> None:
        self.moment = recording.first
        self.recording = recording
        self.playing = True
        self.speed = speed
        self._before = time.monotonic()

    def restart_clock(self) -> None:
        """Let no time have passed since the last tick."""
        self._before = time.monotonic()

    def tick(self) -> None:
        """Move on by the time that has passed."""
        passed = time.monotonic() - self._before
        self._before += passed
        if self.playing:
            self._show(self.moment + passed * self.speed)
            self.playing = self.moment < self.recording.last

    def toggle(self) -> None:
        """Play, or pause; at the end, play from the start."""
        if self.moment >= self.recording.last:
            self._show(self.recording.first)
        self.playing = not self.playing

    def change_speed(self, by: float) -> None:
        """Multiply the speed; a speed beyond the bounds that the user has asked for stays."""
        low = min(self.speed, MIN_SPEED)
        high = max(self.speed, MAX_SPEED)
        self.speed = min(max(self.speed * by, low), high)

    def step(self, frames: int) -> None:
        """Pause, and go so many frames on or back."""
        self.playing = False
        self.moment = self.recording.step(frames)

    def skip(self, share: float) -> None:
        """Go on, or back, by a share of the recording."""
        self._show(self.moment + share * (self.recording.last - self.recording.first))

    def go_to(self, moment: float) -> None:
        """Pause at a moment, in seconds since 1970."""
        self.playing = False
        self._show(moment)

    def go_to_iteration(self, it: int) -> bool:
        """Pause where so many iterations were done; return whether the recording has that."""
        moment = self.recording.find_moment(it)
        if moment is None:
            return False
        self.go_to(moment)
        return True

    def _show(self, moment: float) -> None:
        self.moment = min(max(moment, self.recording.first), self.recording.last)
        self.recording.seek(self.moment)
