"""The tensor that is meant by a batch, or by what a module returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def first_tensor(value: Any) -> Tensor | None:
    """Return a tensor as it is, or the first one in a mapping, list or tuple; None where there is none."""
    import torch

    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else (value,)
    return next((part for part in parts if isinstance(part, torch.Tensor)), None)
