"""The components of a run whose loop is the user's.

They are its objects, and the hooks and writers of the pipeline.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from hookflow.graph.plan import Plan
from hookflow.pipeline.load import Loaded
from hookflow.pipeline.use import clear_imported_files
from hookflow.pipeline.values import Interval
from hookflow.runner.builder.build import ComponentBuilder
from hookflow.runner.builder.components import RunComponents, find_writers
from hookflow.runner.distributed.parallel import ParallelStrategy, UserWrappedStrategy
from hookflow.runner.distributed.rendezvous import RankLayout


@dataclass(frozen=True)
class LoopObjects:
    """The objects of the user's loop, as its program has made them.

    None is moved, wrapped or seeded.
    """

    models: Mapping[str, nn.Module]
    """The networks by name, without the wrappers of DDP or of the compiler."""
    optimizers: Mapping[str, Optimizer]
    task: Any
    """Keeps the state of the user's own objects in the checkpoints."""
    data: Mapping[str, Any]
    device: torch.device
    ranks: RankLayout


def build_attached(
    loaded: Loaded, plan: Plan, base: Path, say: Callable[..., None], objects: LoopObjects
) -> RunComponents:
    """Make the hooks and the writers, and put them beside the objects of the loop.

    Raises UserError with the place in the pipeline when something cannot be made.
    """
    builder = ComponentBuilder(loaded, base.absolute(), say, (), objects.ranks, fresh=True)
    clear_imported_files()
    builder.find_hooks(plan)
    makers = find_writers(loaded, builder.base)
    models = dict(objects.models)
    if len(models) == 1:
        network = next(iter(models.values()))
    else:
        network = nn.ModuleDict(models)
    picked = builder.pick_modules(network, plan)
    hooks = builder.make_hooks(plan)
    strategy = ParallelStrategy()
    if objects.ranks.world > 1:
        strategy = UserWrappedStrategy()
    return RunComponents(
        section=loaded.pipeline.run,
        ranks=objects.ranks,
        data_ranks=objects.ranks,
        strategy=strategy,
        device=objects.device,
        precision="fp32",
        models=models,
        optimizers=objects.optimizers,
        trains=dict.fromkeys(objects.optimizers, network),
        model=network,
        task=objects.task,
        hooks=hooks,
        capabilities=builder.capabilities_of(hooks),
        writers=builder.writers(makers),
        picked=picked,
        weights={},
        val_every={"val": Interval(1, "ep")},
        place=loaded.places.of,
        data=objects.data,
        is_attached=True,
    )
