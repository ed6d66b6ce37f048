"""Hooks that disturb the process around the training: its files, its folder, its threads."""

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hookflow.events.rundir import write_whole
from hookflow.runner.attempt import main, session
from hookflow.runner.data import workers
from hookflow.runner.process import signals

ENDLESS = 240.0
"""Seconds: more than any machine takes. A run imports this file, and none of the tests' own."""


class Truncates:
    def after_train_iter(self, run: Any) -> None:
        if run.iter == 3:
            with contextlib.suppress(OSError):  # it may not be possible at all
                os.truncate(run.dir / "now.bin", 0)


class Hasty:
    """Lets the training wait less long for a data worker that hangs."""

    def before_run(self) -> None:
        signals.WAIT = workers.STOP_GRACE = 0.5


class Moves:
    def __init__(self, to: str) -> None:
        self.to = to

    def before_run(self) -> None:
        os.chdir(self.to)


def wait_forever() -> None:
    while True:
        time.sleep(0.05)


class LeavesThread:
    """Starts a thread that never ends, or one that ends a moment after the training.

    The process waits for the one less long than it does else, and for the other as long as a busy
    machine needs.
    """

    def __init__(self, seconds: float | None = None) -> None:
        session.THREAD_SETTLE_SECONDS, main.EXIT_GRACE_SECONDS = (
            (0.1, 0.1) if seconds is None else (ENDLESS, ENDLESS)
        )
        target, args = (wait_forever, ()) if seconds is None else (time.sleep, (seconds,))
        self.thread = threading.Thread(target=target, args=args, name="uploader")

    def after_run(self) -> None:
        self.thread.start()


class LeavesPool:
    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor(2)

    def after_train_iter(self) -> None:
        self.pool.submit(os.getpid).result()


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


class LeavesChild:
    """Starts a child that does nothing for ten minutes, and writes its pid."""

    def __init__(self, mark: str, how: str) -> None:
        self.mark, self.how = Path(mark), how

    def after_train_iter(self, run: Any) -> None:
        if self.mark.exists():
            return
        if self.how == "spawned":  # which hands on every descriptor that may be
            child = os.posix_spawn("/bin/sleep", ["sleep", "600"], os.environ)
        elif not (child := os.fork()):
            time.sleep(600)
            os._exit(0)
        write_whole(self.mark, str(child))


IMPORTS = """
import os
try:
    os.kill(os.getpid(), number)
    os.kill(os.getpid(), number)
except BaseException:  # as C++ does with one that it does not expect
    os.abort()
"""


class ImportsTorch:
    """Imports a module of torch, within which the process gets a signal twice,
    and then builds for ever.
    """

    def __init__(self, number: int) -> None:
        exec(
            compile(IMPORTS, "torch/simulated.py", "exec"),
            {"__name__": "torch.simulated", "number": number},
        )
        wait_forever()

    def after_run(self) -> None:
        pass
