"""Training processes that start in no time: forked off a server that has imported torch, and has not used it yet."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import MappingProxyType

from hookflow.events.rundir import RunDir
from tests.limits import LIMIT
from tests.processor.sitecustomize import VARIABLE

context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(
    [
        "hookflow.runner.process.main",
        "hookflow.runner.process.attempt",
        "torch._dynamo",
        "torch.distributed._composable.replicate",
        "torch.distributed.fsdp",
        "torch.distributed.tensor",
        "tests.processes",
    ]
)


def _train(path: Path, output: str, locked: bool, options: Mapping[str, bool], environment: Mapping[str, str]) -> None:
    from hookflow.runner.process.launch import hold
    from hookflow.runner.process.main import train

    os.environ.update(environment)
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]  # it may have workers
    run_dir = RunDir(path)
    if locked:
        hold(run_dir)
    printed = os.open(path / output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(printed, sys.stdout.fileno())
    os.dup2(printed, sys.stderr.fileno())
    os._exit(train(run_dir, **options))


class Training:
    """A process that does what `hookflow.runner.process.launch.start` starts; what it prints is in `output` of the run.

    It holds the lock of the run if it is `locked`. `options` are those of `hookflow.runner.process.main.train`.
    """

    def __init__(
        self,
        run_dir: RunDir,
        *,
        output: str = "output.log",
        locked: bool = False,
        environment: Mapping[str, str] = MappingProxyType({}),
        **options: bool,
    ) -> None:
        now = {VARIABLE: os.environ.get(VARIABLE, "")}  # the server has that of the test which started it
        args = run_dir.path, output, locked, options, {**now, **environment}
        self.process: ForkServerProcess = context.Process(target=_train, args=args, daemon=True)
        self.process.start()

    def wait(self) -> int:
        """Return the exit code, negative for a signal that killed it."""
        self.process.join(LIMIT)
        assert self.process.exitcode is not None, f"the training has not ended after {LIMIT} s"
        return self.process.exitcode

    @property
    def over(self) -> bool:
        return not self.process.is_alive()

    def signal(self, number: int) -> None:
        """Send a signal; it goes nowhere where the process has just ended, as with `Popen.send_signal`."""
        assert self.process.pid is not None
        with suppress(ProcessLookupError):  # the server may have heard of the end before we do
            os.kill(self.process.pid, number)
