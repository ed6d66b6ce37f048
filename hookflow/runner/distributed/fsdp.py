"""FSDP: models sharded over the ranks, of which rank 0 alone builds the weights."""

import warnings
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.utils import swap_tensors

from hookflow.errors import Locate, Problem, UserError, Where
from hookflow.hooks.tensors import is_sharded, local, make_shard_like
from hookflow.numbers import format_count
from hookflow.pipeline.schema import TYPE_PREFIX, DistributedSection
from hookflow.runner.device.precision import AUTOCAST_DTYPES
from hookflow.runner.device.random_state import random_state, set_random_state
from hookflow.runner.distributed.parallel import SeveralRanksStrategy, broadcast
from hookflow.runner.model.selectors import modules_matching


def without_weights(make: Callable[[], Any], say: Callable[..., None]) -> Any:
    """Return the model that `make` builds, with its parameters on the meta device.

    There they take no memory.

    `FSDPStrategy` gives them the values that rank 0 has built. A model that computes with its
    parameters as it is built is built again, with them.
    """

    def empty(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
        if not parameter.is_meta:
            _replace(parameter, torch.empty_like(parameter, device="meta"))

    handle = register_module_parameter_registration_hook(empty)
    try:
        model = make()
        held = (pair for module in model.modules() for pair in vars(module).items())
        kept = [name for name, value in held if isinstance(value, Tensor) and value.is_meta]
        if not kept:
            return model
        why = f"it keeps {kept[0]}"
    except Exception as error:  # one of the model's own comes again below
        why = str(error).partition("\n")[0]
    finally:
        handle.remove()
    say(
        "the whole model is built on this rank, which takes its memory: it computes with its"
        f" parameters ({why})"
    )
    return make()


def _replace(tensor: Tensor, other: Tensor) -> None:
    """Replace what a tensor holds by another one, wherever the tensor is referred to.

    Tied parameters stay tied.
    """
    attributes = dict(vars(tensor))
    if isinstance(tensor, nn.Parameter):
        other = nn.Parameter(other, tensor.requires_grad)
    swap_tensors(tensor, other)
    tensor.__dict__.update(attributes)


class FSDPStrategy(SeveralRanksStrategy):
    """Shards each model by torch's `fully_shard`, and with `units` these modules one by one.

    Without `units` they are the network's repeated blocks. With `replicas` there are several copies
    of the model, each sharded over neighbouring ranks; gradients are reduced over all. In a
    precision of 16 bits parameters are gathered, and modules compute, in it; gradients are reduced
    in float32. Batch norms stay in float32.

    With `tensor_parallel` the ranks form a mesh, data × tensor. `parallelize`, called with the
    network and the mesh, splits layers over the second dimension; all parameters are sharded over
    the first.
    """

    def __init__(
        self,
        section: DistributedSection,
        precision: str,
        say: Callable[..., None],
        parallelize: Callable[[nn.Module, DeviceMesh], Any] | None = None,
    ) -> None:
        super().__init__()
        self._units = section.units
        self._replicas = section.replicas
        self._together = section.tensor_parallel
        self._parallelize = parallelize
        self._precision = precision
        self._say = say

    def parallelize(
        self, network: nn.Module, models: Sequence[nn.Module], device: torch.device, place: Locate
    ) -> None:
        for name, parameter in network.named_parameters():
            if not parameter.is_contiguous():
                message = f'"fsdp" cannot shard "{name}": it uses the channels_last memory format'
                hint = (
                    "leave out run.channels_last, and such a layout in the model, or use strategy ="
                    ' "ddp"'
                )
                raise UserError(Problem(message, place("distributed.strategy"), hint))
        self._make_meshes(device, place)
        super().parallelize(network, models, device, place)

    def share(self, network: nn.Module, device: torch.device, place: Locate) -> None:
        """Shard the models, and give every rank its shards of the parameters of rank 0.

        This is done one parameter after another.
        """
        first = dist.get_rank() == 0
        named = chain(network.named_parameters(), network.named_buffers())
        whole = {name: tensor.detach() for name, tensor in named} if first else {}
        for parameter in network.parameters():
            if not parameter.is_meta:
                _replace(parameter, torch.empty_like(parameter, device="meta"))
        if self._parallelize is not None:
            split_layers(
                network,
                partial(self._parallelize, network, self._layout),
                place("distributed.parallelize"),
            )
        self._shard_network(network)
        for tensor in (*network.parameters(), *network.buffers()):
            if tensor.is_meta:
                _replace(tensor, torch.empty_like(tensor, device=device))
        network.to(device)  # by which FSDP notices its new memory
        with torch.no_grad():
            for name, tensor in chain(network.named_parameters(), network.named_buffers()):
                empty = partial(torch.empty, tensor.shape, dtype=tensor.dtype, device=device)
                values = whole.pop(name).to(device) if first else empty()
                broadcast([values])
                local(tensor).copy_(local(make_shard_like(values, tensor)))
        for name, parameter in network.named_parameters():
            if parameter.requires_grad:
                parameter.register_hook(partial(_check_gradient, name))
        states = [random_state(device)]
        dist.broadcast_object_list(states)
        # From here on every rank draws the same random numbers for what is built after the model.
        set_random_state(states[0], device)

    def _shard_network(self, network: nn.Module) -> None:
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        half = AUTOCAST_DTYPES.get(self._precision)
        if self.mesh:
            mesh = self._layout
        else:
            mesh = self._layout["data"]
        if self._units is None:
            entries = find_repeated_block(network)
        else:
            entries = self._units
        units = [module for module in list_units(network, entries) if module not in self._models]
        if units and self._units is None:
            self._say(
                f"FSDP gathers {len(units)} modules one by one: distributed.units ="
                f' ["{entries[0]}"]'
            )
        norms = [
            module
            for module in network.modules()
            if isinstance(module, _NormBase) and [*module.parameters()]
        ]
        policy = MixedPrecisionPolicy(
            param_dtype=half, reduce_dtype=torch.float32 if half else None
        )
        # By default the outermost module stays gathered after its forward pass. A hook's changes to
        # the gathered weights would be lost, and the next forward pass would not see changes to the
        # shards.
        shard = partial(fully_shard, mesh=mesh, reshard_after_forward=True)
        if half:
            for norm in norms:
                shard(norm)
        for module in [*reversed(units), *self._models]:  # what lies within another one goes first
            if not half or module not in norms:
                shard(module, mp_policy=policy)

    def _make_meshes(self, device: torch.device, place: Locate) -> None:
        world = dist.get_world_size()
        copies = self._replicas
        together = self._together
        if world % copies:
            message = (
                f"{world} ranks cannot hold {copies} replicas of the model: each takes as many"
                " ranks"
            )
            raise UserError(
                Problem(message, place("distributed.replicas"), f"choose a divisor of {world}")
            )
        # The timeout is a day, since a disk may hang.
        patient: dict[str, Any] = {"backend": "gloo", "timeout": timedelta(days=1)}
        self.host_group = dist.new_group(**patient)
        if copies == together == 1:
            self.mesh = self._layout = init_device_mesh(device.type, (world,))
            self.host_mesh = DeviceMesh.from_group(self.host_group, "cpu")
            return
        names = ("data", "tensor")
        if copies > 1:
            names = ("replicate", "shard")
        ranks = torch.arange(world).view(copies if copies > 1 else world // together, -1)
        self._layout = init_device_mesh(device.type, tuple(ranks.shape), mesh_dim_names=names)
        if copies > 1:
            self.mesh, shards = self._layout, format_count(world // copies, "rank")
            self._say(f"FSDP keeps {copies} replicas of the model, each sharded over {shards}")
        else:
            self.data_group, shards = (
                self._layout.get_group("data"),
                format_count(len(ranks), "group"),
            )
            self._say(
                f"FSDP shards the model over {shards} of {together} ranks, which split layers"
            )
        subgroups: Any = dist.new_subgroups_by_enumeration
        groups = [subgroups(each.tolist(), **patient)[0] for each in (ranks.T, ranks)]
        self.host_mesh = DeviceMesh.from_group(groups, "cpu", mesh=ranks, mesh_dim_names=names)

    def require_sync(self, wanted: bool) -> None:
        for model in self._models:
            model.set_requires_gradient_sync(wanted)  # type: ignore[operator]

    def add_parameters(self, parameters: Sequence[Tensor]) -> None:
        message = "FSDP takes no parameters after the start: it has sharded the model"
        raise UserError(Problem(message, hint='build them in the model, or use strategy = "ddp"'))


def _check_gradient(name: str, gradient: Tensor) -> None:
    """Raise UserError, since a loss is computed from the shards of a parameter.

    FSDP does not average its gradient. PyTorch calls this for such a gradient alone. The gradient
    of the gathered weights is put into the shards without a call.
    """
    message = (
        f'the loss is computed from the shards of "{name}", outside the forward pass of the module'
        " that has it: FSDP averages no such gradient over the ranks"
    )
    hint = (
        "compute it within that forward pass, use the optimizer's weight_decay, let a hook at"
        ' after_backward add the gradient of a penalty, or use strategy = "ddp"'
    )
    raise UserError(Problem(message, hint=hint))


def split_layers(network: nn.Module, split: Callable[[], Any], where: Where) -> None:
    """Call `split`, which makes tensor-parallel layers of some of the network, on the meta device.

    Raises UserError with what `split` raises, or has done that cannot be trained.
    """
    before = {name: parameter.shape for name, parameter in network.named_parameters()}
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Parallelize plan key")  # which matches no module
        try:
            split()
        except (ValueError, TypeError, AttributeError, NotImplementedError, UserWarning) as error:
            message = str(error).partition(" in module ")[0]
            raise UserError(Problem(f"distributed.parallelize: {message}", where)) from error
    parameters = dict(network.named_parameters())
    layouts = (getattr(parameter, "placements", ()) for parameter in parameters.values())
    faults = {
        "adds, removes or renames parameters": (
            before != {name: p.shape for name, p in parameters.items()}
        ),
        "splits no parameter: the ranks of a group would compute the same": not any(
            placement.is_shard() for layout in layouts for placement in layout
        ),
        "makes DTensors of buffers, which the ranks could not keep in step": any(
            map(is_sharded, network.buffers())
        ),
    }
    for fault in (fault for fault, is_so in faults.items() if is_so):
        raise UserError(Problem(f"distributed.parallelize {fault}", where))


def list_units(network: nn.Module, entries: Sequence[str]) -> list[nn.Module]:
    """Return the modules that the entries pick, the outer ones first.

    An entry picks no modules inside one that it picks, no lists of modules, and no modules without
    parameters.
    """
    there = {
        name: module
        for name, module in network.named_modules()
        if name and _can_be_gathered(module)
    }
    picked = set()
    for entry in entries:
        outer = "."
        for name in modules_matching(entry, there):  # in the order of the network
            if not name.startswith(f"{outer}."):
                outer = name
                picked.add(name)
    return [module for name, module in there.items() if name in picked]


def find_repeated_block(network: nn.Module) -> list[str]:
    """Return the entry of the class that is a network's repeated block; an empty list without one.

    It is a class of modules with submodules of which there are several: the one whose modules have
    most parameters.
    """
    blocks: dict[type[nn.Module], list[nn.Module]] = {}
    for module in network.modules():
        if (
            type(module) is not nn.Sequential
            and any(module.children())
            and _can_be_gathered(module)
        ):
            blocks.setdefault(type(module), []).append(module)
    sizes = {
        kind.__name__: sum(
            p.numel() for p in {p for module in modules for p in module.parameters()}
        )
        for kind, modules in blocks.items()
        if len(modules) > 1
    }
    if sizes:
        return [f"{TYPE_PREFIX}{max(sizes, key=lambda name: sizes[name])}"]
    return []


def _can_be_gathered(module: nn.Module) -> bool:
    return type(module).forward is not nn.Module.forward and any(True for _ in module.parameters())
