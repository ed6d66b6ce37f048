"""What a run is made of: the objects that the sections of a pipeline stand for, and where the run computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

import torch
from torch import nn

from hookflow.errors import Where
from hookflow.pipeline.schema import RunSection
from hookflow.runner.data.limited import Limited, Repeated
from hookflow.runner.distributed.ranks import Ranks
from hookflow.runner.distributed.strategy import Strategy
from hookflow.runner.picking import Picked
from hookflow.writers.base import Writer


@dataclass(frozen=True)
class Parts:
    """Everything that a runner is given."""

    section: RunSection
    ranks: Ranks
    strategy: Strategy
    device: torch.device
    precision: str
    models: Mapping[str, nn.Module]
    optimizers: Mapping[str, torch.optim.Optimizer]
    trains: Mapping[str, nn.Module]
    """What each optimizer trains: one of the models, or the whole network."""
    model: nn.Module
    """The one model, or all of them in an `nn.ModuleDict`."""
    task: Any
    data: Mapping[str, Any]
    hooks: Mapping[str, Any]
    writers: Mapping[str, Callable[[Mapping[str, Any]], Writer]]
    """What makes each writer, given what may be offered to it; none on any rank but the first."""
    picked: Picked
    """What the hooks inside the network fire at."""
    weights: dict[str, dict[str, Any]]
    """The weights that models began with, by the model's name, where hooks are bound at `after_load_checkpoint`."""
    place: Callable[[str], Where]
    """The file and line of a key of the pipeline."""

    @property
    def limited(self) -> dict[str, int]:
        """The batches that an epoch of each split would have which is limited."""
        return {split: data.whole for split, data in self.data.items() if isinstance(data, Limited | Repeated)}

    @property
    def iters_per_epoch(self) -> int:
        """The iterations of an epoch, of which the last one may have fewer batches than `accumulate`."""
        return ceil(self.batches_per_epoch / self.section.accumulate)

    @property
    def batches_per_epoch(self) -> int:
        """The batches of an epoch; 0 where the data for training have not been asked for."""
        return len(self.data["train"]) if "train" in self.data else 0
