"""Random numbers that can be reproduced: each purpose has RNG streams of its own, seeded by nothing that came before.

The seed of a stream is derived from the run's seed, the purpose, and the place (epoch, batch, …).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Any

import numpy as np
import torch


class RNGStream(IntEnum):
    """What random numbers are for; each purpose has its own. The values are part of every derived seed."""

    ORDER = 1
    EXAMPLES = 2
    AUGMENT = 3
    RANK = 5


def derive_seed(seed: int, stream: RNGStream, *place: int) -> int:
    """Return a seed, 0 to 2**64 - 1, unlike that of any other stream or place (epoch, batch, …) of a run's seed."""
    return int(np.random.SeedSequence((stream, *place, seed)).generate_state(1, np.uint64)[0])


def seed_everything(seed: int) -> None:
    """Seed every global random generator: Python's, NumPy's and torch's, on every device."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def generator_states() -> tuple[Any, ...]:
    """Return the states of the generators that `seeded` seeds, as values that can be compared."""
    _, words, *rest = np.random.get_state(legacy=True)
    return random.getstate(), bytes(np.asarray(words)), *rest, torch.get_rng_state().numpy().tobytes()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed Python's, NumPy's and torch's generators of the CPU, and restore their states afterwards."""
    python, numpy, torch_ = random.getstate(), np.random.get_state(legacy=True), torch.get_rng_state()
    random.seed(seed)
    np.random.seed([seed % 2**32, seed >> 32, 1])  # with the two words alone it would give the numbers of Python's
    torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed the other devices, too
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(torch_)
