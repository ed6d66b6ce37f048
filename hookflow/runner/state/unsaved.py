"""The check for state that no checkpoint holds.

It finds attributes of the task, hooks and data that change while it trains.
"""

from __future__ import annotations

import zlib
from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_iter

from hookflow.hooks.base import Hook
from hookflow.hooks.tensors import local
from hookflow.runner.builder.components import RunComponents
from hookflow.runner.data.batches import has_own_state, list_own_parts
from hookflow.runner.device.random_state import GENERATOR_TYPES

MAX_LEAVES = 10_000
"""The most values of an attribute at which it is looked."""

MAX_BYTES = 1 << 20
"""The bytes at the beginning of a tensor or an array that are compared."""

LIBRARY_PREFIXES = ("hookflow.", "torchdata.")
"""Begin the names of modules whose data sets and samplers have their state elsewhere."""

Marks = dict[str, Hashable]
"""By attribute: what differs where its value does."""


class UnsavedStateCheck:
    """Names changing attributes that are in no checkpoint.

    They hold numbers, tensors, arrays or generators. It looks at the attributes of the task, the
    hooks of the user and the data that have no `state_dict`. A value counts where it is an
    attribute itself, or lies there in lists, tuples, dicts or sets, or in the `state_dict` of an
    object. `known` objects belong to other parts of the run.
    """

    def __init__(self, parts: RunComponents, known: Iterable[Any]) -> None:
        self._owners = _owners_without_state(parts)
        data = [part for source in parts.data.values() for part in list_own_parts(source)]
        self._known = {id(thing) for thing in (*known, *data, *self._owners.values())}
        self._before: dict[str, Marks] = {}

    def record(self) -> None:
        """Record the attributes as they are now."""
        self._before = {name: self._marks(owner) for name, owner in self._owners.items()}

    def warnings(self) -> list[str]:
        """Return a warning for each owner whose attributes have changed; each is named once."""
        result = []
        for name, before in list(self._before.items()):
            now = self._marks(self._owners[name])
            changed = [
                attribute for attribute, mark in now.items() if before.get(attribute) != mark
            ]
            if changed:
                del self._before[name]
                lost = (
                    "while it trains, and no checkpoint holds that: a resumed run starts without it"
                )
                result.append(
                    f"{name} changes {', '.join(changed)} {lost}. Define state_dict() and"
                    " load_state_dict()"
                )
        return result

    def _marks(self, owner: Any) -> Marks:
        marks: Marks = {}
        for name, value in list(getattr(owner, "__dict__", {}).items()):
            if "epoch" in name and hasattr(owner, "set_epoch"):  # it is set anew before each epoch
                continue
            leaves = islice(self._leaves(value), MAX_LEAVES)
            present = [mark for mark in map(_mark_of, leaves) if mark is not None]
            if present:
                marks[name] = tuple(present)
        return marks

    def _leaves(self, value: Any) -> Iterator[Any]:
        for leaf in tree_iter(value):
            if id(leaf) in self._known:
                continue
            if isinstance(leaf, Mapping):  # one that PyTorch does not know, such as a Counter
                yield from self._leaves(dict(leaf))
            elif isinstance(leaf, set | frozenset):
                yield from self._leaves(sorted(leaf, key=repr))
            elif hasattr(leaf, "state_dict"):
                with suppress(Exception):  # as of a class, or before its first step
                    yield from self._leaves(leaf.state_dict())
            else:
                yield leaf


def _owners_without_state(parts: RunComponents) -> dict[str, Any]:
    """Return the user's task, hooks and data that save nothing, by their names."""
    owners: dict[str, Any] = {}
    for split, source in parts.data.items():
        for part in list_own_parts(source):
            for data in _with_wrapped(part):
                is_own = not (type(data).__module__ or "").startswith(LIBRARY_PREFIXES)
                if is_own and not has_own_state(part) and not has_own_state(data):
                    owners[f"data.{split} ({type(data).__name__})"] = data
    if not hasattr(parts.task, "state_dict"):
        owners[f"the task {type(parts.task).__name__}"] = parts.task
    for name, hook in parts.own_hooks.items():
        if getattr(type(hook), "state_dict", Hook.state_dict) is Hook.state_dict:
            owners[f'the hook "{name}"'] = hook
    return owners


def _with_wrapped(data: Any) -> Iterator[Any]:
    """Yield a data set, and those that it wraps as PyTorch's `Subset` and `ConcatDataset` do."""
    yield data
    wrapped = getattr(data, "datasets", None)
    if not isinstance(wrapped, list | tuple):
        wrapped = [getattr(data, "dataset", None)]
    for inner in wrapped:
        if inner is not None and inner is not data:
            yield from _with_wrapped(inner)


def _mark_of(value: Any) -> Hashable:
    """Return what differs where a value does.

    It is None for one that is no number, tensor, array or generator.
    """
    if isinstance(value, bool | int | float | complex):
        return repr(value)
    if isinstance(value, Tensor):
        return _mark_of_tensor(local(value.detach()))
    if isinstance(value, np.ndarray | np.generic):
        return _mark_of_array(np.asarray(value))
    if isinstance(value, GENERATOR_TYPES):
        return _mark_of_generator(value)
    return None


def _mark_of_tensor(tensor: Tensor) -> Hashable:
    kind = (str(tensor.dtype), tuple(tensor.shape))
    if tensor.is_meta or tensor.layout != torch.strided or tensor.is_nested or tensor.is_quantized:
        return kind
    if tensor.nbytes > MAX_BYTES:
        row_bytes = tensor.nbytes // len(tensor)
        tensor = tensor[: max(1, MAX_BYTES // row_bytes)]
    words = tensor.cpu().contiguous().flatten().view(torch.uint8)
    return (*kind, zlib.crc32(words.numpy().data))


def _mark_of_array(array: np.ndarray[Any, Any]) -> Hashable:
    kind = (str(array.dtype), array.shape)
    if array.dtype.hasobject or array.size == 0:
        return kind
    beginning = array.flat[: MAX_BYTES // array.itemsize]
    return (*kind, zlib.crc32(beginning.tobytes()))


def _mark_of_generator(generator: Any) -> Hashable:
    if isinstance(generator, torch.Generator):
        return _mark_of_tensor(generator.get_state())
    if isinstance(generator, np.random.RandomState):
        return repr(generator.get_state(legacy=False))
    if isinstance(generator, np.random.Generator):
        return repr(generator.bit_generator.state)
    return repr(generator.getstate())
