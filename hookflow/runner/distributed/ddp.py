"""DDP: each rank has the whole model, and the gradients are averaged over the ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from hookflow.errors import Problem, UserError
from hookflow.runner.distributed.collectives import average
from hookflow.runner.distributed.model_class import class_of
from hookflow.runner.distributed.parallel import Parallel
from hookflow.runner.distributed.process_group import Place


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
