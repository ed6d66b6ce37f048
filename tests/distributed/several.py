"""Several ranks of one run, each a process of its own, with the environment that a launcher would give it."""

from __future__ import annotations

from pathlib import Path

from torch._C._distributed_c10d import TCPStore

from hookflow.events.rundir import RunDir
from tests.processes import Training


class Ranks:
    """The processes that carry out a run together, by rank; when left as a context, none of them is left over.

    As with torch's launcher, the store by which they meet is none of theirs, and stays when they have gone. `options`
    are those of `hookflow.runner.process.main.train`.
    """

    def __init__(self, run_dir: RunDir, world: int, **options: bool) -> None:
        self.store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        meeting = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self.store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "WORLD_SIZE": str(world),
        }
        self.trainings = [
            Training(
                run_dir,
                output=output_of(run_dir, rank).name,
                environment={**meeting, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                **options,
            )
            for rank in range(world)
        ]

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *error: object) -> None:
        for training in self.trainings:
            training.process.kill()
            training.process.join()

    def wait(self) -> list[int]:
        """Return the exit codes of all ranks, negative for a signal."""
        return [training.wait() for training in self.trainings]


def carry_out(run_dir: RunDir, world: int, **options: bool) -> list[int]:
    """Carry out a run on so many ranks; return their exit codes."""
    with Ranks(run_dir, world, **options) as ranks:
        return ranks.wait()


def printed(run_dir: RunDir, rank: int) -> str:
    """Return what a rank has printed."""
    return output_of(run_dir, rank).read_text()


def output_of(run_dir: RunDir, rank: int) -> Path:
    """Return the file of what a rank prints."""
    return run_dir.path / f"output.rank{rank}.log"
