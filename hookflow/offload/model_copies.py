"""Copies of the network and of a firing's arguments.

Offloaded hooks read them while the training goes on.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any
from weakref import finalize, ref

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

IMMUTABLE_TYPES = (str, bytes, int, float, bool, type(None))
"""Values of these types are not copied."""


class SharedCopy:
    """A copy of the network that several hooks read, and none may change."""

    def __init__(self, network: nn.Module) -> None:
        self.network = network


class ModelCopies:
    """Copies of a network; their memory is used again when no firing needs them."""

    def __init__(self, model: nn.Module, *, grads: bool) -> None:
        self._model = model
        self._grads = grads
        self.pattern = copy.deepcopy(model)  # before hooks are registered in it
        self._spare = deque([self.pattern])
        self._latest: Callable[[], SharedCopy | None] = _no_copy
        """A weak reference to the copy that was made last.

        It is `None` once no firing needs that.
        """
        self._latest_state: object = None
        """The visit that it was made for, and the versions of the network's tensors then."""

    def take(self, visit: object) -> SharedCopy:
        """Return a copy of the network as it is now.

        Of one visit of a point it is the same one, unless the network has changed.
        """
        tensors = list(model_tensors(self._model))
        for parameter in self._model.parameters():
            if parameter.grad is not None:
                tensors.append(parameter.grad)
        state = (visit, [(id(tensor), _version(tensor)) for tensor in tensors])
        latest = self._latest()
        if latest is not None and state == self._latest_state:
            return latest
        if self._spare:
            network = self._spare.pop()
        else:
            network = copy.deepcopy(self.pattern)
        self.copy(self._model, network)
        shared = SharedCopy(network)
        finalize(shared, self._spare.append, network)
        self._latest = ref(shared)
        self._latest_state = state
        return shared

    def copy(self, network: nn.Module, twin: nn.Module) -> None:
        """Give a twin a network's values and modes, and its gradients where hooks read them."""
        with torch.no_grad():
            for source, target in zip(model_tensors(network), model_tensors(twin), strict=True):
                target.copy_(source, non_blocking=True)
                if self._grads and source.grad is not None:
                    target.grad = source.grad.detach().clone()
                elif self._grads:
                    target.grad = None
        for module, twin_module in zip(network.modules(), twin.modules(), strict=True):
            twin_module.training = module.training


def _no_copy() -> None:
    """Return None, as a dead weak reference does, before there is a copy."""


def _version(tensor: Tensor) -> int:
    if tensor.is_inference():  # which counts no versions
        return -1
    return tensor._version


def model_tensors(model: nn.Module) -> Sequence[Tensor]:
    """Return the parameters and buffers of a network."""
    return [*model.parameters(), *model.buffers()]


def copy_arguments(value: Any) -> Any:
    """Return a copy of what a point offers, without its graph; tensors stay on their device."""

    def leaf(each: Any) -> Any:
        if isinstance(each, Tensor):
            return each.detach().clone()
        if isinstance(each, IMMUTABLE_TYPES):
            return each
        return copy.deepcopy(each)

    return tree_map(leaf, value)


def count_bytes(copies: Any) -> int:
    """Return the bytes of all tensors; of a network, with their gradients."""
    leaves: Sequence[Any]
    if isinstance(copies, nn.Module):
        leaves = model_tensors(copies)
    else:
        leaves = tree_leaves(copies)
    num_bytes = 0
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            num_bytes += leaf.nbytes
            if leaf.grad is not None:
                num_bytes += leaf.grad.nbytes
    return num_bytes
