"""The objects of a user's loop, as hooks see them.

These are models without wrappers, optimizers, ranks, and what is kept.
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim import Optimizer

from hookflow.errors import Problem, UserError
from hookflow.hooks.tensors import is_sharded
from hookflow.runner.builder.attached import LoopObjects
from hookflow.runner.data.loop_data import LoopData
from hookflow.runner.distributed.rendezvous import RankLayout, of_environment

Models = nn.Module | Mapping[str, nn.Module]
"""The network of a loop, or several by name."""

Optimizers = Optimizer | Mapping[str, Optimizer]
"""The optimizer of a loop, or several by name."""


class NoModel(nn.Module):
    """The model of a program that has none."""


class LoopTask:
    """The task of a user's loop.

    It computes nothing, and keeps the state of the objects that join the checkpoints.
    """

    steps_itself = True

    def __init__(self, kept: Mapping[str, Any]) -> None:
        self._kept = dict(kept)

    def step(self, run: Any, batch: Any) -> dict[str, Any]:
        """Raise UserError: only the user's loop can compute a loss."""
        raise UserError(
            Problem("the loop is your own: hookflow cannot compute the loss of a batch by itself")
        )

    evaluate = step

    def state_dict(self) -> dict[str, Any]:
        """Return the state of each object, by name."""
        return {name: each.state_dict() for name, each in self._kept.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Give each object its state.

        Raises UserError where the checkpoint has none of one of them.
        """
        missing = [name for name in self._kept if name not in state]
        if missing:
            message = (
                f'the checkpoint has no state of "{missing[0]}", which attach is given in kept'
            )
            raise UserError(
                Problem(message, hint=f"it has {', '.join(state) or 'no such objects'}")
            )
        for name, each in self._kept.items():
            each.load_state_dict(state[name])


def collect_objects(
    models: Models | None,
    optimizers: Optimizers | None,
    kept: Mapping[str, Any],
    *,
    iters_per_epoch: int,
    examples: int,
) -> LoopObjects:
    """Return the objects of a loop. Raises UserError for a wrong one, and for FSDP."""
    given = (
        models
        if isinstance(models, Mapping)
        else {"model": NoModel() if models is None else models}
    )
    unwrapped = {name: _unwrap_model(name, model) for name, model in given.items()}
    stepping: dict[str, Optimizer] = {}
    if optimizers is not None:
        if isinstance(optimizers, Mapping):
            named = optimizers
        else:
            named = {"optimizer": optimizers}
        for name, optimizer in named.items():
            stepping[name] = _unwrap_optimizer(name, optimizer)
    for name, each in kept.items():
        if not (hasattr(each, "state_dict") and hasattr(each, "load_state_dict")):
            message = (
                f'kept["{name}"] is a {type(each).__name__} without state_dict() and'
                " load_state_dict()"
            )
            raise UserError(
                Problem(message, hint="a checkpoint keeps the states of objects that have both")
            )
    parameters = (parameter for model in unwrapped.values() for parameter in model.parameters())
    first = next(parameters, None)
    data = {"train": LoopData("train", iters_per_epoch, examples), "val": LoopData("val", 1, 0)}
    return LoopObjects(
        models=unwrapped,
        optimizers=stepping,
        task=LoopTask(kept),
        data=data,
        device=torch.device("cpu") if first is None else first.device,
        ranks=find_ranks(),
    )


def _unwrap_model(name: str, model: Any) -> nn.Module:
    """Return a model without the wrappers of DDP, of the compiler, of Accelerate or of Fabric."""
    if not isinstance(model, nn.Module):
        raise UserError(Problem(f"{name} must be a torch.nn.Module, not a {type(model).__name__}"))
    while True:
        kind = type(model).__name__
        if isinstance(model, DistributedDataParallel | DataParallel) or kind == "_FabricModule":
            model = model.module
        elif kind == "OptimizedModule":
            model = model._orig_mod
        else:
            break
    is_fsdp = any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules())
    if is_fsdp or any(is_sharded(parameter) for parameter in model.parameters()):
        message = (
            "FSDP has sharded this model, and hookflow.attach cannot save or average its shards yet"
        )
        hint = (
            'train it by hookflow run with distributed.strategy = "fsdp", or attach to a loop'
            " with DDP"
        )
        raise UserError(Problem(message, hint=hint))
    result: nn.Module = model
    return result


def _unwrap_optimizer(name: str, optimizer: Any) -> Optimizer:
    """Return an optimizer without the wrappers of Accelerate or of Fabric."""
    while type(optimizer).__name__ in ("AcceleratedOptimizer", "_FabricOptimizer", "FabricAdamW"):
        optimizer = optimizer.optimizer
    if not isinstance(optimizer, Optimizer):
        message = f"{name} must be a torch.optim.Optimizer, not a {type(optimizer).__name__}"
        raise UserError(Problem(message))
    return optimizer


def find_ranks() -> RankLayout:
    """Return the rank of this process in the group that its program has formed.

    Raises UserError where a launcher has started several processes, and the program has formed no
    group.
    """
    started = of_environment()
    if dist.is_available() and dist.is_initialized():
        return RankLayout(dist.get_rank(), dist.get_world_size(), started.local)
    if started.world > 1:
        message = f"{started.world} processes were started, and there is no process group"
        raise UserError(
            Problem(
                message, hint="call torch.distributed.init_process_group before hookflow.attach"
            )
        )
    return RankLayout(local=started.local)
