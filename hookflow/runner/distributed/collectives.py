"""Collectives over many tensors at once: each call of one costs the same, however little it carries."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from hookflow.runner.numerics.dtypes import by_dtype


@torch.no_grad()
def broadcast(tensors: list[Tensor]) -> None:
    """Copy the contents of these tensors from rank 0 to all, by one call, whatever their types."""
    tensors = sorted(tensors, key=lambda tensor: -tensor.element_size())  # so that each begins at a multiple of its own
    flat = torch.cat([tensor.reshape(-1).view(torch.uint8) for tensor in tensors])
    dist.broadcast(flat, src=0)
    pieces = torch.split(flat, [tensor.nbytes for tensor in tensors])
    for tensor, piece in zip(tensors, pieces, strict=True):
        tensor.copy_(piece.view(tensor.dtype).view_as(tensor))


@torch.no_grad()
def average(tensors: list[Tensor]) -> None:
    """Replace the contents of these tensors by their mean over the ranks, by one call for each type of number."""
    for group in by_dtype(tensors):
        flat = torch.cat([tensor.reshape(-1) for tensor in group])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        pieces = torch.split(flat, [tensor.numel() for tensor in group])
        torch._foreach_copy_(group, [piece.view_as(tensor) for piece, tensor in zip(pieces, group, strict=True)])
