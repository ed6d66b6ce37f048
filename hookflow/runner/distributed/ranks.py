"""Which of the processes that train together this one is. Imports no torch: it is asked before torch is there."""

from __future__ import annotations

import os
from dataclasses import dataclass


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
    """Return what the launcher (torchrun, or `hookflow run --nproc`) has told this process."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    return Ranks(*(int(os.environ.get(name, alone)) for name, alone in zip(names, "010", strict=True)))
