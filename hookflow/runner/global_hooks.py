"""Global module hooks: bindings at the `global_` points become PyTorch's hooks on every module of this process.

They fire in the iterations of training alone, in the process that trains: not in data workers that were forked from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from os import getpid
from typing import Any

from torch import nn
from torch.nn.modules import module as torch_module
from torch.utils.hooks import RemovableHandle

from hookflow.runner.engine import Engine
from hookflow.runner.firing import Firing
from hookflow.runner.numerics.compiling import hidden
from hookflow.runner.state import RunState

Register = Callable[[Callable[..., Any]], RemovableHandle]


def attach_globally(model: nn.Module, engine: Engine, state: RunState, *, compiled: bool) -> Iterator[RemovableHandle]:
    """Register every binding at a global point with PyTorch, in the plan's order; yield what takes each off."""
    names = {module: name for name, module in model.named_modules()}
    for point, register in _REGISTER.items():
        for firing in engine.firings(point):
            firing.ask_once_per_iteration(state)
            fire = _guarded(firing, names, engine, state)
            yield register(hidden(fire) if compiled else fire)


def _guarded(firing: Firing, names: dict[nn.Module, str], engine: Engine, state: RunState) -> Callable[..., Any]:
    """Return what calls a binding with a module's name in the network; None is that of a module outside of it."""
    dispatcher, process = engine.dispatcher, getpid()

    def fire(module: nn.Module, *offered: Any) -> Any:
        if state.stage != "train" or getpid() != process:
            return None
        return dispatcher.call_within(firing, (dispatcher.run, names.get(module), module, *offered))

    return fire


def _forward_pre(fire: Callable[..., Any]) -> RemovableHandle:
    return torch_module.register_module_forward_pre_hook(lambda module, args: fire(module, args, args))


def _forward(fire: Callable[..., Any]) -> RemovableHandle:
    def with_kwargs(module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        return fire(module, args, args, kwargs, output)

    return torch_module.register_module_forward_hook(with_kwargs, with_kwargs=True)


_REGISTER: dict[str, Register] = {
    "global_forward_pre": _forward_pre,
    "global_forward": _forward,
    "global_full_backward_pre": torch_module.register_module_full_backward_pre_hook,
    "global_full_backward": torch_module.register_module_full_backward_hook,
}
