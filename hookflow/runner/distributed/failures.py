"""Failures of ranks.

These are timeouts of collectives, the report of each rank, and the exit status of a run.
"""

import json
import re
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import replace
from threading import Lock
from typing import Any, BinaryIO, Protocol

from hookflow.events.log import LogAppender, event_log
from hookflow.events.now import NO_BINDING, open_memory, read_current_binding, read_num_iters
from hookflow.events.records import LATE_KINDS, Record, make_stamped_record
from hookflow.events.run_lock import exit_code
from hookflow.events.rundir import RunDir, count_attempts
from hookflow.pipeline.by_epoch import recorded_lengths
from hookflow.runner.checkpoint.manifest import list_checkpoints
from hookflow.runner.distributed import rendezvous
from hookflow.runner.distributed.rendezvous import RankLayout
from hookflow.runner.process.signals import END_SIGNALS, StopReason
from hookflow.text import print_error

_TIMED_OUT = re.compile(r"Timed out waiting (\d+)\s*ms")
"""The message of gloo; nccl ends the process instead."""

FAILURE_KEY = "failed"
"""The key of the first failure in the store of the ranks."""

REPORT_WAIT_SECONDS = 1.0
"""Seconds that a rank which has lost another waits for that one's report."""

INTERRUPTED_EXIT_CODES = (130, 143)
"""The exit codes of a rank that a signal has ended as it should."""

END_KINDS = ("end", "refused")
"""The kinds of records that an attempt ends with."""

POLL_PERIOD_SECONDS = 0.1
"""Seconds between the checks of a child process, and for a report."""


def is_timeout(error: BaseException) -> bool:
    """Return whether `error` means that another rank has not come within `distributed.timeout`."""
    return isinstance(error, RuntimeError) and _TIMED_OUT.search(str(error)) is not None


def describe_timeout(
    error: BaseException, run_dir: RunDir, ranks: RankLayout, hook: str, point: str
) -> str:
    """Return how long this rank has waited, in which hook, and where the other ranks are.

    The hook is empty for none.
    """
    result = _TIMED_OUT.search(str(error))
    seconds = 0.0
    if result:
        seconds = int(result[1]) / 1e3

    def read_iteration(rank: int) -> str:
        records = read_records(run_dir, rank)
        return f"at iteration {records[-1].get('it', 0) if records else 0}"

    def describe_place(rank: int) -> str:
        seen = read_current_binding(run_dir.find_now_path(rank))
        if seen is None or seen[0] == NO_BINDING:  # it is on another machine or gone; or in no hook
            if seen:
                return f"in no hook, {read_iteration(rank)}"
            return read_iteration(rank)
        binding: dict[str, Any] = json.loads(run_dir.plan.read_text("utf-8"))["bindings"][seen[0]]
        return f'in hook "{binding["hook"]}" at {binding["point"]}'

    if hook:
        mine = f'in hook "{hook}" at {point}'
    else:
        mine = read_iteration(ranks.rank)
    others = [
        f"rank {rank} is {describe_place(rank)}"
        for rank in range(ranks.world)
        if rank != ranks.rank
    ]
    return f"waited {seconds:g} s for the others, {mine}; {', '.join(others)}"


def is_peer_lost(error: BaseException) -> bool:
    """Return whether `error` means only that another rank, or the launcher, has gone.

    A timeout does not.
    """
    from torch.distributed import DistError

    network = (
        "gloo/transport",
        "Connection closed by peer",
        "Connection reset by peer",
        "Broken pipe",
    )
    lost = isinstance(error, RuntimeError) and any(words in str(error) for words in network)
    return not is_timeout(error) and (lost or isinstance(error, DistError))


def describe_peer_loss(error: BaseException) -> str:
    """Return the message of an error that `is_peer_lost`, without the place in the library."""
    message = re.sub(r"^\[\S+:\d+\] ", "", str(error).partition(". This is typically")[0])
    return f"another rank is gone: {message}"


