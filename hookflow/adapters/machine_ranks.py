"""The ranks of a run by machine, as its launcher numbers them."""

import os
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class MachineRanks:
    """The number of this process among those of its machine, and how many these are."""

    local_rank: int
    num_local: int

    @classmethod
    def of_environment(cls, run: Any) -> Self:
        """Return the ranks of this machine by the variables that torchrun sets.

        Without them all ranks of the run are on one machine.
        """
        if run.world == 1:
            return cls(local_rank=0, num_local=1)
        local_rank = os.environ.get("LOCAL_RANK", run.rank)
        num_local = os.environ.get("LOCAL_WORLD_SIZE", run.world)
        return cls(int(local_rank), int(num_local))
