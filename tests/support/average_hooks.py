"""Hooks and tasks that use averages of the weights:
"./average_hooks.py:…" in the tests' pipelines.
"""

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

from hookflow import Hook
from tests.support.own_tasks import StepOnly

INPUTS = torch.linspace(-1, 1, 24).reshape(6, 4)


def output_of(model: torch.nn.Module, weights: dict[str, Tensor]) -> Tensor:
    """Return what another network of the same kind computes in evaluation, with these weights."""
    other = deepcopy(model)
    other.load_state_dict({**other.state_dict(), **weights})
    dtype = next(other.parameters()).dtype
    with torch.no_grad():
        return other.eval()(INPUTS.to(dtype))  # type: ignore[no-any-return]


def sampled(run: Any, name: str | None) -> Tensor:
    with run.average(name):
        assert not run.model.training
        return run.model(INPUTS.to(next(run.model.parameters()).dtype))  # type: ignore[no-any-return]


class Samples(Hook):
    """Looks at many points whether each average gives what a network with its tensors does;
    logs how often it has.
    """

    reads = ("model",)

    def __init__(self) -> None:
        self.tensors: dict[str | None, dict[str, Tensor]] = {}
        self.count = 0

    def _look(self, run: Any) -> None:
        outputs = {name: output_of(run.model, tensors) for name, tensors in self.tensors.items()}
        training = run.model.training
        for name, output in outputs.items():
            assert torch.equal(sampled(run, name), output), name
            with run.average("ema"), run.average(name):
                assert torch.equal(run.model(INPUTS.to(output.dtype)), output), "within another one"
        assert run.model.training == training
        self.count += 1

    def _remember(self, run: Any) -> None:
        """Copy the tensors of the averages and of the network,
        where all of them are in their own places.
        """
        averages = {
            name: hook.average for name, hook in run.hooks.items() if hasattr(hook, "has_average")
        }
        self.tensors = {None: run.model.state_dict(), **averages}
        for name, tensors in self.tensors.items():
            self.tensors[name] = {key: tensor.clone() for key, tensor in tensors.items()}

    def before_train_iter(self, run: Any) -> None:
        self._remember(run)
        self._look(run)

    def after_forward(self, run: Any) -> None:
        self._remember(run)  # a forward pass has changed the statistics of batch norms
        self._look(run)

    def before_backward(self, run: Any) -> None:
        self._look(run)

    def after_backward(self, run: Any) -> None:
        self._look(run)

    def after_train_iter(self, run: Any) -> None:
        self._remember(run)
        self._look(run)

    def before_val_iter(self, run: Any) -> None:
        self._look(run)

    def after_val_iter(self, run: Any) -> None:
        self._look(run)

    def after_val(self, run: Any) -> None:
        self._look(run)

    def after_run(self, run: Any) -> None:
        run.log("looked", self.count)


class SamplingTask(StepOnly):
    """Samples from the average between its forward pass and the backward pass."""

    def __init__(self, name: str = "ema") -> None:
        self.name = name

    def step(self, run: Any, batch: Any) -> dict[str, Any]:
        outputs = super().step(run, batch)
        if run.model.training:
            sampled(run, self.name)
        return outputs
