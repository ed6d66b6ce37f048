"""Hooks that disturb the process around the training: its files, its folder, its threads."""

import contextlib
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hookflow.events.rundir import write_whole
from hookflow.runner.data import workers
from hookflow.runner.process import signals

ENDLESS = 240.0
"""Seconds: more than any machine takes. A run imports this file, and none of the tests' own."""


class Hasty:
    """Lets the training wait less long for a data worker that hangs."""

    def before_run(self) -> None:
        signals.WAIT = workers.STOP_GRACE = 0.5


class Waits:
    def __init__(self, mark: str, at: int = 7) -> None:
        self.mark, self.at = Path(mark), at

    def after_train_iter(self, run: Any) -> None:
        if run.iter == self.at:
            write_whole(self.mark, str(os.getpid()))
            while self.mark.exists():
                time.sleep(0.01)


class Dies:
    """Ends its process in mid-run: by a signal, or with exit code 3; where asked for,
    once a checkpoint is recorded.
    """

    def __init__(self, by: int = 0, at: int = 7, saved: bool = False) -> None:
        self.by, self.at, self.saved = by, at, saved

    def after_train_iter(self, run: Any) -> None:
        if run.iter == self.at:
            log = run.dir / "events.jsonl"
            _wait(
                lambda: _is_watched() and (not self.saved or '{"k":"checkpoint"' in log.read_text())
            )
            os.kill(os.getpid(), self.by)
            os._exit(3)


def _is_watched() -> bool:
    with contextlib.suppress(FileNotFoundError):
        return any(
            "memfd" in str(link.readlink()) for link in Path(f"/proc/{os.getppid()}/fd").iterdir()
        )
    return False


def _wait(until: Callable[[], bool]) -> None:
    end = time.monotonic() + ENDLESS
    while not until() and time.monotonic() < end:
        time.sleep(0.01)


class ClosesOutput:
    def after_train_iter(self, run: Any) -> None:
        os.close(1)
        os.close(2)
        raise ValueError("of mine")


class Relocates:
    def __init__(self, to: str = "", at: int = 7) -> None:
        self.to, self.at = to, at

    def after_train_iter(self, run: Any) -> None:
        if run.iter == self.at and run.dir.exists():
            # At once: other threads write into it.
            there = run.dir.rename(self.to or f"{run.dir} deleted")
            if not self.to:
                shutil.rmtree(there)
