"""Changes how many rows a model's parameters have while they are trained; what the optimizer knows of them follows."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


def append_rows(model: nn.Module, optimizer: Optimizer, rows: Mapping[str, Tensor]) -> None:
    """Append rows to each parameter, by its name; what the optimizer has averaged of them begins at zero."""
    for name, parameter in list(model.named_parameters()):
        more = rows[name]
        averages = {
            key: torch.cat((value, value.new_zeros(more.shape))) for key, value in _averages(optimizer, parameter)
        }
        _replace(model, optimizer, name, torch.cat((parameter.detach(), more)), averages)


def keep_rows(model: nn.Module, optimizer: Optimizer, kept: Tensor) -> None:
    """Drop the rows of every parameter but those where `kept`, boolean (rows,), is true."""
    for name, parameter in list(model.named_parameters()):
        averages = {key: value[kept] for key, value in _averages(optimizer, parameter)}
        _replace(model, optimizer, name, parameter.detach()[kept], averages)


def _averages(optimizer: Optimizer, parameter: nn.Parameter) -> list[tuple[str, Tensor]]:
    """Return what the optimizer holds for each number of a parameter: Adam's two averages, say, and not its step."""
    state = optimizer.state.get(parameter, {})
    return [(key, value) for key, value in state.items() if getattr(value, "shape", None) == parameter.shape]


def _replace(model: nn.Module, optimizer: Optimizer, name: str, values: Tensor, averages: Mapping[str, Tensor]) -> None:
    """Put a new parameter in the place of one, in the model and in the optimizer.

    A new one, for the graph of the last backward pass may still hold the old one, with its old shape.
    """
    owner, _, last = name.rpartition(".")
    module = model.get_submodule(owner)
    old = getattr(module, last)
    new = nn.Parameter(values, requires_grad=old.requires_grad)
    setattr(module, last, new)
    for group in optimizer.param_groups:
        group["params"] = [new if parameter is old else parameter for parameter in group["params"]]
    if old in optimizer.state:
        optimizer.state[new] = {**optimizer.state.pop(old), **averages}
