"""Failures of ranks: timeouts of collectives, the report of each rank, and the exit status of a run."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from subprocess import Popen
from threading import Lock
from typing import Any, BinaryIO

from hookflow.events.log import Appender, event_log
from hookflow.events.now import NOWHERE, iters_in, look, open_memory
from hookflow.events.records import LATE, End, Put, Record, Refused, stamped
from hookflow.events.run_lock import exit_code
from hookflow.events.rundir import RunDir, count_attempts
from hookflow.runner.checkpoint.manifest import list_checkpoints
from hookflow.runner.distributed import rendezvous
from hookflow.runner.distributed.rendezvous import Ranks
from hookflow.runner.process.signals import SIGNALS, Stop
from hookflow.text import print_error

_SAID = re.compile(r"Timed out waiting (\d+)\s*ms")
"""The message of gloo; nccl ends the process instead."""


def is_timeout(error: BaseException) -> bool:
    """Say whether `error` means that another rank has not come within `distributed.timeout`."""
    return isinstance(error, RuntimeError) and _SAID.search(str(error)) is not None


def explain_timeout(error: BaseException, run_dir: RunDir, ranks: Ranks, hook: str, point: str) -> str:
    """Return what an error that `is_timeout` means: how long this rank has waited, in which hook, and where others are.

    `hook` and `point` are empty where this rank was in none.
    """
    result = _SAID.search(str(error))
    seconds = int(result[1]) / 1e3 if result else 0.0
    mine = f'in hook "{hook}" at {point}' if hook else _iteration(run_dir, ranks.rank)
    others = [f"rank {rank} is {_place(run_dir, rank)}" for rank in range(ranks.world) if rank != ranks.rank]
    return f"waited {seconds:g} s for the others, {mine}; {', '.join(others)}"


def _place(run_dir: RunDir, rank: int) -> str:
    seen = look(run_dir.now_of(rank))
    if seen is None:  # it is on another machine, or gone
        return _iteration(run_dir, rank)
    if seen[0] == NOWHERE:
        return f"in no hook, {_iteration(run_dir, rank)}"
    binding: dict[str, Any] = json.loads(run_dir.plan.read_text("utf-8"))["bindings"][seen[0]]
    return f'in hook "{binding["hook"]}" at {binding["point"]}'


def _iteration(run_dir: RunDir, rank: int) -> str:
    records = event_log(run_dir.events_of(rank)).read_all()
    return f"at iteration {records[-1].get('it', 0) if records else 0}"


KEY = "failed"

PATIENCE = 1.0
"""Seconds that a rank which has lost another waits for that one's own word; it is killed if it says none."""

CLAIM_PERIOD = 0.05
"""Seconds between looks for it."""


def is_peer_lost(error: BaseException) -> bool:
    """Say whether `error` means no more than that another rank, or the launcher, has gone.

    One that has not come in time has not gone; it is reported as a failure of the waiting rank.
    """
    from torch.distributed import DistError

    if is_timeout(error):
        return False
    network = ("gloo/transport", "Connection closed by peer", "Connection reset by peer", "Broken pipe")
    return isinstance(error, DistError) or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in network)
    )


def explain_loss(error: BaseException) -> str:
    """Return what an error that `is_peer_lost` says of the connection, without the place in the library."""
    message = re.sub(r"^\[\S+:\d+\] ", "", str(error).partition(". This is typically")[0])
    return f"another rank is gone: {message}"


