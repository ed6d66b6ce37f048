"""The feed of records: the tail of a live run, or a recording at any speed."""

import os
import re
import sys
import time
import weakref
from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, suppress
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

from hookflow.events.log import Tail, event_log, whole_lines
from hookflow.events.reading import open_regular, read_command, read_record, read_regular
from hookflow.events.records import WORLD, CommandRecord, Record
from hookflow.events.run_lock import exit_code
from hookflow.events.rundir import RunDir
from hookflow.graph.plan import Plan
from hookflow.monitor.journal import Moment, Timeline
from hookflow.monitor.ranks import NO_PLAN
from hookflow.monitor.snapshots import STRIDE, Place, Snapshot, Snapshots, before, packed, unpacked
from hookflow.monitor.state import RunState

_KINDS = b"scalars metrics epoch checkpoint image text histogram trace ack throttle"
SHARED = tuple(b'{"k":"%s"' % kind for kind in _KINDS.split())
"""How lines begin that other ranks write too, and that are shown of rank 0 alone."""

FRAMES, SCALARS = b'{"k":"frame"', b'{"k":"scalars"'
RECENT = 1 << 19
"""Bytes at the end of a log, when it is first looked at, of which a `Part` has all: some minutes."""

_NUMBER = re.compile(r"events\.rank(\d{1,9})\.jsonl")


def logs_of_others(run: RunDir, known: Collection[int] = ()) -> Iterator[tuple[int, Path, str]]:
    """Yield each rank beside 0, and those known, that has a log by now; its path; and why it cannot be read."""
    paths = run.path.glob("events.rank*.jsonl")
    for rank, path in sorted((int(match[1]), path) for path in paths if (match := _NUMBER.fullmatch(path.name))):
        if 0 < rank < WORLD and rank not in known:
            why = ""
            try:
                open_regular(path).close()
            except OSError as error:
                why = f"{path.name} cannot be read: {error.strerror}"
            yield rank, path, why


class Part(Tail[Record]):
    """Reads on in a log without lines that begin as `never` has it; before the byte `recent`, also as `old` has it."""

    def __init__(self, path: Path, old: tuple[bytes, ...], never: tuple[bytes, ...] = ()) -> None:
        super().__init__(path, self._parse_line)
        self.recent = path.stat().st_size - RECENT if path.exists() else 0
        self._old, self._never = old, never

    def _parse_line(self, line: bytes) -> Record | None:
        left_out = self._old + self._never if self.at <= self.recent else self._never
        return None if line.startswith(left_out) else read_record(line)


def other(path: Path) -> Part:
    """Return a reader of the log of another rank, without old frames and what rank 0 alone shows."""
    tail = Part(path, (FRAMES,), SHARED)
    tail.chunk = 1 << 17
    return tail


class Logs:
    """Reads on in the logs of all ranks; a log that comes late, or lags behind, harms nothing."""

    def __init__(self, run: RunDir, *, newest: bool = False) -> None:
        self._run = run
        self.first = Part(run.events, (FRAMES, SCALARS)) if newest else event_log(run.events)
        self._others: dict[int, Part] = {}
        self._waiting: dict[int, deque[Record]] = {0: deque()}
        self._known: set[int] = set()
        self.refused: list[str] = []
        """The logs of ranks that cannot be read, in words; who has heard them takes them out."""

    @property
    def tails(self) -> dict[int, Tail[Record]]:
        return {0: self.first, **self._others}

    def snapshot(self, state: RunState, attempt: int) -> Snapshot | None:
        """Return the position that the state is of; None where rank 0 has records that are not yielded yet."""
        if self._waiting[0]:
            return None
        places = {}
        for rank, tail in self._others.items():
            path, waiting = self._run.events_of(rank), [*self._waiting[rank]]
            last = before(path, tail.at)
            places[rank] = Place(path.name, tail.at, last, tail.recent, tail.passed_over, tail.complaint, waiting)
        return Snapshot(state, attempt, self.first.passed_over, self.first.complaint, places)

    def go_on(self, at: int, snapshot: Snapshot) -> None:
        """Go to the position of a snapshot, after so many bytes of the log of rank 0."""
        self.first.at, self.first.passed_over, self.first.complaint = at, snapshot.passed_over, snapshot.complaint
        for rank, place in snapshot.others.items():
            tail = self._others[rank] = other(self._run.events_of(rank))
            tail.at, tail.recent, tail.passed_over, tail.complaint = place.at, *place[3:6]
            self._waiting[rank] = deque(place.waiting)
        self._known.update(snapshot.others)

    def read(self) -> Iterator[tuple[int, Record]]:
        """Yield what is new with the rank that has written it; of what is there, what is oldest first."""
        for rank, path, why in logs_of_others(self._run, self._known):
            self._known.add(rank)
            if why:
                self.refused.append(why)
            else:
                self._others[rank], self._waiting[rank] = other(path), deque()
        more = dict(self.tails)  # those that may have more than was read
        while True:
            for rank, tail in list(more.items()):
                while not self._waiting[rank] and rank in more:
                    self._waiting[rank].extend(tail.read())
                    if not tail.grew:
                        del more[rank]
            heads = [rank for rank, records in self._waiting.items() if records]
            if not heads:
                return
            rank = heads[0] if len(heads) == 1 else min(heads, key=lambda rank: self._waiting[rank][0]["t"])
            yield rank, self._waiting[rank].popleft()


