"""Rendezvous: the environment that the launcher gives to the ranks, and their store.

The store is there before they are a process group, and after that has broken; and it may outlive them, when they are
started again. Imports torch only for the store.
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
    """This process is `rank` of `world`, and `local` among those on its machine. Alone, it is 0 of 1."""

    rank: int = 0
    world: int = 1
    local: int = 0

    @property
    def first(self) -> bool:
        """Whether this is the one that speaks, and writes, for all."""
        return self.rank == 0


ALONE = Ranks()


def of_environment() -> Ranks:
    """Return the environment that the launcher (torchrun, or `hookflow run --nproc`) has set."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    return Ranks(*(int(os.environ.get(name, alone)) for name, alone in zip(names, "010", strict=True)))


PERIOD = 0.05
"""Seconds between looks whether the others are there."""

_joined: Store | None = None


def started_by_torchrun() -> bool:
    """Say whether this process is one of several that a launcher has started with the same command."""
    return "TORCHELASTIC_RUN_ID" in os.environ or int(os.environ.get("WORLD_SIZE", "1")) > 1


def restarts() -> tuple[int, int]:
    """Return how often the launcher on this machine has started its ranks again, and how often it may in all."""
    done, most = (os.environ.get(f"TORCHELASTIC_{name}", "0") for name in ("RESTART_COUNT", "MAX_RESTARTS"))
    return int(done), int(most)


def store(seconds: float) -> Store:
    """Return the store at `MASTER_ADDR` and `MASTER_PORT`, with what ranks of earlier starts may have left in it.

    A wait for a key in it lasts at most `seconds`. Raises RuntimeError when it cannot be reached.
    """
    from torch._C._distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous as of_torch

    result, _, _ = next(of_torch("env://", timeout=timedelta(seconds=seconds)))
    return PrefixStore("hookflow", result)


def joined() -> Store | None:
    """Return what `rendezvous` has returned; None where these ranks have not found each other."""
    return _joined


def rendezvous(ranks: Ranks, seconds: float) -> Store:
    """Return a part of the store that is these ranks' own, once all of them are there.

    Rank 0 answers each by a word that this one has just made up, since another machine's launcher does not count this
    one's restarts. Raises RuntimeError when they are not there after so many seconds. The library would wait without
    looking at signals: a rank that fails before it is there would leave the others deaf to the launcher.
    """
    global _joined
    if _joined is not None:
        return _joined
    from torch._C._distributed_c10d import PrefixStore

    tcp_store, me = store(seconds), secrets.token_hex(8)
    name = me if ranks.first else ""
    tcp_store.set(f"arrived {ranks.rank}", me)
    expected = [f"rank {rank}" for rank in range(ranks.world)]
    until = time.monotonic() + seconds
    while True:
        if ranks.first:
            _answer(tcp_store, me, ranks.world)
        elif tcp_store.check([f"answer {me}"]):
            name = tcp_store.get(f"answer {me}").decode()
        if name:
            ours = PrefixStore(name, tcp_store)
            ours.set(f"rank {ranks.rank}", "")
            if ours.check(expected):
                _joined = ours
                return ours
        if time.monotonic() > until:
            raise RuntimeError(f"not all of the {ranks.world} ranks are there after {seconds} seconds")
        time.sleep(PERIOD)


def _answer(result: Store, name: str, world: int) -> None:
    """Publish the prefix of these ranks in the store, also for ranks of an earlier start."""
    for rank in range(1, world):
        if result.check([f"arrived {rank}"]):
            result.set(f"answer {result.get(f'arrived {rank}').decode()}", name)
