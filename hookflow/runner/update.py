"""From a loss to new weights: the one place where gradients are computed and optimizers step.

The five step points fire here, in this order whoever asks: `after_forward`, `before_backward`, `after_backward` at each
loss; `before_optimizer_step`, `after_optimizer_step` at each step.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from hookflow.runner.runner import Runner


class Update:
    """The gradients and the optimizers of a run.

    Gradients add up until the optimizer has used them for a step; the next loss then finds none. `stepping` names the
    optimizers whose step is at hand, `asked_to_skip` says that a hook does not want it.
    """

    def __init__(self, run: Runner, optimizers: Mapping[str, torch.optim.Optimizer]) -> None:
        self._run = run
        self._optimizers = optimizers
        self.every = tuple(optimizers)
        self._used = set(optimizers)
        self.stepping: tuple[str, ...] = ()
        self.asked_to_skip = False

    def backward(self, offered: tuple[Any, ...], names: Collection[str], share: float = 1.0) -> None:
        """Add the gradients of a loss, times `share`, to the parameters of the optimizers that are named.

        `offered` is what the points are: the batch, its index, and the outputs with the loss.
        """
        run, (*_, outputs) = self._run, offered
        run.reach("after_forward", *offered)
        run.reach("before_backward", *offered)
        for name in self._used.intersection(names):
            self._optimizers[name].zero_grad(set_to_none=True)
        self._used.difference_update(names)
        loss = outputs["loss"] if share == 1.0 else outputs["loss"] * share
        loss.backward(inputs=None if len(names) == len(self.every) else [*self._parameters(names)])
        run.meter.book("backward")
        run.reach("after_backward", *offered)

    def step(self, offered: tuple[Any, ...], names: tuple[str, ...]) -> None:
        """Let the optimizers that are named use their gradients, unless a hook has asked to skip that."""
        run = self._run
        self.stepping = names
        if not self.asked_to_skip:
            entered = run.dispatcher.entered
            run.reach("before_optimizer_step", *offered)
            if self.asked_to_skip:
                run.dispatcher.leave(entered)
        self._used.update(names)
        if self.asked_to_skip:
            self.asked_to_skip = False
            return
        for name in names:
            self._optimizers[name].step()
        run.meter.book("optimizer")
        run.reach("after_optimizer_step", *offered)

    def scale(self, factor: float) -> None:
        """Multiply all gradients."""
        torch._foreach_mul_([p.grad for p in self._parameters(self.every) if p.grad is not None], factor)

    def _parameters(self, names: Iterable[str]) -> Iterable[torch.Tensor]:
        return (p for name in names for group in self._optimizers[name].param_groups for p in group["params"])

    def state_dict(self) -> dict[str, list[torch.Tensor | None]]:
        """Return the gradients that no step has used yet, by the optimizer's name.

        Between two iterations there are none, unless a task that steps its optimizers itself has left some.
        """
        return {name: [p.grad for p in self._parameters([name])] for name in self.every if name not in self._used}

    def load_state_dict(self, state: Mapping[str, list[torch.Tensor | None]]) -> None:
        """Take back what `state_dict` returned."""
        self._used = set(self.every) - state.keys()
        for name, gradients in state.items():
            for parameter, gradient in zip(self._parameters([name]), gradients, strict=True):
                parameter.grad = None if gradient is None else gradient.to(parameter.device)