UNREADABLE = Plan("unreadable", (), (), ())
"""Replaces an invalid plan, or one of an unknown version."""


def read_plan(run: RunDir, attempt: int | None = None) -> Plan | None:
    """Return the plan of an attempt at the run, counted from 1, or of the latest; None while it is not written."""
    path = run.plan if attempt is None else run.plan_of(attempt)
    try:
        return Plan.from_json(read_regular(path))
    except OSError:
        return None
    except ValueError:
        return UNREADABLE


class Live:
    """Folds what a run appends to its logs.

    With `kept` it begins at the last snapshot of the state, so that it yields no records of before, and keeps more of
    them. With `newest` it leaves out all frames and scalars but those of the last minutes: a long log is open at once.
    """

    def __init__(self, run: RunDir, *, kept: bool = False, newest: bool = False) -> None:
        self.state = RunState()
        self.plan: Plan | None = None
        self._attempt = 0
        self._run = run
        self._newest = newest
        self._logs = Logs(run, newest=newest)
        self._commands = Tail[CommandRecord](run.commands, read_command)
        self._folder: int | None = None  # held open, to find it again after it was moved
        with suppress(OSError):
            self._folder = os.open(run.path, os.O_RDONLY)
            weakref.finalize(self, os.close, self._folder)
        self._snapshots = Snapshots(run.events) if kept else None
        self._kept = 0
        if self._snapshots:  # one after each look, between which the log was not folded up to the end of a line
            self._logs.first.chunk = min(STRIDE // 8, Tail.chunk)
            if last := self._snapshots.newest():
                self._logs.go_on(*last)
                self._kept, snapshot = last
                self.state, self._attempt = snapshot.state, snapshot.attempt

    def moved(self) -> RunDir | None:
        """Return the run where its directory was moved to; None if it was not, or the system does not say."""
        if self._folder is not None and not self._run.path.exists():
            with suppress(OSError):
                path = Path(f"/proc/self/fd/{self._folder}").readlink()
                return RunDir(path) if os.path.samestat(path.stat(), os.fstat(self._folder)) else None
        return None

    def poll(self, budget: float = 0.05) -> bool:
        """Fold what is new, for about `budget` seconds; return whether there may be more than that."""
        until = time.monotonic() + budget
        return any(time.monotonic() > until for _ in self.records())

    @property
    def unread(self) -> tuple[int, int]:
        """The bytes of the logs that are still to be folded, and of all of the logs."""
        tails = {self._run.events_of(rank): tail for rank, tail in self._logs.tails.items()}
        logs = [(path.stat().st_size, tail.at) for path, tail in tails.items() if path.exists()]
        return sum(max(size - at, 0) for size, at in logs), sum(size for size, _ in logs)

    def read_all(self) -> None:
        """Fold everything up to the present end of the logs."""
        while self.poll():
            pass

    def records(self) -> Iterator[tuple[int, Record]]:
        """Fold what is new record by record; yield the rank and the record once it is folded."""
        if self.plan is None:
            self._read_plan(self._attempt or 1)
        for command in self._commands.read():
            self.state.apply_command(command)
        for rank, record in self._logs.read():
            if self._newest and record["k"] == "frame" and not self.state.frames:  # what was before is not known
                self.state.histories.again(record["it"] - record["iters"][0])
            self.state.apply(record, rank, self.plan or NO_PLAN)
            if rank == 0 and record["k"] == "run":
                self._attempt += 1
                self._read_plan(self._attempt)
            if self._snapshots and self._logs.first.at - self._kept >= STRIDE // 2:
                self._keep(self._snapshots)
            yield rank, record
        while self._logs.refused:
            self.state.warn(self._logs.refused.pop())
        tails: list[Tail[Any]] = [*self._logs.tails.values(), self._commands]
        self.state.unreadable = sum(tail.passed_over for tail in tails)
        self.state.complaint = next((tail.complaint for tail in tails if tail.complaint), "")

    def _keep(self, snapshots: Snapshots) -> None:
        with suppress(OSError):
            if snapshot := self._logs.snapshot(self.state, self._attempt):
                self._kept = self._logs.first.at
                snapshots.add(self._kept, snapshot)

    def _read_plan(self, attempt: int) -> None:
        self.plan = read_plan(self._run, attempt)
        if self.plan is UNREADABLE and self._attempt:  # once, and not before the first record has a time
            self.state.warn("plan.json cannot be read: firings have no names")


MARKED = frozenset({"run", "epoch", "metrics", "checkpoint", "error", "message"})
"""The kinds of records of which a timeline shows some."""


class Recording:
    """Finished logs, folded up to any moment. Only the places of their lines are held, and a few states on the way."""

    KEPT, LINES = 256, 500
    """States held on the way, at most, and lines of rank 0 between two, at least: so that going back need not begin at
    the beginning. They are kept as snapshots, too."""

    def __init__(self, run: RunDir) -> None:
        self._paths = {0: run.events} | {rank: path for rank, path, why in logs_of_others(run) if not why}
        lines = sorted(line for rank, path in self._paths.items() for line in _lines(rank, path))
        self._times = array("d", [t for t, *_ in lines])
        self._its = array("q", [it for *_, it in lines])
        self.first, self.last = (self._times[0], self._times[-1]) if self._times else (0.0, 0.0)
        self._ranks = array("H", [rank for _, rank, *_ in lines])
        self._starts = array("Q", [start for _, _, start, *_ in lines])
        self._frames = [at for at, (_, rank, _, kind, _) in enumerate(lines) if rank == 0 and kind == "frame"]
        self._begins = [at for at, (_, rank, _, kind, _) in enumerate(lines) if rank == 0 and kind == "run"]
        self._marked = [at for at, (_, rank, _, kind, _) in enumerate(lines) if rank == 0 and kind in MARKED]
        self._plans = [read_plan(run, attempt) for attempt in range(1, max(len(self._begins), 1) + 1)]
        self._of = {rank: array("Q") for rank in self._paths}  # the places of the lines of each rank
        for at, rank in enumerate(self._ranks):
            self._of[rank].append(at)
        self._sizes = {rank: path.stat().st_size for rank, path in self._paths.items()}
        self._stops = frozenset(self._of[0][:: max(len(self._of[0]) // self.KEPT, self.LINES)])
        self._kept: dict[int, bytes | int] = {0: packed(Snapshot(RunState()))}  # ten times as quick as copies
        self._snapshots = Snapshots(run.events, "" if len(self._paths) == 1 else "replay")  # `Logs` leaves out frames
        for bytes_ in self._snapshots.places:
            first = bisect_left(self._of[0], bytes_, key=lambda at: self._starts[at])
            self._kept[self._of[0][first] if first < len(self._of[0]) else len(lines)] = bytes_
        self.state = RunState()
        self._at = 0

    @property
    def plan(self) -> Plan | None:
        """The plan of the attempt that is shown."""
        return self._plans[max(bisect_left(self._begins, self._at) - 1, 0)]

    @cached_property
    def timeline(self) -> Timeline:
        """The attempts, epochs, validations, checkpoints, warnings and errors of rank 0."""
        with open_regular(self._paths[0]) as file:
            records = [(self._times[at], self._read(file, at)) for at in self._marked]
        kinds = [(t, record["level"] if record["k"] == "message" else record["k"]) for t, record in records if record]
        bounds = pairwise([*self._begins, len(self._times)])
        attempts = [(self._times[begin], self._times[end - 1]) for begin, end in bounds]
        return Timeline([Moment(t, kind) for t, kind in kinds if kind != "info"], attempts or [(self.first, self.last)])

    def moment_of(self, it: int) -> float | None:
        """Return when `it` iterations were done, in the last attempt that did them; None where none did."""
        for begin, end in reversed([*pairwise([*self._begins, len(self._times)])]):
            frames = self._frames[bisect_left(self._frames, begin) : bisect_left(self._frames, end)]
            place = bisect_left(frames, it, key=lambda at: self._its[at])
            if self._its[begin] <= it and place < len(frames):
                return self._times[frames[place]]
        return None

    def _read(self, file: BinaryIO, at: int) -> Record | None:
        file.seek(self._starts[at])
        try:
            return read_record(file.readline())
        except ValueError:  # only its beginning was looked at before
            return None

    def seek(self, t: float) -> None:
        """Fold up to and including moment `t`, forwards or back."""
        self._go(bisect_right(self._times, t))

    def step(self, frames: int) -> float:
        """Go so many frames on or back, and return the moment that is reached."""
        here = bisect_left(self._frames, self._at)
        there = min(max(here - 1 + frames, 0), len(self._frames) - 1)
        if self._frames:
            self._go(self._frames[there] + 1)
        return self._times[self._at - 1] if self._at else self.first

    def _go(self, target: int) -> None:
        self._begin_near(target)
        with ExitStack() as open_files:
            files = {rank: open_files.enter_context(open_regular(path)) for rank, path in self._paths.items()}
            while self._at < target:
                rank = self._ranks[self._at]
                if record := self._read(files[rank], self._at):
                    self.state.apply(record, rank, self.plan or NO_PLAN)
                self._at += 1
                if self._at in self._stops and self._at not in self._kept:
                    self._keep()

    def _begin_near(self, target: int) -> None:
        """Take the nearest state that is held, or kept, unless the present one is nearer."""
        for at in sorted((at for at in self._kept if at <= target), reverse=True):
            if at <= self._at <= target:
                return
            held = self._kept[at]
            snapshot = unpacked(held) if isinstance(held, bytes) else self._snapshots.load(held)
            if snapshot and (isinstance(held, bytes) or snapshot.others == self._others(at)):
                self.state, self._at = snapshot.state, at
                self.state.requests = {id_: each for id_, each in self.state.requests.items() if each.answer}
                return
            del self._kept[at]  # it does not fit the log

    def _keep(self) -> None:
        snapshot = Snapshot(self.state, bisect_left(self._begins, self._at), others=self._others(self._at))
        self._kept[self._at] = packed(snapshot)
        if (at := self._starts[self._at]) >= STRIDE:
            self._snapshots.add(at, snapshot)

    def _others(self, at: int) -> dict[int, Place]:
        """Return how much of the logs of other ranks is folded, up to a line of rank 0."""
        result = {}
        for rank, path in self._paths.items():
            lines = self._of[rank]
            if rank:
                following = bisect_left(lines, at)
                bytes_ = self._starts[lines[following]] if following < len(lines) else self._sizes[rank]
                result[rank] = Place(path.name, bytes_, before(path, bytes_), 0, 0, "", ())
        return result


_STAMP = re.compile(rb'\{"k":"([a-z]+)","t":(\d{1,10}(?:\.\d+)?),"it":(\d{1,18}),')
"""How a record begins; it is read whole where it begins otherwise, or begins an attempt, and else once it is shown."""


def _lines(rank: int, path: Path) -> Iterator[tuple[float, int, int, str, int]]:
    """Yield of each whole line its time (never falling), its rank, where it starts, its kind and its iteration."""
    latest = 0.0
    with open_regular(path) as file:
        for start, line in whole_lines(file):
            if rank and line.startswith(SHARED):
                continue
            stamp = _STAMP.match(line) if line.endswith(b"}\n") else None
            if stamp and stamp[1] != b"run":
                latest = max(latest, float(stamp[2]))
                yield latest, rank, start, sys.intern(stamp[1].decode()), int(stamp[3])
            else:
                with suppress(ValueError):
                    record = read_record(line)
                    latest = max(latest, record["t"])
                    yield latest, rank, start, record["k"], record.get("it", 0)


SLOWEST, QUICKEST, FAR = 0.25, 256.0, 0.05
"""Bounds of the speed of a replay, which keys halve and double; the share of a recording that a long step takes."""


class Player:
    """Holds the moment that is shown."""

    def __init__(self, recording: Recording, speed: float) -> None:
        self.moment = recording.first
        self.recording, self._speed, self._playing = recording, speed, True
        self._before = time.monotonic()

    @property
    def badge(self) -> str:
        return f"REPLAY {self._speed:g}x {'▶' if self._playing else '‖'}"

    def restart_clock(self) -> None:
        """Let no time have passed since the last tick."""
        self._before = time.monotonic()

    def tick(self) -> None:
        """Move on by the time that has passed."""
        passed = time.monotonic() - self._before
        self._before += passed
        if self._playing:
            self._show(self.moment + passed * self._speed)
            self._playing = self.moment < self.recording.last

    def obey(self, action: str) -> str:
        """Do what a key of a replay is for; return why it cannot be done."""
        first, last, moment = self.recording.first, self.recording.last, None
        match action.split():
            case "moment", t:
                moment = float(t)
            case "iteration", it:
                if (moment := self.recording.moment_of(int(it))) is None:
                    return f"iteration {it} is not in this recording"
            case ["first" | "last" as end]:
                moment = first if end == "first" else last
            case ["back" | "on" as way]:
                self._playing = False
                self.moment = self.recording.step(-1 if way == "back" else 1)
            case "far", way:
                self._show(self.moment + FAR * (last - first) * (-1 if way == "back" else 1))
            case ["play"]:
                if self.moment >= last:
                    self._show(first)
                self._playing = not self._playing
            case ["slower"]:
                self._speed = max(self._speed / 2, min(self._speed, SLOWEST))
            case ["faster"]:
                self._speed = min(self._speed * 2, max(self._speed, QUICKEST))
        if moment is not None:
            self._playing = False
            self._show(moment)
        return ""

    def _show(self, moment: float) -> None:
        self.moment = min(max(moment, self.recording.first), self.recording.last)
        self.recording.seek(self.moment)


PERIOD, LOST = 0.25, 1
"""Seconds between looks at the log; the exit code for a run that left no end record, unless a signal killed a child."""


def follow_records(
    run: RunDir,
    live: Live,
    tell: Callable[[Record], None],
    child_exit: Callable[[], int | None] | None = None,
    look: Callable[[bool], None] = lambda over: None,
) -> int:
    """Give every record of rank 0 to `tell`, once it is folded, until the run is over; return the exit code.

    `look` is called before each look at the log; its argument is true at the last one.
    """
    while True:
        code = child_exit() if child_exit is not None else None
        over = code is not None if child_exit else _over(run, live)  # before the last look, so that nothing comes after
        look(over)
        for rank, record in live.records():
            if rank == 0:
                tell(record)
        if over:
            end = (live.state.refused if child_exit else None) or live.state.end
            return int(end["exit"]) if end else exit_code(code or LOST)
        time.sleep(PERIOD)


def _over(run: RunDir, live: Live) -> bool:
    """Say whether nothing more will come. The end of an earlier attempt is not the end of the one that goes on."""
    if run.life() in ("gone", "missing"):
        return True
    end = live.state.refused or live.state.end
    return end is not None and end["t"] >= run.describe().get("process_started", 0.0)
