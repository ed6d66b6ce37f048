"""The processes that train one model together: the group that they form, and what each of them keeps of the model.

`[distributed]` means something only where there are several of them. One alone forms no group, and nothing here
touches what it computes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from fnmatch import fnmatchcase
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from hookflow.errors import Problem, UserError, Where
from hookflow.pipeline.load import Loaded
from hookflow.pipeline.schema import DistributedSection
from hookflow.runner.distributed.launcher import meet
from hookflow.runner.distributed.ranks import Ranks
from hookflow.runner.modules import no_module
from hookflow.runner.numerics.device import choose_device
from hookflow.runner.numerics.dtypes import by_dtype

UNUSED = (
    "some parameters have had no gradient, which the ranks wait for: freeze those that no loss reaches "
    '(requires_grad_(False)), or take strategy = "fsdp"'
)
"""What can be done about parameters without a gradient, of which PyTorch says what can be done elsewhere."""

Place = Callable[[str], Where]
"""Where in the pipeline a key is written."""


def device_of(wanted: str, ranks: Ranks, place: Place) -> torch.device:
    """Return the device of this rank for `run.device`: of several GPUs the one of its local rank.

    Raises UserError when the ranks of this machine cannot each have one.
    """
    if ranks.world == 1:
        return choose_device(wanted)
    if wanted in ("auto", "cuda"):
        if torch.cuda.is_available() and ranks.local >= torch.cuda.device_count():
            said = f"there are {torch.cuda.device_count()} GPUs here, and this is process {ranks.local + 1} on them"
            raise UserError(Problem(said, place("run.device"), "start one process a GPU, or take the device cpu"))
        kind = choose_device("cuda" if wanted == "cuda" or torch.cuda.is_available() else "cpu").type
        return torch.device(kind, ranks.local) if kind == "cuda" else torch.device(kind)
    device = choose_device(wanted)
    if device.index is not None:
        said = f'run.device = "{wanted}" is one GPU, and there are {ranks.world} processes'
        raise UserError(Problem(said, place("run.device"), '"cuda" gives each process its own'))
    if device.type == "mps":
        raise UserError(Problem("several processes cannot train together on mps", place("run.device")))
    return device


@contextmanager
def joined(loaded: Loaded, ranks: Ranks) -> Iterator[None]:
    """Form the group of all ranks, by the addresses that the launcher has put into the environment, and leave it.

    Waits until all are there, for `distributed.timeout` seconds. Raises UserError when the backend cannot carry what
    the device holds. One process alone forms no group. A rank that raises leaves it by ending its process: to take
    leave can mean to wait for the others.
    """
    if ranks.world == 1:
        yield
        return
    section, place = loaded.pipeline.distributed, loaded.places.of
    device = device_of(loaded.pipeline.run.device, ranks, place)
    backend = backend_of(section, device, place)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        backend,
        store=meet(ranks, section.timeout),
        rank=ranks.rank,
        world_size=ranks.world,
        timeout=timedelta(seconds=section.timeout),
        device_id=device if backend == "nccl" else None,
    )
    try:
        yield
    except RuntimeError as error:
        if "find_unused_parameters" not in str(error):
            raise
        told = RuntimeError(UNUSED)
        told.add_note(str(error))
        raise told.with_traceback(error.__traceback__) from None
    dist.destroy_process_group()


def backend_of(section: DistributedSection, device: torch.device, place: Place) -> str:
    """Return what carries tensors from rank to rank. Raises UserError when it cannot carry those of the device."""
    if section.backend == "auto":
        return "nccl" if device.type == "cuda" else "gloo"
    if section.backend == "nccl" and device.type != "cuda":
        said = f'distributed.backend = "nccl" carries what GPUs hold, and this run computes on {device.type}'
        raise UserError(Problem(said, place("distributed.backend"), '"auto" takes what fits the device'))
    return section.backend


def unmatched_units(section: DistributedSection, network: nn.Module, place: Place) -> Iterator[Problem]:
    """Yield a problem for each glob of `distributed.units` that matches no module of the network."""
    names = [name for name, _ in network.named_modules() if name]
    for k, glob in enumerate(section.units):
        if wrong := no_module(glob, names):
            said, hint = wrong
            yield Problem(said, place(f"distributed.units.{k}"), hint)


def units_of(network: nn.Module, globs: Sequence[str]) -> list[nn.Module]:
    """Return the modules that the globs mean, the outer ones first.

    What lies within a module that a glob means is not meant by the same glob: "layers.*" are the layers. Nor are
    lists of modules, which are not called, and modules without parameters.
    """
    meant: dict[str, set[str]] = {glob: set() for glob in globs}
    units = []
    for name, module in network.named_modules():
        called = type(module).forward is not nn.Module.forward and any(True for _ in module.parameters())
        for glob in globs:
            within = any(name.startswith(f"{outer}.") for outer in meant[glob])
            if name and called and not within and fnmatchcase(name, glob):
                meant[glob].add(name)
                units += [module] if module not in units else []
    return units


def class_of(model: nn.Module) -> str:
    """Return the name of a model's class, as it was before a strategy put its own in front."""
    return next(kind.__name__ for kind in type(model).__mro__ if not any(map(_of_strategy, kind.__mro__)))


def _of_strategy(kind: type) -> bool:
    return kind.__module__.startswith("torch.distributed")


