"""The random generators of a run: their state, and seeds for batches and examples."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Any

import numpy as np
import torch


def random_state(device: torch.device) -> dict[str, Any]:
    """Return the state of every global random generator, as plain values and tensors: a number each is slow to save."""
    version, own, next_gauss = random.getstate()
    kind, words, position, has_gauss, gauss = np.random.get_state(legacy=True)
    return {
        "python": (version, torch.tensor(own, dtype=torch.int64), next_gauss),
        "numpy": (kind, torch.from_numpy(np.asarray(words, dtype=np.int64)), position, has_gauss, gauss),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
    }


def set_random_state(state: dict[str, Any], device: torch.device) -> None:
    """Put back what `random_state` returned, maybe of a run on another kind of device."""
    version, own, next_gauss = state["python"]
    random.setstate((version, tuple(own.tolist()), next_gauss))
    kind, words, *rest = state["numpy"]
    np.random.set_state((kind, words.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"], device)


class RNGStream(IntEnum):
    """The uses of random numbers; each purpose has its own. The values are part of every derived seed."""

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
