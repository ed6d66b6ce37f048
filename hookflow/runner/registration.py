"""One binding at one module, as PyTorch has it, and its place among the other hooks of that module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle

from hookflow.runner.firing import Firing
from hookflow.runner.numerics.compiling import HOOKS, hidden

Call = Callable[..., Any]
"""Calls a binding: with its registration, the module, and what the point offers behind the module's name."""


class Stack:
    """The hooks of one module at one point: those of bindings, in the plan's order, and others.

    The module's own hooks, which it has registered before, fire between those that are prepended and those that are
    not. The order is the same however often a binding has been taken off meanwhile: PyTorch would put it last.
    """

    def __init__(self, module: nn.Module, point: str) -> None:
        self._hooks = getattr(module, HOOKS[point])
        self._own = set(self._hooks)
        self._members: list[Registration] = []

    def join(self, registration: Registration) -> None:
        self._members.append(registration)

    def arrange(self, new: Registration) -> None:
        """Put all that is registered in order, now that PyTorch has put a new one last."""
        there = [member for member in self._members if member.handle is not None]
        ahead = [member.id for member in there if member.firing.binding.prepend]
        behind = [member.id for member in there if not member.firing.binding.prepend]
        ids = [id_ for id_ in self._hooks if id_ != new.id]
        known = [k for k, id_ in enumerate(ids) if id_ in {*self._own, *ahead, *behind}]
        first, last = (known[0], known[-1] + 1) if known else (0, 0)  # what stands outside has come by hand since
        own = [id_ for id_ in ids[first:last] if id_ not in {*ahead, *behind}]
        for id_ in (*ids[:first], *ahead, *own, *behind, *ids[last:]):
            self._hooks.move_to_end(id_)


class Registration:
    """One binding at one module, registered while `handle` is there; once `removed`, never again."""

    def __init__(self, firing: Firing, name: str, module: nn.Module, stack: Stack, call: Call, *, hide: bool) -> None:
        self.firing = firing
        self.stages = firing.binding.stages or ("train",)
        self.name = name
        self.module = module
        self.handle: RemovableHandle | None = None
        self.removed = False
        self._stack = stack
        callback = _callback(self, call)
        self._callback = hidden(callback) if hide else callback
        stack.join(self)

    @property
    def id(self) -> int:
        """What PyTorch keeps it by."""
        assert self.handle is not None
        return self.handle.id

    @property
    def key(self) -> tuple[str, str, str]:
        """What it goes by in a checkpoint: the hook, the point and the module."""
        return self.firing.binding.hook, self.firing.binding.point, self.name

    def add(self) -> None:
        """Register it, unless it has been removed for good."""
        if self.handle is None and not self.removed:
            self.handle = self._register()
            self._stack.arrange(self)

    def drop(self) -> None:
        """Take it off the module."""
        if self.handle is not None:
            self.handle.remove()
            self.handle = None

    def remove(self) -> None:
        """Take it off the module for good."""
        self.removed = True
        self.drop()

    def _register(self) -> RemovableHandle:
        module, callback, binding = self.module, self._callback, self.firing.binding
        with_kwargs = "kwargs" in binding.takes
        match binding.point:
            case "forward_pre":
                return module.register_forward_pre_hook(callback, with_kwargs=with_kwargs)
            case "forward":
                return module.register_forward_hook(callback, with_kwargs=with_kwargs, always_call=binding.always_call)
            case "full_backward_pre":
                return module.register_full_backward_pre_hook(callback)
            case _:
                return module.register_full_backward_hook(callback)


def _callback(registration: Registration, call: Call) -> Callable[..., Any]:
    """Return `call` as PyTorch calls it at a point. It hands over `kwargs` only to who asks, and wants them back then.

    It must be a function: a copy of the network keeps the hooks, and of anything else it would have a copy.
    """
    this, binding = registration, registration.firing.binding
    with_kwargs = "kwargs" in binding.takes
    match binding.point:
        case "forward_pre" if with_kwargs:
            return lambda module, args, kwargs: call(this, module, args, args, kwargs)
        case "forward_pre":
            return lambda module, args: call(this, module, args, args, None)
        case "forward" if with_kwargs:
            return lambda module, args, kwargs, output: call(this, module, args, args, kwargs, output)
        case "forward":
            return lambda module, args, output: call(this, module, args, args, None, output)
    return lambda module, *gradients: call(this, module, *gradients)
