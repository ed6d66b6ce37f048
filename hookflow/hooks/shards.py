"""Tensors of which each of several processes has its share, as FSDP leaves them; any other tensor is let be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def is_shared_out(tensor: Any) -> bool:
    """Say whether this process has only its share of a tensor."""
    return hasattr(tensor, "full_tensor")  # a DTensor, whose import takes long


def here(tensor: Tensor) -> Tensor:
    """Return this process's share of a tensor, in the same memory; the tensor itself where it is not shared out."""
    return tensor.to_local() if is_shared_out(tensor) else tensor  # type: ignore[attr-defined]


def whole(tensor: Tensor) -> Tensor:
    """Return all of a tensor, on every process; the tensor itself where it is not shared out. All must call it."""
    return tensor.full_tensor() if is_shared_out(tensor) else tensor  # type: ignore[attr-defined]


def shared_out_like(tensor: Tensor, like: Tensor) -> Tensor:
    """Return a tensor that is whole on every process, shared out as another is; the tensor itself if that is not.

    Nothing goes from process to process.
    """
    if not is_shared_out(like) or is_shared_out(tensor):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    layout: Any = like
    on_device = tensor.detach().to(like.device)
    return distribute_tensor(on_device, layout.device_mesh, layout.placements, src_data_rank=None)
