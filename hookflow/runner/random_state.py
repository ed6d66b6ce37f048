"""The random generators of a run: their state, and seeds for batches and examples."""

import ctypes
import random
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from functools import lru_cache
from itertools import chain, count, islice
from typing import Any, NamedTuple

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
    BESIDE = 6


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
    seed_generators(*_seeds_of_block(seed, stream, *place, batch // BLOCK)[batch % BLOCK])


def batch_seeds(seed: int, stream: RNGStream, *place: int, start: int) -> Iterator[Sequence[int]]:
    """Yield the arguments with which `seed_for_batch` calls `seed_generators`, from batch `start` on."""
    blocks = (_seeds_of_block(seed, stream, *place, block) for block in count(start // BLOCK))
    return islice(chain.from_iterable(blocks), start % BLOCK, None)


def batch_seed(seed: int, stream: RNGStream, *place: int, batch: int) -> int:
    """Return a seed for a batch, 0 to 2**64 - 1: as `derive_seed`, in a tenth of the time."""
    return _seeds_of_block(seed, stream, *place, batch // BLOCK)[batch % BLOCK][0]


@lru_cache(maxsize=16)
def _seeds_of_block(seed: int, stream: RNGStream, *place: int) -> list[list[int]]:
    words = np.random.SeedSequence((stream, *place, seed)).generate_state(2 * BLOCK, np.uint64)
    return words.reshape(BLOCK, 2).tolist()


def seed_generators(seed: int, numpy_seed: int) -> None:
    torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed the other devices, too
    random.seed(seed)
    np.random.seed(numpy_seed % 2**32)  # from `seed` it would give the numbers of torch's, which has the same algorithm


STATE = struct.Struct("625I")
"""A Mersenne Twister in memory: 624 words and the position in them, which Python has before them and NumPy after."""


def _memory(address: int) -> Any:
    return (ctypes.c_char * STATE.size).from_address(address)


def _memory_of_python() -> Any:
    """Return the memory of Python's generator; None where it is not laid out as in CPython."""
    offset = object.__basicsize__
    if getattr(random.Random, "__basicsize__", 0) < offset + STATE.size:
        return None
    memory = _memory(id(_PYTHON) + offset)
    position, *words = STATE.unpack(memory.raw)
    return memory if (*words, position) == random.getstate()[1] else None


_PYTHON: Any = random._inst
_MEMORY = _memory_of_python()
_SPARES: list[tuple[Any, Any]] = []
"""NumPy's generators that `fork_generators` exchanges for the global one, and their memory."""


class _Kept(NamedTuple):
    """Python's and NumPy's generators as kept, and the positions of those in use meanwhile."""

    numpy: Any
    words: bytes
    """The state of NumPy's where it stays in place, else empty."""
    python: Any
    memory: Any
    """The memory of the generator that NumPy uses meanwhile."""
    positions: Any


_REST: list[_Kept] = []
"""The generators as they were last restored."""

Fork = tuple[torch.Tensor, Any, _Kept, bool]
"""Torch's state, the spare generator in the place of NumPy's or None, the others as kept, and `idle`."""


def fork_generators(seeds: Sequence[int] = (), *, idle: bool = False) -> Fork:
    """Keep the generators of the CPU for `restore_generators`, as `torch.random.fork_rng` keeps torch's; seed them.

    To copy the state of NumPy's takes 70 µs: it is exchanged for a spare one. Then NumPy forgets the second number of
    a pair that its legacy `randn` has made, whatever happens until it is restored. Of Python's, `getstate` and
    `setstate` take 18 µs: its memory is copied where that is possible.

    With `idle` Python's and NumPy's are expected to stay unused, and are not seeded. Where nothing has used them since
    they were last restored, they stay in place.
    """
    numpy, of_torch = np.random.get_bit_generator(), torch.default_generator.get_state()  # type: ignore[attr-defined]
    if seeds and idle:
        torch.default_generator.manual_seed(seeds[0])
    if idle and _REST and numpy is _REST[0].numpy and _positions(_REST[0].memory) == _REST[0].positions:
        return of_torch, None, _REST[0], idle
    if not _SPARES:
        spare = np.random.MT19937()
        _SPARES.append((spare, _memory(spare.ctypes.state_address)))
    spare, memory = _SPARES.pop()
    python = random.getstate() if _MEMORY is None else (_MEMORY.raw, _PYTHON.gauss_next)
    np.random.set_bit_generator(spare)  # type: ignore[attr-defined]
    if seeds and not idle:
        seed_generators(*seeds)
    return of_torch, spare, _Kept(numpy, b"", python, memory, _positions(memory)), idle


def restore_generators(fork: Fork) -> bool:
    """Restore what was kept; return whether Python's or NumPy's were used since they were kept and seeded."""
    of_torch, spare, kept, idle = fork
    torch.default_generator.set_state(of_torch)
    used = bool(_positions(kept.memory) != kept.positions)
    if spare:
        _SPARES.append((spare, kept.memory))
    elif used:
        kept.memory.raw = kept.words
    else:
        return False
    np.random.set_bit_generator(kept.numpy)  # type: ignore[attr-defined]
    if _MEMORY is None:
        random.setstate(kept.python)
    else:
        _MEMORY.raw, _PYTHON.gauss_next = kept.python
    if idle and spare and type(kept.numpy) is np.random.MT19937:
        own = _memory(kept.numpy.ctypes.state_address)
        _REST[:] = [_Kept(kept.numpy, own.raw, kept.python, own, _positions(own))]
    return used


def _positions(numpy: Any) -> Any:
    """Return what any use of Python's generator, or of NumPy's in this memory, changes; unequal to all if unknown."""
    return (_MEMORY[:16], _PYTHON.gauss_next, numpy[:4], numpy[-4:]) if _MEMORY else object()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed Python's, NumPy's and torch's generators of the CPU, and restore them at the end."""
    fork = fork_generators((seed, seed >> 32))
    try:
        yield
    finally:
        restore_generators(fork)