class Strategy:
    """How several ranks keep one model. Alone, nothing is kept together, and every call returns at once.

    Each rank computes the gradients of its own share of a batch; the mean over the ranks is what every one of them
    steps by. With "ddp" each has the whole model, with "fsdp" its part of every parameter. A task that steps its
    optimizers itself (`own_steps`) may go backward through any of its models at any time: there the mean is taken
    when it steps.
    """

    def __init__(self, section: DistributedSection, ranks: Ranks, *, own_steps: bool) -> None:
        self.several = ranks.world > 1
        self._section = section
        self._own_steps = own_steps
        self._called = not self.several or own_steps or section.strategy == "fsdp"
        self._models: list[nn.Module] = []
        self._buffers: list[tuple[nn.Module, str]] = []

    def spread(self, network: nn.Module, models: Sequence[nn.Module], device: torch.device, place: Place) -> None:
        """Let every rank have the weights of rank 0, and each model (a part of the network) what it keeps of them.

        That is before there are optimizers: with "fsdp" the parameters are others afterwards. Raises UserError when
        they lie in memory as that cannot share them out.
        """
        if not self.several:
            return
        if self._section.strategy == "fsdp":
            _check_layout(network, place)
        for tensor in (*network.parameters(), *network.buffers()):
            _reduced([tensor.detach()], lambda flat: dist.broadcast(flat, src=0))
        self._models = [model for model in models if any(p.requires_grad for p in model.parameters())]
        self._buffers = list(_kept_buffers(network))
        if self._section.strategy == "fsdp":
            self._shard(network, device)
        elif not self._own_steps:
            from torch.distributed._composable.replicate import replicate  # takes as long as a third of torch itself

            for model in self._models:
                replicate(model)

    def _shard(self, network: nn.Module, device: torch.device) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(device.type, (dist.get_world_size(),))
        units = [module for module in units_of(network, self._section.units) if module not in self._models]
        for module in [*reversed(units), *self._models]:  # what lies within another one goes first
            fully_shard(module, mesh=mesh)

    def check_lengths(self, lengths: Mapping[str, int], place: Place) -> None:
        """Raise UserError, on every rank, when one of them has more batches in an epoch of some data than another."""
        if not self.several:
            return
        found: list[Mapping[str, int]] = [{}] * dist.get_world_size()
        dist.all_gather_object(found, lengths)
        problems = []
        for split in lengths:
            counts = [length[split] for length in found]
            if len(set(counts)) > 1:
                said = f"the ranks have unlike numbers of batches in an epoch: {', '.join(map(str, counts))}"
                hint = "what takes rank and world must give as many on each"
                problems.append(Problem(said, place(f"data.{split}.use"), hint))
        if problems:
            raise UserError(problems)

    def synchronize(self, wanted: bool) -> None:
        """Say whether the gradients of the batches that follow are brought together as they are computed."""
        if self.several and not self._own_steps:
            for model in self._models:
                model.set_requires_gradient_sync(wanted)  # type: ignore[operator]

    def average(self, parameters: Iterable[Tensor]) -> None:
        """Bring the gradients of these parameters together, where that has not been done as they were computed.

        Which of them have a gradient must be the same on all ranks.
        """
        if not self._called:
            self._check_called()
        if self.several and self._own_steps:
            _reduced([p.grad for p in parameters if p.grad is not None], lambda flat: _mean(flat))

    def _check_called(self) -> None:
        """Raise UserError, at the first step, when gradients have come about that nobody brings together."""
        from torch.distributed._composable.replicate import replicate

        self._called = True
        for model in self._models:
            if not replicate.state(model).has_initialized and any(p.grad is not None for p in model.parameters()):
                said = f"the task does not call the network {class_of(model)} itself, but something in it"
                hint = "that keeps the gradients of each rank apart; call run.model(…), or run.models[name](…)"
                raise UserError(Problem(said, hint=hint))

    def sum(self, value: float | Tensor, device: torch.device) -> Any:
        """Return the sum of what each rank gives, on the device; `value` itself where there is one."""
        if not self.several:
            return value
        if isinstance(value, Tensor):
            total = value.detach().to(device, copy=True, memory_format=torch.contiguous_format)
        else:
            total = torch.full((), value, dtype=torch.float64, device=device)  # which waits for no device
        dist.all_reduce(total)
        return total

    def share_buffers(self) -> None:
        """Let every rank have what rank 0 keeps beside its parameters, such as the statistics of a batch norm."""
        if self._buffers:
            with torch.no_grad():
                found = (module._buffers[name] for module, name in self._buffers)
                _reduced([buffer for buffer in found if buffer is not None], lambda flat: dist.broadcast(flat, src=0))


def _check_layout(network: nn.Module, place: Place) -> None:
    for name, parameter in network.named_parameters():
        if not parameter.is_contiguous():
            said = f'"fsdp" cannot share out "{name}", which has its channels last in memory'
            hint = 'leave run.channels_last, and such a layout in the model, or take strategy = "ddp"'
            raise UserError(Problem(said, place("distributed.strategy"), hint))


def _kept_buffers(network: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """Yield each buffer that a checkpoint keeps, as its module and its name there: a module may put another there."""
    for module in network.modules():
        for name, _ in module.named_buffers(recurse=False):
            if name not in module._non_persistent_buffers_set:
                yield module, name


def _mean(flat: Tensor) -> None:
    dist.all_reduce(flat)
    flat /= dist.get_world_size()


def _reduced(tensors: list[Tensor], collective: Callable[[Tensor], object]) -> None:
    """Call a collective on the contents of all tensors, one call a type of number, and put back what it leaves."""
    for group in by_dtype(tensors):
        flat = torch.cat([tensor.reshape(-1) for tensor in group])
        collective(flat)
        pieces = torch.split(flat, [tensor.numel() for tensor in group])
        torch._foreach_copy_(group, [piece.view_as(tensor) for piece, tensor in zip(pieces, group, strict=True)])
