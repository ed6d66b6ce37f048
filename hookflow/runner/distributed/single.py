"""A single process: it forms no group, and nothing here touches what it computes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hookflow.runner.distributed.process_group import Place


class Single:
    """The strategy of one process: every call returns at once."""

    several = False
    bucketed: Sequence[nn.Module] = ()
    no_buckets = "a single process averages no gradients"

    def parallelize(self, network: nn.Module, models: Sequence[nn.Module], device: torch.device, place: Place) -> None:
        pass

    def add_parameters(self, parameters: Sequence[Tensor]) -> None:
        pass

    def check_lengths(self, lengths: Mapping[str, int], place: Place) -> None:
        pass

    def require_sync(self, wanted: bool) -> None:
        pass

    def average_gradients(self, parameters: Iterable[Tensor]) -> None:
        pass

    def all_reduce(self, value: float | Tensor, device: torch.device) -> Any:
        return value

    def broadcast_buffers(self) -> None:
        pass
