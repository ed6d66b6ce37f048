"""How many processors this process may use, which can be fewer than the machine has. Imports no torch."""

from __future__ import annotations

import os


def cores() -> int:
    """Return how many there are for it: those that Slurm or `taskset` has left to it, where the system tells."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
