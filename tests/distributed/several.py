"""Several ranks of one run, each a process of its own,
with the environment that a launcher would give it.
"""

from typing import Any

from torch._C._distributed_c10d import TCPStore

from hookflow.events.log import TailReader
from hookflow.events.rundir import RunDir
from tests.conftest import rows
from tests.support.processes import Training


class Ranks:
    """The processes that execute a run together, by rank; when left as a context, all of them have
    ended.

    As with torch's launcher, the rendezvous store belongs to none of them. `options` are those of
    `hookflow.runner.attempt.main.train`. With `num_local` they are as on several machines, each of
    which has so many.
    """

    def __init__(
        self, run_dir: RunDir, world: int, num_local: int | None = None, **options: bool
    ) -> None:
        num_local = num_local or world
        self.store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        meeting = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self.store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "WORLD_SIZE": str(world),
            "LOCAL_WORLD_SIZE": str(num_local),
        }
        self.trainings = [
            Training(
                run_dir,
                output=f"output.rank{rank}.log",
                environment={
                    **meeting,
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank % num_local),
                    "GROUP_RANK": str(rank // num_local),
                },
                **options,
            )
            for rank in range(world)
        ]

    def __enter__(self) -> "Ranks":
        return self

    def __exit__(self, *error: object) -> None:
        for training in self.trainings:
            training.process.kill()
            training.process.join()

    def wait(self) -> list[int]:
        """Return the exit codes of all ranks, negative for a signal."""
        return [training.wait() for training in self.trainings]


def carry_out(
    run_dir: RunDir, world: int, num_local: int | None = None, **options: bool
) -> list[int]:
    """Execute a run on so many ranks; return their exit codes."""
    with Ranks(run_dir, world, num_local, **options) as ranks:
        return ranks.wait()


def printed(run_dir: RunDir, rank: int) -> str:
    """Return the output of a rank."""
    return (run_dir.path / f"output.rank{rank}.log").read_text()


def records_of(run_dir: RunDir, kind: str, rank: int = 0) -> list[dict[str, Any]]:
    """Return the records of a kind in a rank's event log."""
    every = TailReader(run_dir.find_events_path(rank)).read_all()
    return [row for record in every if record["k"] == kind for row in rows(record)]


def messages_of(run_dir: RunDir, rank: int, *prefixes: str) -> list[str]:
    """Return the messages in a rank's event log that begin with one of these."""
    texts = [record["text"] for record in records_of(run_dir, "message", rank)]
    return [text for text in texts if text.startswith(prefixes or "")]
