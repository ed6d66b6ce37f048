"""Strategies for several ranks: their common interface, and the choice of one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from hookflow.errors import Locate
from hookflow.pipeline.schema import DistributedSection
from hookflow.runner.distributed.parallel import DDP, FSDP, DDPAtStep, summand
from hookflow.runner.distributed.rendezvous import Ranks


class Single:
    """The strategy of one process: every call returns at once."""

    several = False
    bucketed: Sequence[nn.Module] = ()
    no_buckets = "a single process averages no gradients"

    def parallelize(self, network: nn.Module, models: Sequence[nn.Module], device: torch.device, place: Locate) -> None:
        pass

    def add_parameters(self, parameters: Sequence[Tensor]) -> None:
        pass

    def check_lengths(self, lengths: Mapping[str, int], place: Locate) -> None:
        pass

    def require_sync(self, wanted: bool) -> None:
        pass

    def average_gradients(self, parameters: Iterable[Tensor]) -> None:
        pass

    def all_reduce(self, value: float | Tensor, device: torch.device) -> Any:
        return summand(value, device)

    def broadcast_buffers(self) -> None:
        pass


class Strategy(Protocol):
    """How the ranks keep one model. All ranks must make the same calls, in the same order."""

    @property
    def several(self) -> bool:
        """Whether there are several ranks. With one, every call returns at once."""

    @property
    def bucketed(self) -> Sequence[nn.Module]:
        """The models whose gradients are averaged in buckets, as DDP does: a communication hook may do that instead."""

    @property
    def no_buckets(self) -> str:
        """Why there are none; empty where there are."""

    def parallelize(self, network: nn.Module, models: Sequence[nn.Module], device: torch.device, place: Locate) -> None:
        """Let every rank have the weights of rank 0, and each model (a part of the network) what it keeps of them.

        That is before there are optimizers: with FSDP the parameters are others afterwards. Raises UserError when
        their memory layout cannot be sharded.
        """

    def add_parameters(self, parameters: Sequence[Tensor]) -> None:
        """Take parameters that a hook has added to a model: every rank has those of rank 0 afterwards.

        Raises UserError when it is too late for that.
        """

    def check_lengths(self, lengths: Mapping[str, int], place: Locate) -> None:
        """Raise UserError, on every rank, when one has more batches in an epoch of some split than another."""

    def require_sync(self, wanted: bool) -> None:
        """Say whether the gradients of the backward passes that follow are averaged over the ranks."""

    def average_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Average the gradients of these parameters, unless a backward pass has done so; called before each step.

        Which of them have a gradient must be the same on all ranks. Raises UserError when the backward pass should
        have averaged them, and has not.
        """

    def all_reduce(self, value: float | Tensor, device: torch.device) -> Any:
        """Return the sum over the ranks: a new tensor of the shape of `value`, on the device.

        A number becomes a float64 tensor of no dimensions.
        """

    def broadcast_buffers(self) -> None:
        """Let every rank have what rank 0 keeps beside its parameters, such as the statistics of a batch norm."""


def choose_strategy(section: DistributedSection, ranks: Ranks, *, own_steps: bool) -> Strategy:
    """Return the strategy of these ranks; `own_steps` says that the task steps its optimizers itself, without FSDP."""
    if ranks.world == 1:
        return Single()
    if section.strategy == "fsdp":
        return FSDP(section.units)
    return DDPAtStep() if own_steps else DDP()
