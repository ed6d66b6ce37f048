"""The exit status of a run over several ranks, by their event logs and exit codes when all of them are gone."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any

from hookflow.events.log import Appender, event_log
from hookflow.events.records import End, Put, Record, stamped
from hookflow.events.rundir import RunDir
from hookflow.runner.checkpoint.manifest import list_checkpoints
from hookflow.runner.signals import SIGNALS, Stop

INTERRUPTED = (130, 143)
"""The exit codes of a rank that a signal has ended as it should."""


def exit_status(run_dir: RunDir, since: float, failed: Mapping[int, int], interrupted: Stop | None = None) -> Stop:
    """Return how the attempt that began at `since` (seconds since 1970) has ended.

    `failed` are the exit codes of the ranks that did not end with 0, a signal that killed one as a negative number.
    What a rank itself says of its failure counts most, then that the user has `interrupted` the run and a rank has
    ended of that (the others, that it is gone), then that one was killed, then what rank 0 says.
    """
    ends = {rank: end for rank in (0, *failed) if (end := _end_record(run_dir, rank, since))}
    for end in ends.values():
        if end["exit"] in (1, 2):
            return _stop(end)
    for rank in failed:
        if rank not in ends and (told := _failure(run_dir, rank, since)):
            return Stop(told, "failed", 1, save=False)
    if interrupted is not None and any(code in INTERRUPTED for code in failed.values()):
        return next((_stop(end) for end in ends.values() if end["exit"] in INTERRUPTED), interrupted)
    killed = [rank for rank, code in failed.items() if code < 0 and -code not in SIGNALS]
    if killed:  # by SIGNALS a rank ends only where it is on its way out already
        rank = min(killed, key=lambda one: _last_time(run_dir, one))  # the launcher kills the others, but later
        name = signal.Signals(-failed[rank]).name
        perhaps = " (the system may have been out of memory)" if name == "SIGKILL" else ""
        return Stop(f"rank {rank} was killed by {name}{perhaps}; the others were ended", "failed", 1, save=False)
    if 0 in ends and (ends[0]["exit"] or not failed):
        return _stop(ends[0])
    rank, code = next(iter(failed.items()), (0, 0))
    return Stop(f"rank {rank} ended with exit code {code} without a reason", "failed", 1, save=False)


def write_end(run_dir: RunDir, since: float, stop: Stop, resume: str, seconds: float) -> None:
    """Let the event log of rank 0 end with `stop`, unless it has an end that says so since the attempt began.

    `resume` is the command that resumes a run that has failed, if there is a checkpoint; `seconds` is how long
    it took.
    """
    end = _end_record(run_dir, 0, since)
    if end is None or end["exit"] != stop.exit:
        then = f"resume with: {resume}" if list_checkpoints(run_dir.checkpoints) else "there is no checkpoint yet"
        reason = f"{stop.reason}; {then}" if stop.exit == 1 else stop.reason
        appending(run_dir)("end", status=stop.status, exit=stop.exit, reason=reason, seconds=seconds)


def appending(run_dir: RunDir) -> Put:
    """Return what appends a record to the event log of rank 0, at the place where the run stood last."""

    def append(kind: str, **fields: Any) -> None:
        records = read_records(run_dir)
        it, ep = (records[-1].get("it", 0), records[-1].get("ep", 0)) if records else (0, 0)
        log = Appender(run_dir.events)
        log.append([stamped(kind, it, ep, fields)])
        log.close()

    return append


def read_records(run_dir: RunDir, rank: int = 0) -> list[Record]:
    """Return what stands in the event log of a rank."""
    return event_log(run_dir.events_of(rank)).read_all()


def _end_record(run_dir: RunDir, rank: int, since: float) -> End | None:
    records = reversed(read_records(run_dir, rank))
    return next((one for one in records if one["k"] == "end" and one["t"] >= since), None)


def _failure(run_dir: RunDir, rank: int, since: float) -> str:
    """Return what a rank that has left no end has said of its failure, in the words of an end; empty if nothing.

    One that will be started again ends with a message instead; one that was killed on its way out has told the error.
    """
    records = [one for one in read_records(run_dir, rank) if one["t"] >= since]
    last = next((one for one in reversed(records) if one["k"] not in ("frame", "scalars")), None)
    if last and last["k"] == "message" and (last["level"], last["source"]) == ("error", "hookflow"):
        return str(last["text"])
    errors = [one for one in records if one["k"] == "error" and one["action"] == "raise"]
    return f"rank {rank}: {errors[-1]['type']}: {errors[-1]['text']}" if errors else ""


def _last_time(run_dir: RunDir, rank: int) -> float:
    records = read_records(run_dir, rank)
    return float(records[-1]["t"]) if records else 0.0


def _stop(end: End) -> Stop:
    return Stop(end["reason"], end["status"], end["exit"], save=False)
