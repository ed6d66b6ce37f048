"""Fingerprints of objects: what two runs of one process hold, compared value by value without keeping the values.

Two runs build their objects anew, so identity says nothing here. Within one run it is what tells quickly that nothing
was written (`hookflow.runner.observe.tensors`).
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from hashlib import blake2b
from itertools import islice
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from hookflow.runner.loop.untouched import LONGEST, OF_TORCH, is_object

Path = tuple[str, ...]
"""Where a value is: an attribute, a key or a place in a list, step by step."""

Leaves = dict[Path, bytes]
"""The fingerprint of each value by its path."""

PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size, Enum, PurePath)
OF_SEVERAL = b"tensor "
"""What the fingerprint of a tensor of several numbers begins with: two of them are alike by no accident."""


class Fingerprints:
    """Looks into objects as far as they are the user's; what is `known` is looked into elsewhere, and not here."""

    def __init__(self, known: Iterable[Any] = ()) -> None:
        self._seen = {id(thing): thing for thing in known}

    def of(self, thing: Any, *path: str) -> Iterator[tuple[Path, bytes]]:
        """Yield the path and the fingerprint of each value that a thing holds, itself included."""
        if (plain := _plain(thing)) is not None:
            yield path, plain
        elif id(thing) not in self._seen:
            self._seen[id(thing)] = thing  # which also keeps its id from being used again
            for name, held in _held(thing):
                yield from self.of(held, *path, name)


def _plain(thing: Any) -> bytes | None:
    """Return the fingerprint of what is one value; None of what holds others."""
    match thing:
        case Tensor():
            return of_tensor(thing)
        case np.ndarray() | np.generic():
            return of_bytes(str(thing.dtype).encode(), str(thing.shape).encode(), thing.tobytes())
        case torch.Generator():
            return of_tensor(thing.get_state())
        case random.Random():
            return _of_text(thing.getstate())
        case np.random.RandomState():
            return _of_text(thing.get_state(legacy=False))
        case np.random.Generator():
            return _of_text(thing.bit_generator.state)
        case _ if isinstance(thing, PLAIN):
            return _of_text(thing)
        case set() | frozenset() if all(isinstance(item, PLAIN) for item in thing):
            return _of_text(sorted(map(repr, thing)))
        case list() | tuple() | deque() if all(isinstance(item, PLAIN) for item in thing):
            return _of_text([*thing])
    return None


def of_tensor(tensor: Tensor) -> bytes:
    """Return the fingerprint of a tensor: its kind, its shape and its bits."""
    kind = f"{tensor.dtype} {tuple(tensor.shape)}".encode()
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    bits = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return OF_SEVERAL * (tensor.numel() > 1) + of_bytes(kind, bits.numpy().tobytes())


def of_bytes(*parts: bytes) -> bytes:
    """Return the fingerprint of bytes."""
    found = blake2b(digest_size=12)
    for part in parts:
        found.update(part)
    return found.digest()


def _of_text(value: Any) -> bytes:
    return of_bytes(repr(value).encode("utf-8", "replace"))


def _held(thing: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a thing holds, each with its name in it; of a long collection its first `LONGEST` items."""
    match thing:
        case Mapping():
            for k, (name, value) in enumerate(islice(thing.items(), LONGEST)):
                yield str(name) if isinstance(name, PLAIN) else f"#{k}", value
        case list() | tuple() | deque():
            yield from ((str(k), item) for k, item in enumerate(islice(thing, LONGEST)))
        case nn.Module():
            yield from thing._parameters.items()
            yield from thing._buffers.items()
            yield from thing._modules.items()
            yield from ((name, value) for name, value in vars(thing).items() if name not in OF_TORCH)
        case torch.optim.Optimizer() | LRScheduler():
            yield from thing.state_dict().items()
        case _ if is_object(thing):
            yield from vars(thing).items()
