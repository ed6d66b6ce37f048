"""Training processes that start in no time: forked off a server that has imported torch, and has not used it yet."""

from __future__ import annotations

import multiprocessing
import os
import sys
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from hookflow.events.rundir import RunDir

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    ["hookflow.runner.process", "hookflow.runner.attempt", "torch._dynamo", "tests.processes"]
)


def _train(path: Path, resume: bool) -> None:
    from hookflow.runner.process import train

    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]  # it may have workers
    run_dir = RunDir(path)
    output = os.open(run_dir.output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, sys.stdout.fileno())
    os.dup2(output, sys.stderr.fileno())
    os._exit(train(run_dir, resume=resume))


class Training:
    """A process that does what `hookflow.runner.launch.start` starts."""

    def __init__(self, run_dir: RunDir, *, resume: bool = False) -> None:
        self.process: ForkServerProcess = _context.Process(target=_train, args=(run_dir.path, resume), daemon=True)
        self.process.start()

    def wait(self) -> int:
        """Return the exit code, negative for a signal that killed it."""
        self.process.join(120)
        assert self.process.exitcode is not None, "the training does not end"
        return self.process.exitcode

    @property
    def over(self) -> bool:
        return not self.process.is_alive()

    def signal(self, number: int) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)
