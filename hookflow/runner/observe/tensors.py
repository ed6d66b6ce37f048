"""The tensors of a run and the slots that they belong to: weights, gradients, the state of the optimizers."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from hookflow.graph.slots import Verb
from hookflow.runner.observe.marks import BYTES, mark, mark_of_tensor
from hookflow.runner.observe.watched import Note, WatchedDict
from hookflow.runner.parts import Parts

Marks = dict[str, dict[Hashable, Hashable]]
"""By slot, the mark of each thing in it."""

RATE = "lr"
RATES = (RATE, "initial_lr")
"""The settings of a parameter group that are the slot `lr`."""


def slot_of(kind: str, name: str, unnamed: str) -> str:
    """Return the slot of a part of the run; that of the only part, which has no name, is the whole."""
    return kind if name == unnamed else f"{kind}.{name}"


class RunTensors:
    """The tensors that a run trains, by slot. `noting` says who is told of what is done with a parameter group."""

    def __init__(self, parts: Parts) -> None:
        self._models = parts.models
        self._optimizers = parts.optimizers
        self._model_of = {
            id(parameter): name for name, model in parts.models.items() for parameter in model.parameters()
        }
        size = sum(tensor.nbytes for _, _, tensor in self)
        self.by_content = 4 * size <= BYTES
        """Whether contents are compared: with gradients and the optimizers' state it may be four times as much."""

    def __iter__(self) -> Iterator[tuple[str, Hashable, Tensor]]:
        """Yield each tensor with its slot and its name there."""
        for name, model in self._models.items():
            slot, grads = slot_of("model", name, "model"), slot_of("grads", name, "model")
            for key, parameter in model.named_parameters(remove_duplicate=False):
                yield slot, key, parameter
                if parameter.grad is not None:
                    yield grads, key, parameter.grad
            for key, buffer in model.named_buffers(remove_duplicate=False):
                yield slot, key, buffer
        for name, optimizer in self._optimizers.items():
            slot = slot_of("optimizer", name, "optimizer")
            yield from ((slot, key, value) for key, value in _state_of(optimizer) if isinstance(value, Tensor))

    def grads_of(self, parameter: Tensor) -> str:
        """Return the slot of a parameter's gradient."""
        return slot_of("grads", self._model_of.get(id(parameter), "model"), "model")

    def marks(self) -> Marks:
        """Return the marks of all tensors, and of the settings of the optimizers."""
        found: Marks = {slot: {} for slot in self._slots()}
        for slot, name, tensor in self:
            found[slot][name] = mark_of_tensor(tensor, content=self.by_content)
        for name, optimizer in self._optimizers.items():
            settings, rates = (found[slot_of(kind, name, "optimizer")] for kind in ("optimizer", RATE))
            for k, group in enumerate(optimizer.param_groups):
                for key, value in dict.items(group):
                    of = tuple(map(id, value)) if key == "params" else mark(value)
                    (rates if key in RATES else settings)["group", k, key] = of
            settings |= {key: mark(value) for key, value in _state_of(optimizer) if not isinstance(value, Tensor)}
        return found

    def _slots(self) -> Iterator[str]:
        for name in self._models:
            yield slot_of("model", name, "model")
            yield slot_of("grads", name, "model")
        for name in self._optimizers:
            yield slot_of("optimizer", name, "optimizer")
            yield slot_of(RATE, name, "optimizer")

    def watch_groups(self, noted: Any) -> None:
        """Let every parameter group note who reads and writes it: `noted(slot)` makes what is told of it."""
        for name, optimizer in self._optimizers.items():
            groups = optimizer.param_groups
            for k, group in enumerate(groups):
                if not isinstance(group, WatchedDict):
                    groups[k] = WatchedDict(group, _by_key(name, noted))

    def unwatch_groups(self) -> None:
        """Leave the parameter groups as they were: plain dicts."""
        for optimizer in self._optimizers.values():
            optimizer.param_groups[:] = [
                group.quietly() if isinstance(group, WatchedDict) else group for group in optimizer.param_groups
            ]


def _state_of(optimizer: Optimizer) -> Iterator[tuple[Hashable, Any]]:
    """Yield what an optimizer remembers of each parameter."""
    for parameter, state in optimizer.state.items():
        for key, value in state.items() if isinstance(state, Mapping) else ():
            yield (id(parameter), key), value


def _by_key(optimizer: str, noted: Any) -> Note:
    rate = noted(slot_of(RATE, optimizer, "optimizer"))
    settings = noted(slot_of("optimizer", optimizer, "optimizer"))

    def note(verb: Verb, key: str | None) -> None:
        if key in RATES or key is None:
            rate(verb)
        if key not in RATES and (key != "params" or verb == "writes"):
            settings(verb)

    return note