def choose_common_failure(ranks: RankLayout, mine: StopReason, *, lost: bool) -> StopReason:
    """Return how the run ends on every rank: as on the first that failed.

    It is `mine` itself when this rank was interrupted and no rank has failed, or when it has only
    `lost` another one without a report.
    """
    store = rendezvous.joined
    if store is None:
        return mine  # their agent compares the reports
    failed = mine.status == "failed" and not lost
    if mine.exit == 2:  # all make the same mistake
        reason = mine.reason
    else:
        reason = f"rank {ranks.rank}: {mine.reason}"
    claim = b""
    if failed:
        claim = json.dumps([reason, mine.status, mine.exit]).encode()
    try:
        if failed:
            claim = store.compare_set(FAILURE_KEY, "", claim.decode())
        until = time.monotonic() + REPORT_WAIT_SECONDS
        while lost and not store.check([FAILURE_KEY]) and time.monotonic() < until:
            # PyTorch's own wait for a key prints a warning when the key does not come.
            time.sleep(POLL_PERIOD_SECONDS)
        if not failed and store.check([FAILURE_KEY]):
            claim = store.get(FAILURE_KEY)
    except RuntimeError:  # the launcher is gone
        pass
    if not claim:
        return mine
    reason, status, code = json.loads(claim)
    return StopReason(reason, status, code, save=False)


class ChildProcess(Protocol):
    """A training process that this one has started, or had started for it."""

    @property
    def pid(self) -> int:
        """The number of the process."""
        ...

    def poll(self) -> int | None:
        """Return the exit code, a signal's number negative; None while the process lives."""
        ...


class ChildExit:
    """Starts a training at the first call, and returns its exit code.

    Its end is recorded if it left none.

    `start` starts the process. A viewer reads the records of earlier attempts before its first
    call. A signal's number is negative; None means that a process of the run is alive. Call it a
    few times a second, from any thread: it keeps `now.bin` open.
    """

    def __init__(self, run_dir: RunDir, start: Callable[[], ChildProcess]) -> None:
        self._run_dir = run_dir
        self._start = start
        self._child: ChildProcess | None = None
        self._log = event_log(run_dir.events)
        self._resumes = count_attempts(run_dir) > 0
        with suppress(OSError):  # it is the first attempt
            self._log.at = run_dir.events.stat().st_size
        self._began = time.monotonic()
        self._memory: BinaryIO | None = None
        self._code: int | None = None
        self._lock = Lock()

    def __call__(self) -> int | None:
        with self._lock:
            if self._child is None:
                self._child = self._start()
            if self._code is None:
                with suppress(OSError):  # keep the newest: the process may go at any time
                    memory = open_memory(self._run_dir.now)
                    if self._memory is not None:
                        self._memory.close()
                    self._memory = memory
                code = self._child.poll()
                if code is None or (code < 0 and self._run_dir.life() == "alive"):
                    return None  # ranks whose launcher was killed still save
                self._code = self._write_end(code)
                if self._memory is not None:
                    self._memory.close()
            return self._code

    def wait(self) -> int:
        while (code := self()) is None:
            time.sleep(POLL_PERIOD_SECONDS)
        return code

    def _write_end(self, code: int) -> int:
        """Append an end to the event log if this attempt has left none, and return the exit code.

        An attempt without an end has failed.
        """
        records = self._log.read_all()
        if any(record["k"] in END_KINDS for record in records) or not self._run_dir.path.exists():
            return code
        begun = any(record["k"] == "run" for record in records)
        it = 0
        if self._memory is not None and begun:
            it = read_num_iters(self._memory)
        reason = self._run_dir.ended_by(code)
        code = code or 1
        stop = StopReason(reason, "failed", exit_code(code), save=False)
        _append_end(
            self._run_dir,
            stop,
            time.monotonic() - self._began,
            refused=self._resumes and not begun,
            done=it,
        )
        return code


