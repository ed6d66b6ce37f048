"""What torch.distributed's launcher tells the ranks that it starts, and the store by which they talk to one another.

The store is there before they are a process group, and after that has broken. Imports torch only for the store.
"""

from __future__ import annotations

import os
import socket
import time
from datetime import timedelta
from typing import TYPE_CHECKING

import psutil

from hookflow.runner.ranks import Ranks

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store


PERIOD = 0.05
"""Seconds between looks whether the others are there."""


def started_by_torchrun() -> bool:
    """Say whether this process is one of several that a launcher has started with the same command."""
    return "TORCHELASTIC_RUN_ID" in os.environ or int(os.environ.get("WORLD_SIZE", "1")) > 1


def restarts() -> tuple[int, int]:
    """Return how often the launcher has started these ranks again, and how often it may in all."""
    done, most = (os.environ.get(f"TORCHELASTIC_{name}", "0") for name in ("RESTART_COUNT", "MAX_RESTARTS"))
    return int(done), int(most)


def identity() -> tuple[str, str]:
    """Return the id that the user has given to this launch ("" for none), and the process that is behind it here."""
    given = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    parent = psutil.Process(os.getppid())
    return "" if given == "none" else given, f"{socket.gethostname()} {parent.pid} {parent.create_time():.0f}"


def store(seconds: float) -> Store:
    """Return the store at `MASTER_ADDR` and `MASTER_PORT`, with what these ranks tell since they were last started.

    Whoever waits for a key in it does so for at most `seconds`. Raises RuntimeError when it cannot be reached.
    """
    from torch._C._distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    found, _, _ = next(rendezvous("env://", timeout=timedelta(seconds=seconds)))
    done, _ = restarts()
    return PrefixStore(f"hookflow/{done}", found)


def meet(ranks: Ranks, seconds: float) -> Store:
    """Return the store once all ranks are there. Raises RuntimeError when they are not, after so many seconds.

    The library would wait without looking at signals: a rank that fails before it is there would leave the others
    deaf to the launcher.
    """
    found = store(seconds)
    found.set(f"rank {ranks.rank}", "")
    expected = [f"rank {rank}" for rank in range(ranks.world)]
    until = time.monotonic() + seconds
    while not found.check(expected):
        if time.monotonic() > until:
            missing = ", ".join(name for name in expected if not found.check([name]))
            raise RuntimeError(f"not all ranks are there after {seconds} seconds; still missing: {missing}")
        time.sleep(PERIOD)
    return found
