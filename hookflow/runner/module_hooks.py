"""Hooks inside the network: bindings at module points become PyTorch's own hooks on the modules that they pick.

What a hook returns replaces what it was offered, as in PyTorch: the arguments at `forward_pre`, the output at
`forward`, the gradients at the other two; None leaves them as they are. Several hooks on one module fire in the plan's
order, each with what those before it have left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle

from hookflow.errors import Problem, Where
from hookflow.graph.plan import Binding, Plan
from hookflow.runner.engine import Engine
from hookflow.runner.firing import Firing, once_an_iteration
from hookflow.runner.globs import no_module
from hookflow.runner.numerics.compiling import hidden
from hookflow.runner.state import RunState


def picked(binding: Binding, model: nn.Module) -> Iterator[nn.Module]:
    """Yield the modules that a binding's globs pick; the network itself has the empty name, which `*` matches too."""
    for name, module in model.named_modules():
        if any(fnmatchcase(name, glob) for glob in binding.modules):
            yield module


def unmatched(plan: Plan, model: nn.Module, place: Callable[[Binding, str], Where]) -> Iterator[Problem]:
    """Yield a problem for each glob that picks no module; `place` tells where a binding's glob stands."""
    names = [name for name, _ in model.named_modules()]
    for binding in plan.bindings:
        for glob in binding.modules:
            if wrong := no_module(glob, names):
                said, hint = wrong
                yield Problem(f'hook "{binding.hook}" at {binding.point}: {said}', place(binding, glob), hint)


def attach(model: nn.Module, engine: Engine, state: RunState, *, compiled: bool) -> list[RemovableHandle]:
    """Register every binding at a module point with PyTorch, in the plan's order; return what takes them off again."""
    handles = []
    for point in (point.name for point in engine.plan.points if point.kind == "module"):
        for firing in engine.firings(point):
            if firing.due is not None:
                firing.due = once_an_iteration(firing.due, state)
            fire = _guarded(firing, engine, state)
            fire = hidden(fire) if compiled else fire
            handles += [_register(fire, firing, module) for module in picked(firing.binding, model)]
    return handles


def _guarded(firing: Firing, engine: Engine, state: RunState) -> Callable[..., Any]:
    """Return what calls a binding in the iterations of training alone."""
    dispatcher = engine.dispatcher

    def fire(module: nn.Module, *offered: Any) -> Any:
        if state.stage != "train":
            return None
        return dispatcher.call_within(firing, (dispatcher.run, module, *offered))

    return fire


def _register(fire: Callable[..., Any], firing: Firing, module: nn.Module) -> RemovableHandle:
    """Register one binding on one module. PyTorch hands over `kwargs` only to who asks, and wants them back then."""
    with_kwargs = "kwargs" in firing.binding.takes
    match firing.binding.point:
        case "forward_pre" if with_kwargs:
            return module.register_forward_pre_hook(fire, with_kwargs=True)
        case "forward_pre":
            return module.register_forward_pre_hook(fire)
        case "forward" if with_kwargs:
            return module.register_forward_hook(fire, with_kwargs=True)
        case "forward":
            return module.register_forward_hook(lambda module, args, output: fire(module, args, None, output))
        case "full_backward_pre":
            return module.register_full_backward_pre_hook(fire)
        case _:
            return module.register_full_backward_hook(fire)
