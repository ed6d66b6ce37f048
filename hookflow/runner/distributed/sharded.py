"""Loads the full states of a checkpoint into models and optimizers, whose tensors may be sharded.

So a run resumes with any number of ranks, and with another strategy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from hookflow.hooks.tensors import is_sharded, shard_like


def load_model(model: nn.Module, state: Mapping[str, Any], *, strict: bool = True) -> None:
    """Give a model the weights of a full `state_dict`. Raises RuntimeError as `load_state_dict` does."""
    held = model.state_dict()
    if any(map(is_sharded, held.values())):
        state = {name: _like(value, held[name]) if name in held else value for name, value in state.items()}
    model.load_state_dict(state, strict=strict)


def load_optimizer(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Give an optimizer its full `state_dict`. Raises ValueError as `load_state_dict` does."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if any(map(is_sharded, parameters)):
        numbers = [number for group in state["param_groups"] for number in group["params"]]
        shared = {
            number: {name: _like(value, parameter) for name, value in state["state"][number].items()}
            for number, parameter in zip(numbers, parameters, strict=False)  # it is told of too few, or too many, below
            if number in state["state"]
        }
        state = {**state, "state": state["state"] | shared}
    optimizer.load_state_dict(state)


def _like(value: Any, held: Any) -> Any:
    """Return what a state holds for a tensor, sharded as that is, if it has its shape."""
    fits = isinstance(value, Tensor) and isinstance(held, Tensor) and value.shape == held.shape
    return shard_like(value, held) if fits else value
