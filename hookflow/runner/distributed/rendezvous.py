"""Rendezvous: the environment that the launcher gives to the ranks, and their store.

The store exists before the process group and outlives it, also over a restart. Imports torch only for the store.
"""

from __future__ import annotations

import os
import secrets
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store


@dataclass(frozen=True, slots=True)
class Ranks:
    """The rank of this process, of `world` ranks, and its number on this machine."""

    rank: int = 0
    world: int = 1
    local: int = 0

    @property
    def first(self) -> bool:
        """Whether this rank reports and writes for all."""
        return self.rank == 0


ALONE = Ranks()


def of_environment() -> Ranks:
    """Return the ranks of the environment that the launcher (torchrun, `hookflow run --nproc`) has set."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    return Ranks(*(int(os.environ.get(name, alone)) for name, alone in zip(names, "010", strict=True)))


PERIOD = 0.05
"""Seconds between the checks for the others."""

joined: Store | None = None
"""The result of `rendezvous`; None before it."""


def started_by_torchrun() -> bool:
    """Return whether a launcher has started several processes with the same command as this one."""
    return "TORCHELASTIC_RUN_ID" in os.environ or int(os.environ.get("WORLD_SIZE", "1")) > 1


def restarts() -> tuple[int, int]:
    """Return how often this machine's launcher has restarted its ranks, and how often it may in all."""
    done, most = (os.environ.get(f"TORCHELASTIC_{name}", "0") for name in ("RESTART_COUNT", "MAX_RESTARTS"))
    return int(done), int(most)


def store(seconds: float) -> Store:
    """Return the store at `MASTER_ADDR` and `MASTER_PORT`, whose waits last at most `seconds`.

    Ranks of earlier starts may have left keys in it. Raises RuntimeError when it cannot be reached.
    """
    from torch._C._distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous as of_torch

    result, _, _ = next(of_torch("env://", timeout=timedelta(seconds=seconds)))
    return PrefixStore("hookflow", result)


def rendezvous(ranks: Ranks, seconds: float) -> Store:
    """Return a part of the store that is these ranks' own, once all of them are there.

    Rank 0 answers each rank's token with a new prefix, since launchers of several machines count restarts apart. Polls,
    because a wait of the library ignores signals. Raises RuntimeError when they are not there after so many seconds.
    """
    global joined
    if joined is not None:
        return joined
    from torch._C._distributed_c10d import PrefixStore

    tcp_store, me = store(seconds), secrets.token_hex(8)
    name = me if ranks.first else ""
    tcp_store.set(f"arrived {ranks.rank}", me)
    expected = [f"rank {rank}" for rank in range(ranks.world)]
    until = time.monotonic() + seconds
    while True:
        if ranks.first:  # also for ranks of an earlier start
            for rank in range(1, ranks.world):
                if tcp_store.check([f"arrived {rank}"]):
                    tcp_store.set(f"answer {tcp_store.get(f'arrived {rank}').decode()}", me)
        elif tcp_store.check([f"answer {me}"]):
            name = tcp_store.get(f"answer {me}").decode()
        if name:
            ours = PrefixStore(name, tcp_store)
            ours.set(f"rank {ranks.rank}", "")
            if ours.check(expected):
                joined = ours
                return ours
        if time.monotonic() > until:
            raise RuntimeError(f"not all of the {ranks.world} ranks are there after {seconds} seconds")
        time.sleep(PERIOD)


def join_anew() -> None:
    """Let these ranks have another part of the store for their next process group: the last one has left keys in it."""
    global joined
    from torch._C._distributed_c10d import PrefixStore

    joined = PrefixStore("again", joined) if joined is not None else None
