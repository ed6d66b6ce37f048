"""Random generators that data keep themselves: found, saved and loaded.

Each worker process has a copy of them.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

from hookflow.errors import first_few
from hookflow.runner.device.random_state import GENERATOR_TYPES

MAX_SEARCH_DEPTH = 4
"""How deep it is looked for generators: a dataset, its transforms, one of them, its generator."""

MAX_ITEMS = 32
"""The most items of a list or a dictionary at which it is looked."""

MAX_OBJECTS = 2000
"""The most attributes and items at which it is looked in all."""

OPAQUE_TYPES = (type, FunctionType, BuiltinFunctionType, MethodType, ModuleType)


def warn_of_copies(data: Any, workers: int, say: Callable[..., None]) -> None:
    """Warn of generators in data whose workers have no function that begins each of them."""
    if not workers:
        return
    names = [*find_generators(data)]
    if not names:
        return
    what_happens = "its worker has a copy, which begins anew at a resume"
    if workers > 1:
        what_happens = f"each of its {workers} workers has a copy, which draws the same numbers"
    hint = (
        "draw from random, np.random or torch, which are seeded for each batch, or seed them by"
        " worker_init_fn"
    )
    kept = f"{type(data).__name__} keeps generators of its own: {first_few(names)}"
    say(f"{kept}; {what_happens}. Instead {hint}", "warn")


def find_generators(owner: Any) -> dict[str, Any]:
    """Return the random generators among the attributes of an object, by name.

    Names of deeper ones have dots.
    """
    return dict(_generators_in(owner, MAX_SEARCH_DEPTH, iter(range(MAX_OBJECTS))))


def _generators_in(owner: Any, depth: int, left: Iterator[int]) -> Iterator[tuple[str, Any]]:
    for name, value in _parts(owner):
        if next(left, None) is None:
            return
        if isinstance(value, GENERATOR_TYPES):
            yield name, value
        elif depth > 1:
            for inner, generator in _generators_in(value, depth - 1, left):
                yield f"{name}.{inner}", generator


def _parts(owner: Any) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of an object, or the first items of a collection, by name."""
    if isinstance(owner, list | tuple):
        yield from ((str(k), item) for k, item in enumerate(owner[:MAX_ITEMS]))
    elif isinstance(owner, dict):
        yield from ((str(key), item) for key, item in islice(owner.items(), MAX_ITEMS))
    elif not isinstance(owner, OPAQUE_TYPES):
        yield from list(getattr(owner, "__dict__", {}).items())


def save_generators(generators: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of each generator, made of what a checkpoint holds."""
    return {name: _state_of(generator) for name, generator in generators.items()}


def load_generators(generators: Mapping[str, Any], states: dict[str, Any]) -> None:
    """Put back what `save_generators` returned.

    Generators that are gone, or of another kind, are left alone.
    """
    for name, state in states.items():
        generator = generators.get(name)
        if generator is None or type(generator).__name__ != state["type"]:
            continue
        if isinstance(generator, random.Random):
            version, words, next_gauss = state["state"]
            generator.setstate((version, tuple(words), next_gauss))
        elif isinstance(generator, torch.Generator):
            generator.set_state(state["state"])
        elif isinstance(generator, np.random.RandomState):
            generator.set_state(_as_arrays(state["state"]))
        else:
            generator.bit_generator.state = _as_arrays(state["state"])


def _state_of(generator: Any) -> dict[str, Any]:
    state: Any
    if isinstance(generator, random.Random):
        version, words, next_gauss = generator.getstate()
        state = [version, list(words), next_gauss]
    elif isinstance(generator, torch.Generator):
        state = generator.get_state()
    elif isinstance(generator, np.random.RandomState):
        state = _as_lists(generator.get_state(legacy=False))
    else:
        state = _as_lists(generator.bit_generator.state)
    return {"type": type(generator).__name__, "state": state}


def _as_lists(state: Any) -> Any:
    """Return the state of a generator of NumPy with lists in the place of arrays."""
    if isinstance(state, dict):
        return {key: _as_lists(value) for key, value in state.items()}
    if isinstance(state, np.ndarray):
        return state.tolist()
    return state


def _as_arrays(state: Any) -> Any:
    """Return the state of a generator of NumPy with arrays in the place of lists."""
    if isinstance(state, dict):
        return {key: _as_arrays(value) for key, value in state.items()}
    if isinstance(state, list):
        return np.asarray(state, dtype=np.uint64)
    return state
