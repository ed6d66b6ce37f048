"""What becomes of a run whose loss is not finite, where that is to end it: `run.on_nan = "raise"`."""

from __future__ import annotations

from math import isfinite
from typing import NamedTuple

import torch
from torch import Tensor

from hookflow.runner.numerics.async_scalar_copy import AsyncScalarCopy
from hookflow.runner.state import RunState


class NonFiniteLossError(ArithmeticError):
    """A loss was NaN or infinite."""


class Place(NamedTuple):
    """Where in the training a loss was computed: iterations and epochs that were done, and the batch of the epoch."""

    it: int
    ep: int
    batch: int


class Losses:
    """The losses of a training: each is looked at as soon as the host has it, without waiting for CUDA.

    So there a loss that is not finite ends the run an iteration or so later; `settle` is for those moments when it must
    be certain that there was none.
    """

    def __init__(self, device: torch.device, state: RunState) -> None:
        self._state = state
        self._sent: AsyncScalarCopy[Place] = AsyncScalarCopy()
        self.watch = self._watch_later if device.type == "cuda" else self._watch_now

    def _watch_now(self, loss: Tensor) -> None:
        """Take a loss. Raises NonFiniteLossError when this one, or one before it, is known not to be finite."""
        if not isfinite(value := loss.item()):
            raise NonFiniteLossError(_words(value, self._place()))

    def _watch_later(self, loss: Tensor) -> None:
        self._sent.send(loss, self._place())
        self._look(wait=False)

    def settle(self) -> None:
        """Wait for every loss that has been taken. Raises NonFiniteLossError when one is not finite."""
        self._look(wait=True)

    def _place(self) -> Place:
        return Place(self._state.iter, self._state.epoch, self._state.batch_idx)

    def _look(self, wait: bool) -> None:
        for value, place in self._sent.arrived(wait):
            if not isfinite(value):
                raise NonFiniteLossError(_words(value, place))


def _words(value: float, place: Place) -> str:
    number = "NaN" if value != value else "infinite"
    return (
        f"the loss is {number} in iteration {place.it + 1} (epoch {place.ep + 1}, batch {place.batch + 1}). "
        "Lower the learning rate, bound the gradients (the hook grad_clip), compute with a wider range "
        '(run.precision = "bf16" or "fp32"), or leave such steps out: run.on_nan = "skip". '
        "Existing checkpoints are not affected."
    )
