"""The random generators of a run: their state, and seeds for batches and examples."""

import random
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from enum import IntEnum
from functools import lru_cache
from itertools import chain, count, islice
from typing import Any

import numpy as np
import torch

GENERATOR_TYPES = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)
"""Generators that an object may keep beside the global ones."""

SEED_BLOCK_SIZE = 256
"""Batches whose seeds are derived at once: one derivation takes 10 µs."""


def random_state(device: torch.device) -> dict[str, Any]:
    """Return the state of every global random generator, as plain values and tensors."""
    return pack_random_state(raw_random_state(device))


def raw_random_state(device: torch.device) -> dict[str, Any]:
    """Return the state of every global random generator as the generators give it.

    This is quicker.
    """
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(legacy=True),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        "mps": torch.mps.get_rng_state() if device.type == "mps" else None,
    }


def pack_random_state(raw: dict[str, Any]) -> dict[str, Any]:
    """Return what `raw_random_state` has returned as values that a checkpoint holds.

    They are plain values and tensors.
    """
    version, own, next_gauss = raw["python"]
    kind, words, position, has_gauss, gauss = raw["numpy"]
    return {
        "python": (version, torch.tensor(own, dtype=torch.int64), next_gauss),
        "numpy": (
            kind,
            torch.from_numpy(np.asarray(words, dtype=np.int64)),
            position,
            has_gauss,
            gauss,
        ),
        "torch": raw["torch"],
        "cuda": raw["cuda"],
        "mps": raw["mps"],
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
    mps = state.get("mps")  # checkpoints of earlier versions have no such entry
    if mps is not None and device.type == "mps":
        torch.mps.set_rng_state(mps)


@contextmanager
def restore_generators(device: torch.device, seed: int | None = None) -> Iterator[None]:
    """Restore every global random generator afterwards; with a `seed`, seed them before."""
    before = random_state(device)
    if seed is not None:
        seed_generators(seed, seed >> 32)
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        elif device.type == "mps":
            torch.mps.manual_seed(seed)
    try:
        yield
    finally:
        set_random_state(before, device)


class RNGStream(IntEnum):
    """The uses of random numbers; each purpose has its own.

    The values are part of every derived seed.
    """

    ORDER = 1
    EXAMPLES = 2
    AUGMENT = 3
    RANK = 5
    BESIDE = 6
    EVALUATION = 7
    MIX = 8


def derive_seed(seed: int, stream: RNGStream, *place: int) -> int:
    """Return a seed, 0 to 2**64 - 1, unlike that of any other stream or place.

    A place is an epoch, a batch, … of a run's seed.
    """
    return int(np.random.SeedSequence((stream, *place, seed)).generate_state(1, np.uint64)[0])


def seed_everything(seed: int) -> None:
    """Seed every global random generator: Python's, NumPy's and torch's, on every device."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def generator_states() -> tuple[Any, ...]:
    """Return the states of the generators that `seeded` seeds, as values that can be compared."""
    _, words, *rest = np.random.get_state(legacy=True)
    return (
        random.getstate(),
        bytes(np.asarray(words)),
        *rest,
        torch.get_rng_state().numpy().tobytes(),
    )


def seed_for_batch(seed: int, stream: RNGStream, *place: int, batch: int) -> None:
    """Seed the generators of the CPU for a batch of a place, unlike any other of the run's seed.

    A place is epoch, rank, ….
    """
    seed_generators(
        *_compute_block_seeds(seed, stream, *place, batch // SEED_BLOCK_SIZE)[
            batch % SEED_BLOCK_SIZE
        ]
    )


def batch_seeds(seed: int, stream: RNGStream, *place: int, start: int) -> Iterator[Sequence[int]]:
    """Yield the arguments of `seed_generators` for each batch, from batch `start` on.

    `seed_for_batch` calls it with these.
    """
    blocks = (
        _compute_block_seeds(seed, stream, *place, block)
        for block in count(start // SEED_BLOCK_SIZE)
    )
    return islice(chain.from_iterable(blocks), start % SEED_BLOCK_SIZE, None)


def batch_seed(seed: int, stream: RNGStream, *place: int, batch: int) -> int:
    """Return a seed for a batch, 0 to 2**64 - 1: as `derive_seed`, in a tenth of the time."""
    return _compute_block_seeds(seed, stream, *place, batch // SEED_BLOCK_SIZE)[
        batch % SEED_BLOCK_SIZE
    ][0]


@lru_cache(maxsize=16)
def _compute_block_seeds(seed: int, stream: RNGStream, *place: int) -> list[list[int]]:
    words = np.random.SeedSequence((stream, *place, seed)).generate_state(
        2 * SEED_BLOCK_SIZE, np.uint64
    )
    return words.reshape(SEED_BLOCK_SIZE, 2).tolist()


def seed_generators(seed: int, numpy_seed: int) -> None:
    torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed the other devices, too
    random.seed(seed)
    # NumPy's generator has the same algorithm as torch's: from `seed` it would draw the same
    # numbers.
    np.random.seed(numpy_seed % 2**32)


class GeneratorFork:
    """Keeps the generators of the CPU for the training while others draw.

    `torch.random.fork_rng` keeps torch's like that. NumPy's global generator draws from a bit
    generator of the fork meanwhile: to exchange the two is quick, where a copy of the state takes
    70 µs. NumPy then forgets the second number of a pair that its legacy `randn` has made. A fork
    is not entered twice at once.
    """

    def __init__(self) -> None:
        self._numpy = np.random.MT19937(0)

    @contextmanager
    def drawing(self, seeds: Sequence[int] = ()) -> Iterator[None]:
        """Let others draw from generators with these arguments of `seed_generators`.

        Afterwards those of the training are restored.
        """
        numpy_of_training: Any = np.random.get_bit_generator()  # type: ignore[attr-defined]
        torch_state = torch.default_generator.get_state()
        python_state = random.getstate()
        np.random.set_bit_generator(self._numpy)  # type: ignore[attr-defined]
        try:
            if seeds:
                seed_generators(*seeds)
            yield
        finally:
            np.random.set_bit_generator(numpy_of_training)  # type: ignore[attr-defined]
            random.setstate(python_state)
            torch.default_generator.set_state(torch_state)


def seed_temporarily(seed: int) -> AbstractContextManager[None]:
    """Seed Python's, NumPy's and torch's generators of the CPU, and restore them at the end."""
    return GeneratorFork().drawing((seed, seed >> 32))
