"""Optimizers that train at one point and are evaluated at another.

They have `train()` and `eval()`. A schedule-free optimizer is one: it steps from an interpolation
of two sequences, and its weights are for use at their mean. `eval()` puts the weights there, and
`train()` puts them back, as the arithmetic of floats allows.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from hookflow.events.records import Level
from hookflow.hooks.capabilities import HookCapabilities
from hookflow.hooks.optimizer_state import list_group_entries
from hookflow.hooks.tensors import local


def has_modes(optimizer: Optimizer) -> bool:
    return callable(getattr(optimizer, "train", None)) and callable(
        getattr(optimizer, "eval", None)
    )


class EvaluationPoint:
    """The time in which weights are where they are evaluated.

    `cut_short` says that nothing of it may remain.
    """

    def __init__(self) -> None:
        self.cut_short = False


class OptimizerModes:
    """Switches the optimizers of a run that have modes; without any, its methods do nothing.

    A training goes on to the bit after a switch and back: the tensors are put back from copies.
    """

    def __init__(self, optimizers: Mapping[str, Optimizer]) -> None:
        self.optimizers = {name: each for name, each in optimizers.items() if has_modes(each)}

    def train(self) -> None:
        """Put the weights where they are trained."""
        with torch.no_grad():
            for optimizer in self.optimizers.values():
                optimizer.train()  # type: ignore[attr-defined]

    def release(self) -> None:
        """Switch no optimizer any more: the weights are no longer theirs."""
        self.optimizers = {}

    @contextmanager
    def evaluating(self) -> Iterator[EvaluationPoint]:
        """Put the weights where they are evaluated, and back.

        Changes of hooks in the meantime stay, as far as `train()` lets it; but for an evaluation
        that is cut short, or raises.
        """
        point = EvaluationPoint()
        if not self.optimizers:
            yield point
            return
        before = [tensor.detach().clone() for tensor in self._list_tensors()]
        with torch.no_grad():
            for optimizer in self.optimizers.values():
                optimizer.eval()  # type: ignore[attr-defined]
        versions = self._list_versions()
        completed = False
        try:
            yield point
            completed = not point.cut_short
        finally:
            changed = completed and self._list_versions() != versions
            self.train()
            if not changed:
                self._put_back(before)

    def copy_evaluated_weights(
        self, models: Mapping[str, nn.Module]
    ) -> dict[str, dict[str, dict[str, Tensor]]]:
        """Return copies of the weights where they are evaluated.

        They are by optimizer, by model, by name in its state.
        """
        result = {}
        with self.evaluating():
            for name, optimizer in self.optimizers.items():
                own = set(list_group_entries(optimizer.param_groups))
                result[name] = {key: _copy_parameters(model, own) for key, model in models.items()}
        return result

    def list_messages(
        self, network: nn.Module, capabilities: Mapping[str, HookCapabilities]
    ) -> Iterator[tuple[str, Level]]:
        """Yield the messages to a training with such optimizers, each with its level."""
        if not self.optimizers:
            return
        classes = ", ".join(
            sorted({type(optimizer).__name__ for optimizer in self.optimizers.values()})
        )
        where = "validations, tests, predictions and the models in checkpoints"
        yield f"{classes} has train() and eval(): {where} have the weights of eval()", "info"
        norms = [module for module in network.modules() if isinstance(module, _BatchNorm)]
        has_statistics = any(norm.track_running_stats for norm in norms)
        if has_statistics and not any(each.recomputes_statistics for each in capabilities.values()):
            text = (
                "the statistics of batch norms are of the weights of train(): the hook precise_bn"
                " computes them anew"
            )
            yield f"{classes}: {text}", "warn"
        for name, declared in capabilities.items():
            if declared.validates_average:
                text = (
                    f'the hook "{name}" averages the weights of train(), and validations have that'
                    " average"
                )
                yield f"{classes}: {text}", "warn"

    def _list_tensors(self) -> list[Tensor]:
        """Return the weights and the state of these optimizers, always in one order."""
        result: list[Tensor] = []
        for optimizer in self.optimizers.values():
            state = getattr(optimizer, "state", {})  # a wrapper may have none
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    result.append(parameter)
                    entries = state.get(parameter, {})  # which makes none, as [] would
                    result += [
                        leaf for leaf in tree_leaves(dict(entries)) if isinstance(leaf, Tensor)
                    ]
        return result

    def _list_versions(self) -> list[tuple[int, int]]:
        """Return which tensors there are, and how often each has been changed in place."""
        return [(id(tensor), local(tensor.detach())._version) for tensor in self._list_tensors()]

    @torch.no_grad()
    def _put_back(self, before: list[Tensor]) -> None:
        now = self._list_tensors()
        if [tensor.shape for tensor in now] == [tensor.shape for tensor in before]:
            for tensor, saved in zip(now, before, strict=True):
                tensor.copy_(saved)


def _copy_parameters(model: nn.Module, parameters: set[Tensor]) -> dict[str, Tensor]:
    """Return copies of those of the parameters that the model has, by each of their names."""
    copies: dict[Tensor, Tensor] = {}
    result = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if parameter in parameters:
            if parameter not in copies:
                copies[parameter] = parameter.detach().clone()
            result[name] = copies[parameter]
    return result
