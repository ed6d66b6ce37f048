"""How a run over several ranks has ended, as their event logs and exit codes tell when all of them are gone."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from typing import Any

from hookflow.events.log import Appender, Tail
from hookflow.events.rundir import RunDir
from hookflow.runner.control import SIGNALS, Stop

INTERRUPTED = (130, 143)
"""The exit codes of a rank that a signal has ended as it should."""


def why_ended(run_dir: RunDir, since: float, failed: Mapping[int, int], interrupted: Stop | None = None) -> Stop:
    """Return how the attempt that began at `since` (seconds since 1970) has ended.

    `failed` are the exit codes of the ranks that did not end with 0, a signal that killed one as a negative number.
    What a rank itself says of its failure counts most, then that the user has `interrupted` the run and a rank has
    ended of that (the others, that it is gone), then that one was killed, then what rank 0 says.
    """
    words = {rank: word for rank in (0, *failed) if (word := _last_word(run_dir, rank, since))}
    for word in words.values():
        if word["exit"] in (1, 2):
            return _stop(word)
    if interrupted is not None and any(code in INTERRUPTED for code in failed.values()):
        return next((_stop(word) for word in words.values() if word["exit"] in INTERRUPTED), interrupted)
    for rank, code in failed.items():
        if code < 0 and -code not in SIGNALS:  # those end a rank only where it is on its way out already
            name = signal.Signals(-code).name
            perhaps = " (the system may have been out of memory)" if name == "SIGKILL" else ""
            return Stop(f"rank {rank} was killed by {name}{perhaps}; the others were ended", "failed", 1, save=False)
    if 0 in words and (words[0]["exit"] or not failed):
        return _stop(words[0])
    rank, code = next(iter(failed.items()), (0, 0))
    return Stop(f"rank {rank} ended with exit code {code} and left no word", "failed", 1, save=False)


def end(run_dir: RunDir, since: float, stop: Stop, go_on: str, seconds: float) -> None:
    """Let the event log of rank 0 end with `stop`, unless it has an end that says so since the attempt began.

    `go_on` is a command that goes on with a run that has failed; `seconds` is how long it took.
    """
    word = _last_word(run_dir, 0, since)
    if word is None or word["exit"] != stop.exit:
        reason = f"{stop.reason}; go on with: {go_on}" if stop.exit == 1 else stop.reason
        append(run_dir, "end", status=stop.status, exit=stop.exit, reason=reason, seconds=seconds)


def append(run_dir: RunDir, kind: str, **fields: Any) -> None:
    """Append a record to the event log of rank 0, at the place where the run stood last."""
    before = Tail(run_dir.events).read_all()
    last = before[-1] if before else {}
    log = Appender(run_dir.events)
    log.append([{"k": kind, "t": time.time(), "it": last.get("it", 0), "ep": last.get("ep", 0), **fields}])
    log.close()


def _last_word(run_dir: RunDir, rank: int, since: float) -> dict[str, Any] | None:
    records = Tail(run_dir.events_of(rank)).read_all()
    return next((one for one in reversed(records) if one["k"] == "end" and one["t"] >= since), None)


def _stop(word: Mapping[str, Any]) -> Stop:
    return Stop(word["reason"], word["status"], word["exit"], save=False)
