"""Random generators that data keep themselves: each worker process has a copy, which draws the same as the others."""

from collections.abc import Callable, Iterator
from itertools import islice
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

from hookflow.errors import first_few
from hookflow.runner.random_state import GENERATORS

DEPTH = 4
"""How deep it is looked for generators: a dataset, its transforms, one of them, its generator."""

ITEMS = 32
"""The most items of a list or a dictionary at which it is looked."""

OBJECTS = 2000
"""The most attributes and items at which it is looked in all."""

OPAQUE = (type, FunctionType, BuiltinFunctionType, MethodType, ModuleType)


def warn_of_copies(data: Any, workers: int, say: Callable[..., None]) -> None:
    """Warn of generators in data that are fetched by workers without a function that begins each of them."""
    names = list(own_generators(data))
    if not names or not workers:
        return
    what_happens = "its worker has a copy, which begins anew at a resume"
    if workers > 1:
        what_happens = f"each of its {workers} workers has a copy, which draws the same numbers"
    hint = "draw from random, np.random or torch, which are seeded for each batch, or seed them by worker_init_fn"
    kept = f"{type(data).__name__} keeps generators of its own: {first_few(names)}"
    say(f"{kept}; {what_happens}. Instead {hint}", "warn")


def own_generators(owner: Any, depth: int = DEPTH, left: Iterator[int] | None = None) -> Iterator[str]:
    """Yield the names of the attributes of an object that hold random generators, with dots where they lie deeper."""
    left = iter(range(OBJECTS)) if left is None else left
    for name, value in _parts(owner):
        if next(left, None) is None:
            return
        if isinstance(value, GENERATORS):
            yield name
        elif depth > 1:
            yield from (f"{name}.{inner}" for inner in own_generators(value, depth - 1, left))


def _parts(owner: Any) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of an object, or the first items of a collection, by name."""
    if isinstance(owner, list | tuple):
        yield from ((str(k), item) for k, item in enumerate(owner[:ITEMS]))
    elif isinstance(owner, dict):
        yield from ((str(key), item) for key, item in islice(owner.items(), ITEMS))
    elif not isinstance(owner, OPAQUE):
        yield from list(getattr(owner, "__dict__", {}).items())
