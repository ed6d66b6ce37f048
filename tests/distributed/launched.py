"""Hooks for runs that a launcher has started: they strike on one rank, at one iteration, once for each mark."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist


class Dies:
    """Kills the process of a rank as the system does, which leaves it no word."""

    def __init__(self, rank: int, at: int, mark: str) -> None:
        self.rank, self.at, self.mark = rank, at, Path(mark)

    def after_train_iter(self, run: Any) -> None:
        if run.rank == self.rank and run.iter >= self.at and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)


class Raises:
    """Raises on one rank alone."""

    def __init__(self, rank: int, at: int) -> None:
        self.rank, self.at = rank, at

    def after_train_iter(self, run: Any) -> None:
        if run.rank == self.rank and run.iter == self.at:
            raise ValueError("as told")


def asked_to_stop() -> Any:
    """Return the signal that has come to this process, if one has."""
    return signal.getsignal(signal.SIGTERM).__self__.stop  # type: ignore[union-attr]


class Hangs:
    """Never comes back from an iteration on rank 0, though it notices that it is asked to."""

    def after_train_iter(self, run: Any) -> None:
        if run.rank == 0 and run.iter == 3:
            run.say("hangs")
            while asked_to_stop() is None:
                time.sleep(0.01)
            run.say("hears")
            time.sleep(600)


class Means:
    """Waits for the others in a hook of its own: from iteration 3 on for so many seconds, and no longer.

    To form their group the ranks have all the time that a busy machine takes.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def after_train_iter(self, run: Any) -> None:
        if run.iter == 3:
            for group in dist.distributed_c10d._world.pg_map:
                dist.distributed_c10d._set_pg_timeout(timedelta(seconds=self.seconds), group)
        run.mean(1.0)


class Stays:
    """Does not come back from an iteration on rank 1 before rank 0 has ended."""

    def after_train_iter(self, run: Any) -> None:
        while run.rank == 1 and run.iter == 3 and '"k":"end"' not in (run.dir / "events.jsonl").read_text():
            time.sleep(0.01)


class EndsLate:
    """Comes to its end on rank 0 long after rank 1, whose end its launcher must have noticed by then."""

    def after_run(self, run: Any) -> None:
        log = run.dir / "events.rank1.jsonl"
        while run.rank == 0 and '"k":"end"' not in log.read_text():
            time.sleep(0.01)
        if run.rank == 0:
            time.sleep(1)
            run.say("at its end")


class Aborts:
    """Aborts the process while the interpreter goes down, as a thread of gloo's may that still holds a tensor then.

    What is registered for the exit of the process comes before that, and leaves a mark of each rank.
    """

    def __init__(self, marks: str) -> None:
        self.marks = Path(marks)

    def after_run(self, run: Any) -> None:
        atexit.register(self.marks.joinpath(str(run.rank)).touch)
        sys.held_to_the_last = self  # type: ignore[attr-defined]

    def __del__(self, abort: Callable[[], object] = os.abort) -> None:
        abort()


def slow() -> None:
    """Take a while, so that a training does not end before something has been done to it."""
    time.sleep(0.02)