def exit_status(
    run_dir: RunDir, since: float, failed: Mapping[int, int], interrupted: StopReason | None = None
) -> StopReason:
    """Return how the attempt that began at `since` (seconds since 1970) has ended.

    `failed` are the exit codes of the ranks that did not end with 0, a signal's number negative.
    Reports count in this order: of a failed rank itself, an interrupt of the user, a killed rank,
    rank 0.
    """
    logs = {
        rank: [entry for entry in read_records(run_dir, rank) if entry["t"] >= since]
        for rank in (0, *failed)
    }
    recorded = {rank: end for rank, log in logs.items() if (end := _end_of(log))}
    for stop in recorded.values():
        if stop.exit in (1, 2):
            return stop
    for rank in failed:
        if rank not in recorded and (report := _failure(logs[rank], rank)):
            return StopReason(report, "failed", 1, save=False)
    if interrupted is not None and any(code in INTERRUPTED_EXIT_CODES for code in failed.values()):
        return next(
            (stop for stop in recorded.values() if stop.exit in INTERRUPTED_EXIT_CODES), interrupted
        )
    killed = [rank for rank, code in failed.items() if code < 0 and -code not in END_SIGNALS]
    if killed:  # by END_SIGNALS a rank ends only where it is on its way out already
        # The first of the killed ranks is the cause: the launcher kills the others later.
        rank = min(killed, key=lambda each: logs[each][-1]["t"] if logs[each] else 0.0)
        reason = f"rank {rank} was {run_dir.ended_by(failed[rank])}; the others were ended"
        return StopReason(reason, "failed", exit_code(failed[rank]), save=False)
    if 0 in recorded and (recorded[0].exit or not failed):
        return recorded[0]
    rank, code = next(iter(failed.items()), (0, 0))
    return StopReason(
        f"rank {rank} ended with exit code {code} without a reason", "failed", 1, save=False
    )


def write_end(
    run_dir: RunDir, since: float, stop: StopReason, resume: str, seconds: float, *, resumes: bool
) -> None:
    """Append `stop` to the event log of rank 0.

    Nothing is appended if the attempt that began at `since` has such an end.

    `resume` is the command that resumes a failed run; `seconds` is the length of all attempts. When
    none of them has begun and they `resumes` the run, they are recorded as refused.
    """
    records = read_records(run_dir)
    end = _end_of([record for record in records if record["t"] >= since])
    if end is not None and end.exit == stop.exit:
        return
    refused = resumes and not any(
        entry["k"] == "run" and entry["t"] >= time.time() - seconds for entry in records
    )
    if stop.may_be_restarted and not refused:
        then = "there is no checkpoint yet"
        if list_checkpoints(run_dir.checkpoints):
            then = f"resume with: {resume}"
        stop = replace(stop, reason=f"{stop.reason}; {then}")
    _append_end(run_dir, stop, seconds, refused=refused)


def _append_end(
    run_dir: RunDir, stop: StopReason, seconds: float, *, refused: bool, done: int = 0
) -> None:
    if refused:
        append_record(run_dir, "refused", done, exit=stop.exit, reason=stop.reason, traceback="")
        return
    facts = {"exit": stop.exit, "reason": stop.reason, "status": stop.status, "seconds": seconds}
    append_record(run_dir, "end", done, **facts)


def append_record(run_dir: RunDir, kind: str, done: int = 0, **fields: Any) -> None:
    """Append a record to the event log of rank 0, at its last place or iteration `done`."""
    records = [record for record in read_records(run_dir) if record["k"] not in LATE_KINDS]
    it, ep = (records[-1].get("it", 0), records[-1].get("ep", 0)) if records else (0, 0)
    if done > it:
        lengths = next(
            (recorded_lengths(each) for each in reversed(records) if each["k"] == "run"), None
        )
        it = done
        if lengths is not None:
            ep = max(ep, int(lengths.epochs(done)))
    try:
        with closing(LogAppender(run_dir.events)) as log:
            log.append([make_stamped_record(kind, it, ep, fields)])
    except OSError as error:
        print_error(f"hookflow: the event log cannot be written: {error}")


def read_records(run_dir: RunDir, rank: int = 0) -> list[Record]:
    return event_log(run_dir.find_events_path(rank)).read_all()


def _end_of(records: list[Record]) -> StopReason | None:
    for record in reversed(records):
        if record["k"] == "end":
            return StopReason(record["reason"], record["status"], record["exit"], save=False)
        if record["k"] == "refused":
            return StopReason(record["reason"], "failed", record["exit"], save=False)
    return None


def _failure(records: list[Record], rank: int) -> str:
    """Return the failure that a rank without an end has reported.

    It has reported it by an error, or by a message before a restart.
    """
    last = next(
        (record for record in reversed(records) if record["k"] not in ("frame", "scalars")), None
    )
    if last and last["k"] == "message" and (last["level"], last["source"]) == ("error", "hookflow"):
        return str(last["text"])
    errors = [
        record for record in records if record["k"] == "error" and record["action"] == "raise"
    ]
    if errors:
        return f"rank {rank}: {errors[-1]['type']}: {errors[-1]['text']}"
    return ""
