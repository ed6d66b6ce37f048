"""Helpers for hooks: full tensors of shards, outputs of the task, tensors inside of them, a network in evaluation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hookflow.errors import Problem, UserError, nearest

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


def is_sharded(tensor: Any) -> bool:
    """Say whether this process has only a shard of a tensor."""
    return hasattr(tensor, "full_tensor")  # a DTensor, whose import takes long


def local(tensor: Tensor) -> Tensor:
    """Return this process's shard of a tensor, in the same memory; the tensor itself where it is not sharded."""
    return tensor.to_local() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def full(tensor: Tensor) -> Tensor:
    """Return the full tensor, on every process; the tensor itself where it is not sharded. All must call it."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def shard_like(tensor: Tensor, like: Tensor) -> Tensor:
    """Return a tensor that is full on every process, sharded as another is; the tensor itself if that is not.

    Nothing goes from process to process.
    """
    if not is_sharded(like) or is_sharded(tensor):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    layout: Any = like
    on_device = tensor.detach().to(like.device)
    return distribute_tensor(on_device, layout.device_mesh, layout.placements, src_data_rank=None)


def output(outputs: Mapping[str, Any], name: str, hook: str, hint: str = "") -> Any:
    """Return an output of the task. Raises UserError, which names the hook, when there is none of the name."""
    if name not in outputs:
        message = f'{hook} needs the output "{name}" of the task, which gives {", ".join(outputs) or "nothing"}'
        raise UserError(Problem(message, hint=nearest(name, outputs) or hint))
    return outputs[name]


def first_tensor(value: Any) -> Tensor | None:
    """Return the first tensor of nested mappings, lists and tuples; None where there is none."""
    from torch import Tensor
    from torch.utils._pytree import tree_leaves

    return next((leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)), None)


def by_dtype(tensors: Iterable[Tensor]) -> Iterable[list[Tensor]]:
    """Return the tensors in groups of one dtype each, in the order in which the dtypes first come."""
    alike: dict[torch.dtype, list[Tensor]] = {}
    for tensor in tensors:
        alike.setdefault(tensor.dtype, []).append(tensor)
    return alike.values()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put every module into evaluation, and each back into the mode that it had: one that was frozen stays frozen."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
