"""What every strategy of several ranks has in common: weights and buffers of rank 0 for all, sums, equal lengths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from hookflow.errors import Problem, UserError
from hookflow.hooks.builtin.means import on_device
from hookflow.runner.distributed.collectives import broadcast
from hookflow.runner.distributed.process_group import Place


class Parallel:
    """The base of a strategy of several ranks. Each computes the gradients of its share of a batch.

    What a method does is told in `strategy.Strategy`.
    """

    several = True
    bucketed: Sequence[nn.Module] = ()
    no_buckets = ""

    def __init__(self) -> None:
        self._models: list[nn.Module] = []
        self._buffers: list[tuple[nn.Module, str]] = []

    def parallelize(self, network: nn.Module, models: Sequence[nn.Module], device: torch.device, place: Place) -> None:
        for tensor in (*network.parameters(), *network.buffers()):  # one by one: a copy of all may not fit
            broadcast([tensor.detach()])
        self._models = [model for model in models if any(p.requires_grad for p in model.parameters())]
        self._buffers = list(_kept_buffers(network))

    def add_parameters(self, parameters: Sequence[Tensor]) -> None:
        for parameter in parameters:
            broadcast([parameter.detach()])

    def check_lengths(self, lengths: Mapping[str, int], place: Place) -> None:
        found: list[Mapping[str, int]] = [{}] * dist.get_world_size()
        dist.all_gather_object(found, lengths)
        problems = []
        for split in lengths:
            counts = [length[split] for length in found]
            if len(set(counts)) > 1:
                said = f"the ranks have different numbers of batches in an epoch: {', '.join(map(str, counts))}"
                hint = "data that take rank and world must give the same number on each rank"
                problems.append(Problem(said, place(f"data.{split}.use"), hint))
        if problems:
            raise UserError(problems)

    def require_sync(self, wanted: bool) -> None:
        for model in self._models:
            model.set_requires_gradient_sync(wanted)  # type: ignore[operator]

    def all_reduce(self, value: float | Tensor, device: torch.device) -> Any:
        if isinstance(value, Tensor):
            total = value.detach().to(device, copy=True, memory_format=torch.contiguous_format)
        else:
            total = on_device(value, device)  # which waits for no device
        dist.all_reduce(total)
        return total

    def broadcast_buffers(self) -> None:
        found = (module._buffers[name] for module, name in self._buffers)
        if buffers := [buffer for buffer in found if buffer is not None]:
            broadcast(buffers)


def _kept_buffers(network: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """Yield each buffer that a checkpoint keeps, as its module and its name there: a module may put another there."""
    for module in network.modules():
        for name, _ in module.named_buffers(recurse=False):
            if name not in module._non_persistent_buffers_set:
                yield module, name
