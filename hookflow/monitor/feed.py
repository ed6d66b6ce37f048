"""The state of a run, folded from its logs as they grow."""

import os
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from hookflow.events.log import TailReader
from hookflow.events.reading import read_command, read_regular
from hookflow.events.records import CommandRecord, Record
from hookflow.events.run_lock import exit_code
from hookflow.events.rundir import RunDir
from hookflow.graph.plan import Plan
from hookflow.monitor.log_reader import EVERY_RECORD, NEWEST_RECORDS, RunLogReader
from hookflow.monitor.ranks import NO_PLAN
from hookflow.monitor.snapshots import (
    SNAPSHOT_STRIDE_BYTES,
    LogPosition,
    Snapshot,
    Snapshots,
    bytes_before,
)
from hookflow.monitor.state import RunState

UNREADABLE_PLAN = Plan("unreadable", (), (), ())
"""Replaces an invalid plan, or one of an unknown version."""


def read_plan(run: RunDir, attempt: int | None = None) -> Plan | None:
    """Return the plan of an attempt at the run, counted from 1, or of the latest.

    It is None while it is not written.
    """
    if attempt is None:
        path = run.plan
    else:
        path = run.find_plan_path(attempt)
    try:
        return Plan.from_json(read_regular(path))
    except OSError:
        return None
    except ValueError:
        return UNREADABLE_PLAN


