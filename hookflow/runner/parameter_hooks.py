"""Hooks on parameters: bindings at parameter points become PyTorch's hooks on the tensors that they pick.

`parameter_grad` is a tensor hook (`Tensor.register_hook`): what it returns replaces the gradient, before that is added
to `param.grad`. `post_accumulate_grad` fires after that has been done. Several hooks on one parameter fire in the
plan's order, each with what those before it have left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from hookflow.errors import Problem, Where
from hookflow.graph.plan import Binding, Plan
from hookflow.hooks.globs import matching, named_parameters, no_match
from hookflow.hooks.tensors import is_sharded
from hookflow.runner.engine import Engine
from hookflow.runner.firing import Firing
from hookflow.runner.state import RunState


def differentiable(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that can have a gradient, by every name that they have."""
    return {name: p for name, p in named_parameters(model).items() if p.is_floating_point() or p.is_complex()}


def picked_parameters(binding: Binding, model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that a binding fires at."""
    return matching(differentiable(model), binding.parameters)


def wrong_parameters(plan: Plan, model: nn.Module, place: Callable[[Binding, str], Where]) -> Iterator[Problem]:
    """Yield a problem for each glob that picks no parameter, and for each tensor hook that FSDP would never call.

    `place` tells where a binding's glob stands.
    """
    names = differentiable(model)
    for binding in plan.bindings:
        for glob in binding.parameters:
            if wrong := no_match(glob, names, "parameter of the network"):
                said, hint = wrong
                yield Problem(f'hook "{binding.hook}" at {binding.point}: {said}', place(binding, glob), hint)
        if binding.point == "parameter_grad" and any(map(is_sharded, picked_parameters(binding, model).values())):
            said = f'hook "{binding.hook}": parameter_grad never fires with FSDP, whose gradients are sharded'
            hint = 'use post_accumulate_grad, or strategy = "ddp"'
            yield Problem(said, place(binding, binding.parameters[0]), hint)


def attach_to_parameters(model: nn.Module, engine: Engine, state: RunState) -> Iterator[RemovableHandle]:
    """Register every binding at a parameter point with PyTorch, in the plan's order; yield what takes each off."""
    for point in ("parameter_grad", "post_accumulate_grad"):
        for firing in engine.firings(point):
            firing.ask_once_per_iteration(state)
            for name, parameter in picked_parameters(firing.binding, model).items():
                yield _register(firing, name, parameter, engine, state)


def _register(firing: Firing, name: str, parameter: nn.Parameter, engine: Engine, state: RunState) -> RemovableHandle:
    """Register one binding on one parameter. A frozen one takes its hooks, too, for when it is trained again."""
    dispatcher = engine.dispatcher

    def with_gradient(gradient: Tensor) -> Any:
        if state.stage != "train":
            return None
        return dispatcher.call_within(firing, (dispatcher.run, name, parameter, gradient))

    def accumulated(parameter: Tensor) -> None:
        if state.stage == "train":
            dispatcher.call_within(firing, (dispatcher.run, name, parameter))

    trains = parameter.requires_grad
    parameter.requires_grad_(True)  # or PyTorch refuses
    if firing.binding.point == "parameter_grad":
        handle: RemovableHandle = parameter.register_hook(with_gradient)  # type: ignore[no-untyped-call]
    else:
        handle = parameter.register_post_accumulate_grad_hook(accumulated)  # type: ignore[no-untyped-call]
    parameter.requires_grad_(trains)
    return handle
