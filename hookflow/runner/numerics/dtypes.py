"""Tensors sorted by what they hold: what many of them are given to at once takes one type of number."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def by_dtype(tensors: Iterable[Tensor]) -> Iterable[list[Tensor]]:
    """Return the tensors in groups of one type each, in the order in which the types first come."""
    alike: dict[torch.dtype, list[Tensor]] = {}
    for tensor in tensors:
        alike.setdefault(tensor.dtype, []).append(tensor)
    return alike.values()
