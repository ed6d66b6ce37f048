"""From a loss to new weights: the one place where gradients are computed and optimizers step.

The five step points fire here, in this order whoever asks: `after_forward`, `before_backward`, `after_backward` at each
loss; `before_optimizer_step`, `after_optimizer_step` at each step.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hookflow.runner.course import BEFORE_THE_STEP
from hookflow.runner.numerics.finite import FiniteSteps
from hookflow.runner.numerics.losses import Losses, Place

if TYPE_CHECKING:
    from hookflow.runner.runner import Runner


class Update:
    """The gradients and the optimizers of a run.

    Gradients add up until the optimizer has used them for a step; the next loss then finds none. `stepping` names the
    optimizers whose step is at hand, `asked_to_skip` says that a hook does not want it.
    """

    def __init__(self, run: Runner, optimizers: Mapping[str, torch.optim.Optimizer], on_nan: str) -> None:
        self._run = run
        self._optimizers = optimizers
        self.every = tuple(optimizers)
        self._used = set(optimizers)
        self.stepping: tuple[str, ...] = ()
        self.asked_to_skip = False
        self._left_out: tuple[int, list[Tensor | bool]] = (-1, [])
        scales, skips = run.precision == "fp16", on_nan == "skip"
        self.losses = Losses(run.device) if on_nan == "raise" else None
        self.finite = FiniteSteps(run, optimizers, scales, skips) if scales or skips else None

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
        loss = outputs["loss"]
        if self.losses:
            self.losses.watch(loss, Place(run.iter, run.epoch, run.batch_idx))
        seed = None
        if self.finite:
            seed = self.finite.seed(loss, share)
        elif share != 1.0:
            loss = loss * share
        loss.backward(seed, inputs=None if len(names) == len(self.every) else [*self._parameters(names)])
        run.meter.book("backward")
        run.reach("after_backward", *offered)

    def step(self, offered: tuple[Any, ...], names: tuple[str, ...]) -> None:
        """Let the optimizers that are named use their gradients, unless a hook has asked to skip that.

        Nor do they where the gradients are not finite, if that is to be looked at; what the host knows of it in time
        looks to hooks as if one had asked.
        """
        run, finite = self._run, self.finite
        self.stepping = names
        run.strategy.average_gradients(self._parameters(names))
        run.strategy.broadcast_buffers()
        if run.ranks.world > 1:
            run.meter.book("backward")  # here too they wait for one another, in a task that steps itself
        found = None
        self.asked_to_skip = run.course.agreed(self.asked_to_skip, *BEFORE_THE_STEP[:-1])
        if finite and not self.asked_to_skip:
            found = finite.found(names)
            self.asked_to_skip = finite.refuses(names, found)
        if not self.asked_to_skip:
            entered = run.dispatcher.entered
            run.reach("before_optimizer_step", *offered)
            self.asked_to_skip = run.course.agreed(self.asked_to_skip, BEFORE_THE_STEP[-1])
            if self.asked_to_skip:
                run.dispatcher.leave(entered)
        self._used.update(names)
        if finite and found is not None and len(self._used) == len(self.every):
            finite.move_scale()
        if self.asked_to_skip:
            self.asked_to_skip = False
            self._note(True)
        else:
            self._take(names, found)
            run.meter.book("optimizer")
            run.reach("after_optimizer_step", *offered)
        if finite:
            finite.tell()

    def _take(self, names: tuple[str, ...], found: Tensor | None) -> None:
        for name in names:
            if self.finite and found is not None:
                self.finite.step(self._optimizers[name], found)
            else:
                self._optimizers[name].step()
        if self.finite and found is not None and not self.finite.waits:
            self._note(found)

    def _note(self, left_out: Tensor | bool) -> None:
        """Remember of this iteration that a step was left out, or where it stands whether it was."""
        if self._left_out[0] != self._run.iter:
            self._left_out = self._run.iter, []
        self._left_out[1].append(left_out)

    def left_out_in(self, iteration: int) -> bool:
        """Return whether a step of this iteration, the latest, was left out, waiting for the device if need be."""
        of, steps = self._left_out
        return of == iteration and any(map(bool, steps))

    def announce(self) -> None:
        """Say what a look at the gradients costs, where it costs anything."""
        if self.finite:
            self.finite.announce()

    def settle(self) -> None:
        """Wait until it is certain of every loss that it was finite. Raises NonFiniteLossError when one was not."""
        if self.losses:
            self.losses.settle()
        if self.finite:
            self.finite.tell(wait=True)

    def scale(self, factor: float) -> None:
        """Multiply all gradients."""
        torch._foreach_mul_([p.grad for p in self._parameters(self.every) if p.grad is not None], factor)

    def drop(self) -> None:
        """Drop all gradients, also those that no step has used."""
        for optimizer in self._optimizers.values():
            optimizer.zero_grad(set_to_none=True)

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
