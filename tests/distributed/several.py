"""Several ranks of one run, each a process of its own, as a launcher would start them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from hookflow.events.rundir import RunDir


class Ranks:
    """The processes that carry out a run together; leave it as a context, and none of them is left."""

    def __init__(self, run_dir: RunDir, world: int, *options: str) -> None:
        self.run_dir = run_dir
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "hookflow.runner", str(run_dir.path), *options]
        self.processes = []
        for rank in range(world):
            place = {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank)}
            with output_of(run_dir, rank).open("ab") as output:
                self.processes.append(
                    subprocess.Popen(
                        command, env={**os.environ, **meeting, **place}, stdout=output, stderr=subprocess.STDOUT
                    )
                )

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self.processes:
            process.kill()
            process.wait()

    def wait(self) -> list[int]:
        """Return the exit codes of all ranks, negative for a signal."""
        return [process.wait(120) for process in self.processes]


def carry_out(run_dir: RunDir, world: int, *options: str) -> list[int]:
    """Carry out a run on so many ranks, with options of `hookflow.runner.process.main`; return their exit codes."""
    with Ranks(run_dir, world, *options) as ranks:
        return ranks.wait()


def printed(run_dir: RunDir, rank: int) -> str:
    """Return what a rank has printed."""
    return output_of(run_dir, rank).read_text()


def output_of(run_dir: RunDir, rank: int) -> Path:
    return run_dir.path / f"output.rank{rank}.log"


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
