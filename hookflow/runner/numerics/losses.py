"""What becomes of a run whose loss is not finite, where that is to end it: `run.on_nan = "raise"`."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Any, NamedTuple

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
    be certain that there was none. `explain` returns the rest of the message for the batch of the loss, or for None
    where that batch is gone.
    """

    def __init__(self, device: torch.device, state: RunState, explain: Callable[[Any], str] = lambda batch: "") -> None:
        self._state = state
        self._explain = explain
        self._sent: AsyncScalarCopy[Place] = AsyncScalarCopy()
        self.watch = self._watch_later if device.type == "cuda" else self._watch_now

    def _watch_now(self, loss: Tensor, batch: Any) -> None:
        """Take a loss. Raises NonFiniteLossError when this one, or one before it, is known not to be finite."""
        if not isfinite(value := loss.item()):
            raise self._error(value, self._place(), batch)

    def _watch_later(self, loss: Tensor, batch: Any) -> None:
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
                raise self._error(value, place)

    def _error(self, value: float, place: Place, batch: Any = None) -> NonFiniteLossError:
        number = "NaN" if value != value else "infinite"
        where = f"iteration {place.it + 1} (epoch {place.ep + 1}, batch {place.batch + 1})"
        return NonFiniteLossError(f"the loss is {number} in {where}. {self._explain(batch)}".rstrip())


def advice(precision: str, *, clips: bool, saved: bool) -> str:
    """Return what helps against a loss that is not finite, in a run that may clip gradients and have checkpoints."""
    ways = ["lower the learning rate"]
    if not clips:
        ways.append("bound the gradients (the hook grad_clip)")
    if precision == "fp16":
        ways.append('compute with a wider range (run.precision = "bf16" or "fp32")')
    if precision == "bf16":
        ways.append('compute with more digits (run.precision = "fp32")')
    ways.append('or skip such steps: run.on_nan = "skip"')
    kept = " Existing checkpoints are not affected." if saved else ""
    return f"To avoid it: {', '.join(ways)}.{kept}"