def agree_on_failure(ranks: Ranks, mine: Stop, *, lost: bool) -> Stop:
    """Return how the run ends on every rank, where it has ended on this one by `mine`: as on the first that failed.

    It is `mine` itself when this rank was interrupted and no rank has failed, or when it has only `lost` another one
    without a reason.
    """
    store = rendezvous.joined()
    if store is None:
        return mine  # what each says of itself is compared by their agent
    named = mine.reason if mine.exit == 2 else f"rank {ranks.rank}: {mine.reason}"  # all make the same mistake
    claim = json.dumps([named, mine.status, mine.exit])
    try:
        if mine.status == "failed" and not lost:
            return _stop_of_claim(store.compare_set(KEY, "", claim))
        until = time.monotonic() + PATIENCE
        while lost and not store.check([KEY]) and time.monotonic() < until:
            time.sleep(CLAIM_PERIOD)  # to wait for a key is answered with a warning when it does not come
        return _stop_of_claim(store.get(KEY)) if store.check([KEY]) else mine
    except RuntimeError:  # there is no report, or the launcher is gone
        return _stop_of_claim(claim.encode()) if mine.status == "failed" and not lost else mine


def _stop_of_claim(claim: bytes) -> Stop:
    reason, status, code = json.loads(claim)
    return Stop(reason, status, code, save=False)


INTERRUPTED = (130, 143)
"""The exit codes of a rank that a signal has ended as it should."""

ENDS = ("end", "refused")
"""The kinds of records that an attempt ends with."""

PERIOD = 0.1
"""Seconds between looks at a process that is waited for."""


class ChildExit:
    """Returns the exit code of a process that `start` has just started, and records its end where it left none.

    A signal that killed it is a negative number. None means that a process of the run is alive. The call also keeps
    `now.bin` open, so it is to be repeated a few times a second. Any thread may call it.
    """

    def __init__(self, run_dir: RunDir, child: Popen[bytes]) -> None:
        self._run_dir = run_dir
        self._child = child
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
            if self._code is None:
                self._keep_memory()
                code = self._child.poll()
                if code is None or (code < 0 and self._run_dir.life() == "alive"):
                    return None  # ranks whose launcher was killed still save
                self._code = self._write_end(code)
                if self._memory is not None:
                    self._memory.close()
            return self._code

    def wait(self) -> int:
        """Return the exit code once nothing of the run lives."""
        while (code := self()) is None:
            time.sleep(PERIOD)
        return code

    def _keep_memory(self) -> None:
        """Keep the newest of what is in the place of `now.bin`: the process may go at any time."""
        with suppress(OSError):
            memory = open_memory(self._run_dir.now)
            if self._memory is not None:
                self._memory.close()
            self._memory = memory

    def _write_end(self, code: int) -> int:
        """Let the event log have an end if this attempt has left none, which is a failure; return the exit code."""
        records = self._log.read_all()
        if any(record["k"] in ENDS for record in records) or not self._run_dir.path.exists():
            return code
        begun = any(record["k"] == "run" for record in records)
        it = iters_in(self._memory) if self._memory is not None and begun else 0
        reason, seconds = self._run_dir.ended_by(code), time.monotonic() - self._began
        append = appending(self._run_dir, it)
        if self._resumes and not begun:
            append("refused", exit=exit_code(code or 1), reason=reason, traceback="")
            return code or 1
        append("end", status="failed", exit=exit_code(code or 1), reason=reason, seconds=seconds)
        return code or 1


def exit_status(run_dir: RunDir, since: float, failed: Mapping[int, int], interrupted: Stop | None = None) -> Stop:
    """Return how the attempt that began at `since` (seconds since 1970) has ended.

    `failed` are the exit codes of the ranks that did not end with 0, a signal that killed one as a negative number.
    Reports count in this order: of a failed rank itself, an interrupt of the user, a killed rank, rank 0.
    """
    bounds = {rank: end for rank in (0, *failed) if (end := _end_record(run_dir, rank, since))}
    for end in bounds.values():
        if end["exit"] in (1, 2):
            return _stop_of_end(end)
    for rank in failed:
        if rank not in bounds and (summary := _failure(run_dir, rank, since)):
            return Stop(summary, "failed", 1, save=False)
    if interrupted is not None and any(code in INTERRUPTED for code in failed.values()):
        return next((_stop_of_end(end) for end in bounds.values() if end["exit"] in INTERRUPTED), interrupted)
    killed = [rank for rank, code in failed.items() if code < 0 and -code not in SIGNALS]
    if killed:  # by SIGNALS a rank ends only where it is on its way out already
        rank = min(killed, key=lambda item: _last_time(run_dir, item))  # the launcher kills the others, but later
        reason = f"rank {rank} was {run_dir.ended_by(failed[rank])}; the others were ended"
        return Stop(reason, "failed", exit_code(failed[rank]), save=False)
    if 0 in bounds and (bounds[0]["exit"] or not failed):
        return _stop_of_end(bounds[0])
    rank, code = next(iter(failed.items()), (0, 0))
    return Stop(f"rank {rank} ended with exit code {code} without a reason", "failed", 1, save=False)


