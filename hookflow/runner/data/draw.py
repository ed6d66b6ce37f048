"""Chance that can be drawn again: generators seeded by what is drawn for, and by nothing that came before."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

import numpy as np
import torch


class Draw(IntEnum):
    """What is drawn for; each has generators of its own."""

    ORDER = 1
    EXAMPLES = 2
    AUGMENT = 3
    STREAM = 4
    RANK = 5


def seed_of(seed: int, draw: Draw, *place: int) -> int:
    """Return a seed, 0 to 2**64 - 1, unlike that of any other draw or place (epoch, batch, …) of a run's seed."""
    return int(np.random.SeedSequence((draw, *place, seed)).generate_state(1, np.uint64)[0])


@contextmanager
def drawing(seed: int) -> Iterator[None]:
    """Seed Python's, NumPy's and torch's generators of the CPU, and leave them afterwards as they were."""
    python, numpy, torch_ = random.getstate(), np.random.get_state(legacy=True), torch.get_rng_state()
    random.seed(seed)
    np.random.seed([seed % 2**32, seed >> 32, 1])  # with the two words alone it would give the numbers of Python's
    torch.default_generator.manual_seed(seed)  # torch.manual_seed would reach for the other devices, too
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(torch_)
