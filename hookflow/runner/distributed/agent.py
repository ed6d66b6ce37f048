"""The agent of `hookflow run --nproc`.

It starts the ranks, waits for them, and reports the end of the run. torch.distributed's launcher
starts, watches and ends them. The agent hands signals on and waits as long as the ranks need,
restarts them where that may help, and writes the end of the event log.
"""

import argparse
import contextlib
import logging
import os
import secrets
import signal
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from types import FrameType

import psutil

from hookflow.events.run_lock import inherit
from hookflow.events.rundir import RunDir
from hookflow.runner.checkpoint.manifest import list_checkpoints
from hookflow.runner.distributed.failures import append_record, exit_status, write_end
from hookflow.runner.process.launch import cores
from hookflow.runner.process.signals import END_SIGNALS, StopReason, ends_at_once
from hookflow.text import print_error

POLL_PERIOD_SECONDS = 0.1
"""Seconds between the checks of signals and ranks."""

STOP_GRACE_SECONDS = 5.0
"""Seconds that a rank has to end at once."""


class RankAgent:
    """Executes a run by `nproc` ranks with these `options`.

    They are restarted up to `max_restarts` times.
    """

    def __init__(self, run_dir: RunDir, nproc: int, max_restarts: int, options: list[str]) -> None:
        self._run_dir = run_dir
        self._nproc = nproc
        self._max_restarts = max_restarts
        self._options = options
        self._began, self._since = time.monotonic(), time.time()
        self._asked: list[int] = []
        self._given: dict[int, tuple[int, float]] = {}

    def execute(self) -> int:
        """Return the exit code of the run, once its event log has an end."""
        self._run_dir.sign_process()
        signal.pthread_sigmask(
            signal.SIG_BLOCK, END_SIGNALS
        )  # so the launcher's thread, and each rank, begins with them
        with ThreadPoolExecutor(1) as launcher:
            work = launcher.submit(self._launch)
            for number in END_SIGNALS:
                signal.signal(number, self._on_signal)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, END_SIGNALS)
            reported = False
            while not wait([work], POLL_PERIOD_SECONDS).done:
                self._forward_signals()
                if self._asked and not reported:  # at once: the ranks may need a while
                    reported = True
                    name = signal.Signals(self._asked[0]).name
                    text = (
                        f"{name} received: all ranks finish the iteration and save; a Ctrl-C now"
                        " ends them at once"
                    )
                    append_record(
                        self._run_dir, "message", level="info", source="hookflow", text=text
                    )
            stop = work.result()
        resume = f"hookflow run --resume {self._run_dir.id} --nproc {self._nproc}"
        seconds = time.monotonic() - self._began
        resumes = "--resume" in self._options
        write_end(self._run_dir, self._since, stop, resume, seconds, resumes=resumes)
        return stop.exit

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if not self._asked or ends_at_once(number):
            self._asked.append(number)

    def _forward_signals(self) -> None:
        """Send each rank the next signal that it has not had.

        STOP_GRACE_SECONDS after the second one, ranks are killed.

        One at a time, since a process does not notice the same signal twice before it has handled
        it.
        """
        if self._asked:
            for rank in psutil.Process().children():
                provided, since = self._given.get(rank.pid, (0, 0.0))
                with contextlib.suppress(psutil.NoSuchProcess):
                    if provided < len(self._asked):
                        rank.send_signal(self._asked[provided])
                        self._given[rank.pid] = provided + 1, time.monotonic()
                    elif provided > 1 and time.monotonic() - since > STOP_GRACE_SECONDS:
                        rank.kill()

    def _launch(self) -> StopReason:
        """Launch the ranks until they end as they should, or no restart is left.

        Returns how that was.
        """
        options = self._options
        for left in range(self._max_restarts, -1, -1):
            if self._asked:
                break
            self._since = time.time()
            try:
                agent = ("--agent", f"--launcher={os.getpid()}", f"--restarts-left={left}")
                failed = launch(self._nproc, str(self._run_dir.path), *agent, *options)
            except Exception as error:
                print_error(traceback.format_exc())
                return StopReason(f"the ranks cannot be started: {error}", "failed", 1, save=False)
            later = [
                f", then {signal.Signals(number).name}: ended at once"
                for number in self._asked[1:2]
            ]
            interrupted = None
            if self._asked:
                interrupted = self._make_stop_reason("".join(["received", *later]))
            if interrupted and later and -signal.SIGKILL in failed.values():  # by this agent
                return interrupted
            stop = exit_status(self._run_dir, self._since, failed, interrupted)
            if not stop.may_be_restarted or not left or self._asked:
                return stop
            place = "from the beginning"
            if list_checkpoints(self._run_dir.checkpoints):
                place = "from the last checkpoint"
            again = f"restart {self._max_restarts - left + 1} of {self._max_restarts}, {place}"
            append_record(
                self._run_dir,
                "message",
                level="warn",
                source="hookflow",
                text=f"{stop.reason}: {again}",
            )
            options = ["--resume", *self._options]
        return self._make_stop_reason("received before the training began")

    def _make_stop_reason(self, how: str) -> StopReason:
        first = signal.Signals(self._asked[0])
        code = 143
        if first is signal.SIGINT:
            code = 130
        return StopReason(f"{first.name} {how}", "interrupted", code, save=False)


def launch(nproc: int, *arguments: str) -> dict[int, int]:
    """Run `python -m hookflow.runner` with these arguments as `nproc` ranks, until all have ended.

    When one fails, the others get SIGTERM, and SIGKILL 30 seconds later. Returns the exit code of
    each rank that has failed; a signal's number is negative.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # The agent reports failures itself.
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=nproc,
        run_id=secrets.token_hex(8),
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        rdzv_configs={"read_timeout": 600},  # a busy machine is no failure
        local_addr="localhost",  # the machine's own name may lead nowhere
        logs_specs=DefaultLogsSpecs(log_dir=os.devnull),  # they print where the agent does
        max_restarts=0,  # the agent knows better when that helps
        monitor_interval=POLL_PERIOD_SECONDS,
    )
    try:
        elastic_launch(config, sys.executable)("-P", "-m", "hookflow.runner", *arguments)
    except ChildFailedError as error:
        return {rank: failure.exitcode for rank, failure in error.failures.items()}
    return {}


def main() -> None:
    """`python -m hookflow.runner.distributed.agent RUN_DIR --nproc N …`.

    `hookflow run --nproc N` starts it.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("run_dir", type=lambda path: RunDir(Path(path)))
    parser.add_argument("--nproc", type=int, required=True)
    parser.add_argument("--max-restarts", type=int, default=0)
    parser.add_argument("--locks", type=inherit)
    provided, options = parser.parse_known_args()
    os.environ.setdefault("OMP_NUM_THREADS", str(max(cores() // provided.nproc, 1)))
    raise SystemExit(
        RankAgent(provided.run_dir, provided.nproc, provided.max_restarts, options).execute()
    )


if __name__ == "__main__":
    main()
