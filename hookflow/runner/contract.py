"""What the runner asks of what users write: batches that can be counted, tasks that return a loss, numbers to log."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from hookflow.errors import Problem, UserError


class Task(Protocol):
    """What is learned: how a batch becomes a loss.

    Both methods return a dict that holds at least "loss", a tensor of no dimensions (averaged over the batch, so that
    the mean over a pass can be weighted by the sizes of its batches); hooks find the rest of it as `outputs`.
    """

    def step(self, model: nn.Module, batch: Any) -> dict[str, Any]:
        """Return the outputs of a training batch; the loss requires a gradient."""

    def evaluate(self, model: nn.Module, batch: Any) -> dict[str, Any]:
        """Return those of a validation or test batch, with the model in evaluation and gradients off."""


def check_outputs(outputs: Any, method: str) -> None:
    """Hold what the task's `method` ("step" or "evaluate") returned against its contract; raises UserError."""
    wrong = ""
    if not isinstance(outputs, Mapping):
        wrong = f"a {type(outputs).__name__}"
    elif "loss" not in outputs:
        wrong = f'a dict without "loss" (it has {", ".join(map(str, outputs)) or "nothing"})'
    elif not isinstance(loss := outputs["loss"], Tensor):
        wrong = f"a loss that is no tensor, but a {type(loss).__name__}"
    elif loss.ndim:
        wrong = f"a loss of shape {tuple(loss.shape)}"
    elif method == "step" and not loss.requires_grad:
        wrong = "a loss that does not depend on any parameter that trains (it does not require a gradient)"
    if wrong:
        hint = 'return {"loss": loss, …} with the mean over the batch, a tensor of no dimensions'
        raise UserError(Problem(f"the task's {method} has returned {wrong}", hint=hint))


def batch_size_of(batch: Any) -> int:
    """Return the examples of a batch: the length of its first tensor, or its own where it holds none.

    Raises UserError when it has neither.
    """
    tensor = _first_tensor(batch)
    if tensor is not None:
        return len(tensor)
    if isinstance(batch, Sized):
        return len(batch)
    said = f"a batch is a {type(batch).__name__}, which holds no tensor and has no length"
    raise UserError(Problem(said, hint="its __len__ should say how many examples it holds"))


def _first_tensor(batch: Any) -> Tensor | None:
    """Return the first tensor in a batch that has a length."""
    if isinstance(batch, Tensor):
        return batch if batch.ndim else None
    if not isinstance(batch, tuple | list | Mapping):
        return None
    for part in batch.values() if isinstance(batch, Mapping) else batch:
        found = _first_tensor(part)
        if found is not None:
            return found
    return None


def as_number(value: Any, called: str) -> float:
    """Return a number (or a tensor or an array of one element, waiting for its device) as a float.

    Raises TypeError, which says that `called` was given something else.
    """
    try:
        number = value.item() if hasattr(value, "item") else value
        if not hasattr(number, "__float__"):  # a string has none
            raise TypeError
        return float(number)
    except (TypeError, ValueError, RuntimeError):
        raise not_a_number(value, called) from None


def not_a_number(value: Any, called: str) -> TypeError:
    """Return the complaint that `called` was given something else than a number."""
    shape = f"of shape {tuple(value.shape)}" if hasattr(value, "shape") else f"({value!r:.40})"
    return TypeError(f"{called} needs a number or a tensor of one element, not a {type(value).__name__} {shape}")


def scalar(value: Any, called: str) -> float | Tensor:
    """Return what may be logged: a float, or a copy of a tensor of one element, which stays on its device.

    Raises TypeError, which says that `called` was given something else.
    """
    if not isinstance(value, torch.Tensor):
        return as_number(value, called)
    if value.numel() != 1 or value.is_complex():
        raise not_a_number(value, called)
    return value.detach().clone()
