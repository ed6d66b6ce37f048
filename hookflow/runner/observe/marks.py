"""Marks of values: two that are equal say that nothing has changed in between, as far as can be told cheaply.

A tensor is told by which it is, where its memory is, and how often PyTorch has written to it. Code that is not
PyTorch's (NumPy, say) may write to the same memory unseen; so a checksum is taken too, where that costs little.
"""

from __future__ import annotations

import random
import zlib
from collections import deque
from collections.abc import Hashable, Iterator, Mapping, Set
from contextlib import suppress
from itertools import islice
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hookflow.runner.fingerprint import Fingerprints
from hookflow.runner.numerics.random_state import random_state

BYTES = 8 * 2**20
"""The largest sum of tensors whose contents are compared: of the network, its gradients and its optimizers."""

DEPTH, VALUES = 6, 10_000
"""How deep attributes are looked into, and at how many values in all."""

PLAIN = (bool, int, float, complex, str, bytes, type(None))
OPAQUE = (type, FunctionType, BuiltinFunctionType, MethodType, ModuleType)


def mark_of_tensor(tensor: Tensor, *, content: bool = False) -> Hashable:
    """Return the mark of a tensor, with a checksum of its `content` if asked."""
    return id(tensor), _version(tensor), address(tensor), checksum(tensor) if content else 0


def _version(tensor: Tensor) -> int:
    try:
        return tensor._version
    except RuntimeError:  # of an inference tensor
        return -1


def address(tensor: Tensor) -> int:
    """Return where the memory begins that a tensor shares with its views; 0 where it has none of its own."""
    with suppress(RuntimeError, NotImplementedError):
        return tensor.untyped_storage().data_ptr()
    return 0


def checksum(tensor: Tensor) -> int:
    """Return a checksum of what is in a tensor; 0 where its memory is not the host's."""
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided or not tensor.numel():
        return 0
    return zlib.crc32(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().data)


def mark(value: Any, opaque: Set[int] = frozenset()) -> Hashable:
    """Return the mark of any value.

    What is too deep is told by identity alone, and so are the objects and tensors whose ids and addresses are in
    `opaque`: they are somebody else's.
    """
    return _mark(value, opaque, DEPTH, iter(range(VALUES)))


def _mark(value: Any, opaque: Set[int], depth: int, left: Iterator[int]) -> Hashable:
    if isinstance(value, PLAIN):
        return type(value), repr(value) if isinstance(value, float) else value
    if id(value) in opaque or depth == 0 or isinstance(value, OPAQUE) or next(left, None) is None:
        return id(value)
    if isinstance(value, Tensor):
        return id(value) if address(value) in opaque else mark_of_tensor(value)
    if isinstance(value, np.ndarray):
        return id(value), value.shape, zlib.crc32(np.ascontiguousarray(value).data.cast("B")) if _small(value) else 0
    if isinstance(value, torch.Generator):
        return zlib.crc32(value.get_state().numpy().data)
    if isinstance(value, random.Random):
        return value.getstate()
    return type(value), tuple(_inside(value, opaque, depth - 1, left))


def _small(array: np.ndarray[Any, Any]) -> bool:
    return not array.dtype.hasobject and array.nbytes <= BYTES


def _inside(value: Any, opaque: Set[int], depth: int, left: Iterator[int]) -> Iterator[Hashable]:
    """Yield the marks of what a value consists of."""
    if isinstance(value, nn.Module):
        yield value.training
        for name, tensor in (*value.named_parameters(), *value.named_buffers()):
            yield name, _mark(tensor, opaque, depth, left)
    elif isinstance(value, Mapping):
        yield len(value)
        items = dict.items(value) if isinstance(value, dict) else value.items()
        for key, inner in islice(items, VALUES):
            yield (key if isinstance(key, PLAIN) else id(key)), _mark(inner, opaque, depth, left)
    elif isinstance(value, list | tuple | set | frozenset | deque):
        yield len(value)
        for inner in islice(reversed(value) if isinstance(value, list | deque) else value, VALUES):
            yield _mark(inner, opaque, depth, left)
    elif hasattr(value, "__dict__"):
        yield id(value)
        yield _mark(vars(value), opaque, depth, left)
    else:
        yield id(value)


def mark_of_random(device: torch.device) -> Hashable:
    """Return the mark of every global random generator."""
    return frozenset(Fingerprints().of(random_state(device)))
