"""FSDP2: each rank has a shard of every parameter, of its gradient, and of the optimizer's state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase

import torch
import torch.distributed as dist
from torch import Tensor, nn

from hookflow.errors import Problem, UserError
from hookflow.hooks.globs import no_match
from hookflow.pipeline.schema import DistributedSection
from hookflow.runner.distributed.parallel import Parallel
from hookflow.runner.distributed.process_group import Place


class FSDP(Parallel):
    """Shards each model by torch's `fully_shard`, and with `units` (globs over modules) these one by one."""

    no_buckets = "FSDP shards gradients, and averages none in buckets"

    def __init__(self, units: Sequence[str]) -> None:
        super().__init__()
        self._units = units

    def parallelize(self, network: nn.Module, models: Sequence[nn.Module], device: torch.device, place: Place) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        _check_layout(network, place)
        super().parallelize(network, models, device, place)
        mesh = init_device_mesh(device.type, (dist.get_world_size(),))
        units = [module for module in units_of(network, self._units) if module not in self._models]
        for module in [*reversed(units), *self._models]:  # what lies within another one goes first
            fully_shard(module, mesh=mesh)

    def add_parameters(self, parameters: Sequence[Tensor]) -> None:
        said = "FSDP takes no parameters after the start: it has sharded the model"
        raise UserError(Problem(said, hint='build them in the model, or use strategy = "ddp"'))

    def average_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Return at once: gradients are averaged as they are computed."""


def unmatched_units(section: DistributedSection, network: nn.Module, place: Place) -> Iterator[Problem]:
    """Yield a problem for each glob of `distributed.units` that matches no module of the network."""
    names = [name for name, _ in network.named_modules() if name]
    for k, glob in enumerate(section.units):
        if wrong := no_match(glob, names, "module of the network"):
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


def _check_layout(network: nn.Module, place: Place) -> None:
    for name, parameter in network.named_parameters():
        if not parameter.is_contiguous():
            said = f'"fsdp" cannot shard "{name}": it uses the channels_last memory format'
            hint = 'leave out run.channels_last, and such a layout in the model, or use strategy = "ddp"'
            raise UserError(Problem(said, place("distributed.strategy"), hint))
