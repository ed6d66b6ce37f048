"""DDP: each rank has the whole model, and the gradients are averaged over the ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from hookflow.errors import Problem, UserError
from hookflow.hooks.builtin.means import on_device
from hookflow.runner.distributed.process_group import Place
from hookflow.runner.numerics.finite import by_dtype


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


def class_of(model: nn.Module) -> str:
    """Return the name of a model's class, as it was before a strategy put its own in front."""
    return next(kind.__name__ for kind in type(model).__mro__ if not any(map(_of_strategy, kind.__mro__)))


def _of_strategy(kind: type) -> bool:
    return kind.__module__.startswith("torch.distributed")


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


class DDP(Parallel):
    """Averages gradients by torch's composable `replicate`, while the backward pass still computes others."""

    def __init__(self) -> None:
        super().__init__()
        self._checked = False

    def parallelize(self, network: nn.Module, models: Sequence[nn.Module], device: torch.device, place: Place) -> None:
        from torch.distributed._composable.replicate import replicate  # takes as long as a third of torch itself

        super().parallelize(network, models, device, place)
        for model in self._models:
            replicate(model)
        self.bucketed = self._models

    def add_parameters(self, parameters: Sequence[Tensor]) -> None:
        from torch.distributed._composable.replicate import replicate

        if any(replicate.state(model).has_initialized for model in self._models):
            said = "DDP takes no parameters after the first forward pass"
            raise UserError(Problem(said, hint="call run.add_param_group in before_run"))
        super().add_parameters(parameters)

    def average_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Return at once: gradients are averaged as they are computed. The first call looks whether they are."""
        if not self._checked:
            self._check_called()

    def _check_called(self) -> None:
        """Raise UserError, at the first step, when gradients have come about that are not synchronised."""
        from torch.distributed._composable.replicate import replicate

        self._checked = True
        for model in self._models:
            if not replicate.state(model).has_initialized and any(p.grad is not None for p in model.parameters()):
                said = f"the task calls a submodule of {class_of(model)}, so gradients are not synchronised"
                raise UserError(Problem(said, hint="call the network itself: run.model(…), or run.models[name](…)"))


class DDPAtStep(Parallel):
    """Averages gradients when an optimizer steps: for a task that steps its optimizers itself.

    It may go backward through any of its models at any time, so no backward pass can say which gradients are due.
    """

    no_buckets = "the task steps its optimizers itself, so that gradients are averaged at the step, and not in buckets"

    def require_sync(self, wanted: bool) -> None:
        """Return at once: nothing is averaged in a backward pass."""

    def average_gradients(self, parameters: Iterable[Tensor]) -> None:
        average([p.grad for p in parameters if p.grad is not None])