def write_end(run_dir: RunDir, since: float, stop: Stop, resume: str, seconds: float, *, resumes: bool) -> None:
    """Let the event log of rank 0 end with `stop`, unless it has an end that says so since the attempt began.

    `resume` is the command that resumes a run that has failed, if there is a checkpoint; `seconds` is how long
    it took. An attempt that `resumes` the run, and has not begun in these seconds, is recorded as refused.
    """
    end = _end_record(run_dir, 0, since)
    if end is not None and end["exit"] == stop.exit:
        return
    if resumes and not any(
        entry["k"] == "run" and entry["t"] >= time.time() - seconds for entry in read_records(run_dir)
    ):
        appending(run_dir)("refused", exit=stop.exit, reason=stop.reason, traceback="")
    else:
        then = f"resume with: {resume}" if list_checkpoints(run_dir.checkpoints) else "there is no checkpoint yet"
        reason = f"{stop.reason}; {then}" if stop.may_be_restarted else stop.reason
        appending(run_dir)("end", status=stop.status, exit=stop.exit, reason=reason, seconds=seconds)


def appending(run_dir: RunDir, done: int = 0) -> Put:
    """Return what appends a record to the event log of rank 0, at the place where the run stood last.

    That is the iteration `done`, where the log does not reach so far.
    """

    def append(kind: str, **fields: Any) -> None:
        records = [record for record in read_records(run_dir) if record["k"] not in LATE]
        it, ep = (records[-1].get("it", 0), records[-1].get("ep", 0)) if records else (0, 0)
        if done > it:
            length = next((each.get("iters_per_epoch", 0) for each in reversed(records) if each["k"] == "run"), 0)
            it, ep = done, max(ep, done // length if length else 0)
        try:
            log = Appender(run_dir.events)
            try:
                log.append([stamped(kind, it, ep, fields)])
            finally:
                log.close()
        except OSError as error:
            print_error(f"hookflow: the event log cannot be written: {error}")

    return append


def read_records(run_dir: RunDir, rank: int = 0) -> list[Record]:
    """Return the records in the event log of a rank."""
    return event_log(run_dir.events_of(rank)).read_all()


def _end_record(run_dir: RunDir, rank: int, since: float) -> End | Refused | None:
    records = reversed(read_records(run_dir, rank))
    return next((record for record in records if record["k"] in ENDS and record["t"] >= since), None)


def _failure(run_dir: RunDir, rank: int, since: float) -> str:
    """Return what a rank that has left no end has said of its failure, in the words of an end; empty if nothing.

    One that will be started again ends with a message instead; a killed rank has reported its error.
    """
    records = [entry for entry in read_records(run_dir, rank) if entry["t"] >= since]
    last = next((record for record in reversed(records) if record["k"] not in ("frame", "scalars")), None)
    if last and last["k"] == "message" and (last["level"], last["source"]) == ("error", "hookflow"):
        return str(last["text"])
    errors = [record for record in records if record["k"] == "error" and record["action"] == "raise"]
    return f"rank {rank}: {errors[-1]['type']}: {errors[-1]['text']}" if errors else ""


def _last_time(run_dir: RunDir, rank: int) -> float:
    records = read_records(run_dir, rank)
    return float(records[-1]["t"]) if records else 0.0


def _stop_of_end(end: End | Refused) -> Stop:
    return Stop(end["reason"], end["status"] if end["k"] == "end" else "failed", end["exit"], save=False)
