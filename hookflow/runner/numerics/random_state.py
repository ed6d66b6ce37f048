"""The random generators of a run: their state, and seeds for batches and examples."""

from __future__ import annotations

import ctypes
import random
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import torch

BLOCK = 256
"""Batches whose seeds are derived at once: one derivation takes 10 µs."""


def random_state(device: torch.device) -> dict[str, Any]:
    """Return the state of every global random generator, as plain values and tensors."""
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


def seed_for_batch(seed: int, stream: RNGStream, *place: int, batch: int) -> None:
    """Seed the generators of the CPU for a batch of a place (epoch, rank, …), unlike any other of the run's seed."""
    _seed_generators(*_seeds_of_block(seed, stream, *place, batch // BLOCK)[batch % BLOCK])


def batch_seed(seed: int, stream: RNGStream, *place: int, batch: int) -> int:
    """Return a seed for a batch, 0 to 2**64 - 1: as `derive_seed`, in a tenth of the time."""
    return _seeds_of_block(seed, stream, *place, batch // BLOCK)[batch % BLOCK][0]


@lru_cache(maxsize=16)
def _seeds_of_block(seed: int, stream: RNGStream, *place: int) -> list[list[int]]:
    words = np.random.SeedSequence((stream, *place, seed)).generate_state(2 * BLOCK, np.uint64)
    return words.reshape(BLOCK, 2).tolist()


def _seed_generators(seed: int, numpy_seed: int) -> None:
    random.seed(seed)
    np.random.seed(numpy_seed % 2**32)  # from `seed` it would give the numbers of torch's, which has the same algorithm
    torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed the other devices, too


def _memory_of_python() -> Any:
    """Return the words of Python's generator in memory; None where they are not laid out as in CPython."""
    size, offset = struct.calcsize("625I"), object.__basicsize__
    if getattr(random.Random, "__basicsize__", 0) < offset + size:
        return None
    memory = (ctypes.c_char * size).from_address(id(_PYTHON) + offset)
    position, *words = struct.unpack("625I", memory.raw)
    return memory if (*words, position) == random.getstate()[1] else None


_PYTHON: Any = random._inst
_MEMORY = _memory_of_python()


class ForkRNG:
    """A context that restores the generators of the CPU at its end, as `torch.random.fork_rng` does for torch's.

    To copy the state of NumPy's takes 70 µs: it is exchanged for a spare one. Then NumPy forgets the second number of
    a pair that its legacy `randn` has made, whatever happens within. Of Python's, `getstate` and `setstate` take 18 µs:
    its memory is copied where that is possible.
    """

    _spares: ClassVar[list[np.random.MT19937]] = []

    def __enter__(self) -> None:
        self._python = random.getstate() if _MEMORY is None else (_MEMORY.raw, _PYTHON.gauss_next)
        self._torch = torch.default_generator.get_state()
        self._numpy: Any = np.random.get_bit_generator()  # type: ignore[attr-defined]
        self._spare = self._spares.pop() if self._spares else np.random.MT19937()
        np.random.set_bit_generator(self._spare)  # type: ignore[attr-defined]

    def __exit__(self, *raised: object) -> None:
        np.random.set_bit_generator(self._numpy)  # type: ignore[attr-defined]
        torch.default_generator.set_state(self._torch)
        if _MEMORY is None:
            random.setstate(self._python)
        else:
            _MEMORY.raw, _PYTHON.gauss_next = self._python
        self._spares.append(self._spare)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed Python's, NumPy's and torch's generators of the CPU in a `ForkRNG`."""
    with ForkRNG():
        _seed_generators(seed, seed >> 32)
        yield
