"""Hooks around the state of modules: bindings at the points of `state_dict` and `load_state_dict`.

They fire whoever asks for a state or loads one, at whatever stage of the run: for a checkpoint, before a validation, in
a hook. What they change, they change in place, as in PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle

from hookflow.runner.engine import Engine
from hookflow.runner.firing import Firing
from hookflow.runner.picking import Picked
from hookflow.runner.state import RunState


def attach_to_states(picked: Picked, engine: Engine, state: RunState) -> Iterator[RemovableHandle]:
    """Register every binding around a module's state with PyTorch, in the plan's order; yield what takes each off."""
    for point in (point.name for point in engine.plan.points if point.kind == "state"):
        for firing in engine.firings(point):
            for name, module in picked[firing.binding.id].items():
                register: Callable[..., RemovableHandle] = getattr(module, f"register_{point}_hook")
                yield register(_named(firing, name, engine, state))


def _named(firing: Firing, name: str, engine: Engine, state: RunState) -> Callable[..., Any]:
    dispatcher = engine.dispatcher

    def fire(module: nn.Module, *offered: Any) -> Any:
        if state.stage == "end":  # asked of a copy of the module, which keeps its hooks
            return None
        return dispatcher.call_within(firing, (dispatcher.run, name, module, *offered))

    return fire