class LogFollower:
    """Folds what a run appends to its logs.

    With `kept` it begins at the last snapshot of the state, so that it yields no records of before,
    and keeps more of them. With `newest` it leaves out all frames and scalars but those of the last
    minutes: a long log is open at once.
    """

    def __init__(self, run: RunDir, *, kept: bool = False, newest: bool = False) -> None:
        self.state = RunState()
        self.plan: Plan | None = None
        self._attempt = 0
        self._run = run
        self._newest = newest
        self._logs = RunLogReader(run, NEWEST_RECORDS if newest else EVERY_RECORD)
        self._commands = TailReader[CommandRecord](run.commands, read_command)
        self._folder: int | None = None  # held open, to find it again after it was moved
        with suppress(OSError):
            self._folder = os.open(run.path, os.O_RDONLY)
            weakref.finalize(self, os.close, self._folder)
        self._snapshots: Snapshots | None = None
        self._last_snapshot = 0  # bytes of the log of rank 0 that it has folded
        if kept:
            self._snapshots = Snapshots(run.events)
            # A state is kept only where all that was read is folded: after a read.
            self._logs.first.chunk = min(SNAPSHOT_STRIDE_BYTES // 8, TailReader.chunk)
            self._begin_at_snapshot(self._snapshots)

    def _begin_at_snapshot(self, snapshots: Snapshots) -> None:
        """Take the last state that was kept, if there is one, and go on reading behind it."""
        last = snapshots.newest()
        if last is None:
            return
        self._last_snapshot, snapshot = last
        self.state = snapshot.state
        self._attempt = snapshot.attempt
        first = self._logs.first
        first.at = self._last_snapshot
        first.passed_over = snapshot.passed_over
        first.complaint = snapshot.complaint
        for rank, position in snapshot.others.items():
            reader = self._logs.add_rank(rank, position.waiting)
            reader.at = position.at
            reader.recent = position.recent
            reader.passed_over = position.passed_over
            reader.complaint = position.complaint

    def moved(self) -> RunDir | None:
        """Return the run where its directory was moved to.

        It is None if it was not moved, or the system does not say.
        """
        if self._folder is None or self._run.path.exists():
            return None
        with suppress(OSError):
            path = Path(f"/proc/self/fd/{self._folder}").readlink()
            if os.path.samestat(path.stat(), os.fstat(self._folder)):
                return RunDir(path)
        return None

    def poll(self, budget: float = 0.05) -> bool:
        """Fold what is new, for about `budget` seconds.

        Returns whether there may be more than that.
        """
        until = time.monotonic() + budget
        return any(time.monotonic() > until for _ in self.records())

    @property
    def unread(self) -> tuple[int, int]:
        """The bytes of the logs that are still to be folded, and of all of the logs."""
        num_unread = 0
        num_bytes = 0
        for rank, reader in self._logs.readers.items():
            with suppress(OSError):
                size = self._run.find_events_path(rank).stat().st_size
                num_unread += max(size - reader.at, 0)
                num_bytes += size
        return num_unread, num_bytes

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
            self._apply(rank, record)
            yield rank, record
        self._report_unreadable()

    def _apply(self, rank: int, record: Record) -> None:
        # A reader of the newest records alone does not know the calls before its first frame.
        if self._newest and record["k"] == "frame" and not self.state.frames:
            self.state.histories.begin_attempt(record["it"] - record["iters"][0])
        self.state.apply(record, rank, self.plan or NO_PLAN)
        if rank == 0 and record["k"] == "run":
            self._attempt += 1
            self._read_plan(self._attempt)
        if (
            self._snapshots is not None
            and self._logs.first.at - self._last_snapshot >= SNAPSHOT_STRIDE_BYTES // 2
        ):
            self._keep_snapshot(self._snapshots)

    def _keep_snapshot(self, snapshots: Snapshots) -> None:
        """Keep the state, unless rank 0 has records that were read and are not folded."""
        logs = self._logs
        if logs.waiting[0]:
            return
        with suppress(OSError):
            others = {}
            for rank, reader in logs.others.items():
                path = self._run.find_events_path(rank)
                others[rank] = LogPosition(
                    name=path.name,
                    at=reader.at,
                    last=bytes_before(path, reader.at),
                    recent=reader.recent,
                    passed_over=reader.passed_over,
                    complaint=reader.complaint,
                    waiting=[*logs.waiting[rank]],
                )
            snapshot = Snapshot(
                self.state, self._attempt, logs.first.passed_over, logs.first.complaint, others
            )
            self._last_snapshot = logs.first.at
            snapshots.add(self._last_snapshot, snapshot)

    def _report_unreadable(self) -> None:
        """Tell the state of logs and lines that cannot be read."""
        for problem in self._logs.unreadable:
            self.state.warn(problem)
        self._logs.unreadable.clear()
        unreadable = self._commands.passed_over
        complaints = []
        for reader in self._logs.readers.values():
            unreadable += reader.passed_over
            complaints.append(reader.complaint)
        complaints.append(self._commands.complaint)
        self.state.unreadable = unreadable
        self.state.complaint = next((complaint for complaint in complaints if complaint), "")

    def _read_plan(self, attempt: int) -> None:
        self.plan = read_plan(self._run, attempt)
        # The warning is given once, and not before the first record has given it a time.
        if self.plan is UNREADABLE_PLAN and self._attempt:
            self.state.warn("plan.json cannot be read: firings have no names")


POLL_PERIOD_SECONDS = 0.25
"""Seconds between looks at the log."""

EXIT_LOST = 1
"""The exit code for a run that left no end record, unless a signal killed a child."""


def show_records(
    run: RunDir,
    live: LogFollower,
    tell: Callable[[Record], None],
    child_exit: Callable[[], int | None] | None = None,
    look: Callable[[bool], None] = lambda over: None,
) -> int:
    """Give every record of rank 0 to `tell`, once it is folded, until the run is over.

    Returns the exit code.

    `look` is called before each look at the log; its argument is true at the last one.
    """
    while True:
        code = None
        if child_exit is None:
            is_over = _is_over(run, live)  # before the last look, so that nothing comes after
        else:
            code = child_exit()
            is_over = code is not None
        look(is_over)
        for rank, record in live.records():
            if rank == 0:
                tell(record)
        if is_over:
            refused = None
            if child_exit is not None:
                refused = live.state.refused
            end = refused or live.state.end
            if end is not None:
                return int(end["exit"])
            return exit_code(code or EXIT_LOST)
        time.sleep(POLL_PERIOD_SECONDS)


def _is_over(run: RunDir, live: LogFollower) -> bool:
    """Return whether nothing more will come.

    The end of an earlier attempt is not the end of the one that goes on.
    """
    if run.life() in ("gone", "missing"):
        return True
    end = live.state.refused or live.state.end
    return end is not None and end["t"] >= run.describe().get("process_started", 0.0)
