"""Hooks inside the network: bindings at module points become PyTorch's own hooks on the modules that they pick.

What a hook returns replaces what it was offered, as in PyTorch: the arguments at `forward_pre`, the output at
`forward`, the gradients at the other two; None leaves them as they are. Several hooks on one module fire in the plan's
order, each with what those before it have left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.utils.hooks import RemovableHandle

from hookflow.errors import Problem, Where
from hookflow.graph.plan import Binding, Plan
from hookflow.runner.dispatch import Due, Firing
from hookflow.runner.globs import no_module
from hookflow.runner.numerics.compiling import hidden

if TYPE_CHECKING:
    from hookflow.runner.runner import Runner


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


def attach(run: Runner) -> list[RemovableHandle]:
    """Register every binding at a module point with PyTorch, in the plan's order; return what takes them off again."""
    handles = []
    for point in (point.name for point in run.plan.points if point.kind == "module"):
        for firing in run.dispatcher.firings(point):
            if firing.due is not None:
                firing.due = once_an_iteration(firing.due, run)
            handles += [_register(run, firing, module) for module in picked(firing.binding, run.model)]
    return handles


def once_an_iteration(due: Due, run: Runner) -> Due:
    """Return `due`, asked once an iteration: what it says holds for all modules of a binding, however often called."""
    asked, answer = -1, False

    def same() -> bool:
        nonlocal asked, answer
        if asked != run.iter:
            asked, answer = run.iter, due()
        return answer

    return same


def _register(run: Runner, firing: Firing, module: nn.Module) -> RemovableHandle:
    """Register one binding on one module. PyTorch hands over `kwargs` only to who asks, and wants them back then."""
    call, here = run.dispatcher.call_within, firing.binding
    with_kwargs = "kwargs" in here.takes

    def fire(module: nn.Module, *offered: Any) -> Any:
        return call(firing, (run, module, *offered)) if run.stage == "train" else None

    if run.compile:
        fire = hidden(fire)
    match here.point:
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
