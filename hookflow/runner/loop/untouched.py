"""Undo for calls of user code: weights, generators, modes and attributes are restored.

Not restored: what the code changes outside of its own objects (files, module globals), and what holds a thread
or a lock, which others may be using.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hookflow.runner.data.loader import Loader
from hookflow.runner.data.on_device import OnDevice
from hookflow.runner.numerics.random_state import random_state, set_random_state

Undo = Callable[[], None]

LONGEST = 1000
"""Items of a list, or of a dict, whose own attributes are looked after."""

OF_TORCH = frozenset(vars(nn.Module()))
"""Attributes of every module: its parameters, buffers, hooks and mode."""

_ATOMS = (type(None), bool, int, float, complex, str, bytes, type, torch.dtype, torch.device, torch.Size)
_IN_USE = (threading.Thread, type(threading.Lock()), type(threading.RLock()), threading.Condition, threading.Event)
_NOT_LOOKED_INTO = ("hookflow.runner.", "torch.", "builtins", "types", "functools", "inspect", "_thread")
"""Modules of objects that have no state of the user's; what FSDP keeps beside a network must stay as it is."""
_BUT = ("hookflow.runner.data.", "torch.utils.data.")

_PURE = (Loader, OnDevice)
"""Sources whose batches depend on nothing that came before."""


@contextmanager
def untouched(model: nn.Module, device: torch.device, *others: Any, data: Iterable[Any] = ()) -> Iterator[None]:
    """Put back, afterwards, whatever has changed of the model, of these objects and of what they hold.

    Of `data` the tensors are not looked after: a source does not change its examples.
    """
    undo = [*_Kept(tensors=True).of(model, *others), *_Kept(tensors=False).of(*data)]
    generators = random_state(device)
    try:
        yield
    finally:
        for back in undo:
            back()
        set_random_state(generators, device)


class _Kept:
    """The state of objects, and how to restore each."""

    def __init__(self, *, tensors: bool) -> None:
        self._tensors = tensors
        self._seen: dict[int, Any] = {}

    def of(self, *things: Any) -> Iterator[Undo]:
        """Yield what puts these back, and all that they hold."""
        waiting = list(things)
        while waiting:
            thing = waiting.pop()
            if isinstance(thing, _ATOMS) or id(thing) in self._seen:
                continue
            self._seen[id(thing)] = thing  # which also keeps its id from being used again
            yield from self._undo(thing)
            waiting += _held(thing)

    def _undo(self, thing: Any) -> Iterator[Undo]:
        match thing:
            case Tensor():
                if self._tensors:
                    yield from _tensor(thing)
            case np.ndarray():
                if self._tensors:
                    yield _array(thing)
            case torch.Generator():
                yield _setter(thing.set_state, thing.get_state())
            case np.random.Generator() | np.random.RandomState():
                yield _generator(thing)
            case random.Random():
                yield _setter(thing.setstate, thing.getstate())
            case dict() | set():
                yield _collection(thing, thing.update)
            case list() | deque():
                yield _collection(thing, thing.extend)
            case nn.Module():
                yield _attributes(thing, OF_TORCH)
                yield _collection(thing._buffers, thing._buffers.update)
            case _ if is_object(thing):
                yield _attributes(thing)


def _held(thing: Any) -> Iterable[Any]:
    """Return what belongs to a thing, and may change with it."""
    if isinstance(thing, dict):
        return list(thing.values())[:LONGEST]
    if isinstance(thing, list | tuple | set | deque):
        return list(thing)[:LONGEST]
    if isinstance(thing, nn.Module):
        own = (value for name, value in vars(thing).items() if name not in OF_TORCH)
        return [*own, *thing._parameters.values(), *thing._buffers.values(), *thing._modules.values()]
    return list(vars(thing).values()) if is_object(thing) else ()


def is_object(thing: Any) -> bool:
    """Say whether something is an object of the user's, or of a library that he uses, with attributes of its own."""
    kind = type(thing)
    if not hasattr(thing, "__dict__") or callable(getattr(thing, "__get__", None)) or isinstance(thing, _PURE):
        return False
    known = kind.__module__.startswith(_NOT_LOOKED_INTO) and not kind.__module__.startswith(_BUT)
    return not known and not any(isinstance(value, _IN_USE) for value in vars(thing).values())


def _tensor(tensor: Tensor) -> Iterator[Undo]:
    """Keep a copy, on the host. A parameter says whether it was written to; of a buffer batch norm does not tell."""
    if tensor.is_inference():  # it is read-only
        return
    version, gradient = tensor._version, tensor.grad if tensor.is_leaf else None
    copy = tensor.detach().to("cpu", copy=True)

    def back() -> None:
        written = tensor._version != version
        if not isinstance(tensor, nn.Parameter):
            written = not torch.equal(tensor.detach(), copy.to(tensor.device))
        if written:
            with torch.no_grad():
                tensor.copy_(copy)
        if tensor.is_leaf and tensor.grad is not gradient:
            tensor.grad = gradient

    yield back


def _array(array: np.ndarray[Any, Any]) -> Undo:
    copy = array.copy()

    def back() -> None:
        if array.flags.writeable:
            array[...] = copy

    return back


def _setter(setter: Callable[[Any], object], state: Any) -> Undo:
    return lambda: (setter(state), None)[1]


def _generator(generator: np.random.Generator | np.random.RandomState) -> Undo:
    if isinstance(generator, np.random.RandomState):
        return _setter(generator.set_state, generator.get_state(legacy=True))
    state = generator.bit_generator.state
    return lambda: setattr(generator.bit_generator, "state", state)


def _collection(things: Any, fill: Callable[[Any], object]) -> Undo:
    """Keep what a collection holds; it is put back into the same one, which others may know."""
    before = things.copy()

    def back() -> None:
        things.clear()
        fill(before)

    return back


def _attributes(thing: Any, without: frozenset[str] = frozenset()) -> Undo:
    before = {name: value for name, value in vars(thing).items() if name not in without}

    def back() -> None:
        now = vars(thing)
        for name in now.keys() - before.keys() - without:
            del now[name]
        now.update(before)

    return back
