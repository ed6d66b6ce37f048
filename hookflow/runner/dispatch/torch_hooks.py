"""Hooks that PyTorch calls: on parameters, optimizers, all modules, state dicts, and DDP's communication."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from os import getpid
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from hookflow.errors import Problem, UserError, Where
from hookflow.graph.plan import Binding, Plan
from hookflow.hooks.globs import matching, named_parameters, no_match
from hookflow.hooks.table import POINT
from hookflow.hooks.tensors import is_sharded
from hookflow.runner.builder.components import Parts
from hookflow.runner.builder.selectors import Picked
from hookflow.runner.dispatch.dispatcher import Call, Firing
from hookflow.runner.dispatch.engine import Engine
from hookflow.runner.distributed.strategy import Strategy
from hookflow.runner.numerics.compiling import hidden
from hookflow.runner.process.state import RunState


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
                message, hint = wrong
                yield Problem(f'hook "{binding.hook}" at {binding.point}: {message}', place(binding, glob), hint)
        if binding.point == "parameter_grad" and any(map(is_sharded, picked_parameters(binding, model).values())):
            message = f'hook "{binding.hook}": parameter_grad never fires with FSDP, whose gradients are sharded'
            hint = 'use post_accumulate_grad, or strategy = "ddp"'
            yield Problem(message, place(binding, binding.parameters[0]), hint)


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


def attach_to_optimizers(
    optimizers: Mapping[str, Optimizer], engine: Engine, state: RunState
) -> Iterator[RemovableHandle]:
    """Register every binding in an optimizer's step with PyTorch, in the plan's order; yield what takes each off."""
    for point in ("optimizer_step_pre", "optimizer_step_post"):
        for firing in engine.firings(point):
            firing.ask_once_per_iteration(state)
            for name, optimizer in optimizers.items():
                fire = _with_optimizer(firing, name, engine)
                if point == "optimizer_step_pre":
                    yield optimizer.register_step_pre_hook(fire)
                else:
                    yield optimizer.register_step_post_hook(fire)


def _with_optimizer(firing: Firing, name: str, engine: Engine) -> Callable[..., Any]:
    dispatcher = engine.dispatcher

    def fire(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return dispatcher.call_within(firing, (dispatcher.run, name, optimizer, args, kwargs))

    return fire


def attach_to_states(picked: Picked, engine: Engine, state: RunState) -> Iterator[RemovableHandle]:
    """Register every binding around a module's state with PyTorch, in the plan's order; yield what takes each off."""
    for point in (point.name for point in engine.plan.points if point.kind == "state"):
        for firing in engine.firings(point):
            for name, module in picked[firing.binding.id].items():
                register: Callable[..., RemovableHandle] = getattr(module, f"register_{point}_hook")
                yield register(_with_module(firing, name, engine, state))


def _with_module(firing: Firing, name: str, engine: Engine, state: RunState) -> Callable[..., Any]:
    dispatcher = engine.dispatcher

    def fire(module: nn.Module, *offered: Any) -> Any:
        if state.stage == "end":  # asked of a copy of the module, which keeps its hooks
            return None
        return dispatcher.call_within(firing, (dispatcher.run, name, module, *offered))

    return fire


def check_comm_hook(plan: Plan, strategy: Strategy, place: Callable[[str], Where]) -> None:
    """Raise UserError where the plan has a communication hook, and no DDP calls it."""
    for binding in plan.at(POINT):
        if strategy.no_buckets:
            message = f'hook "{binding.hook}" has nothing to do at {POINT}: {strategy.no_buckets}'
            hint = f"leave it out: --without {binding.hook}"
            raise UserError(Problem(message, place(f"hooks.{binding.hook}.use"), hint))


def attach_to_ddp(models: Mapping[str, nn.Module], strategy: Strategy, engine: Engine, state: RunState) -> None:
    """Let the binding at `ddp_comm`, if there is one, average the gradients. DDP keeps it as long as it is there."""
    for firing in engine.firings(POINT) if strategy.bucketed else ():
        firing.ask_once_per_iteration(state)
        firing.call = _checked(firing)
        for name, model in models.items():
            if model in strategy.bucketed:
                model.register_comm_hook(None, _averaging(firing, name, engine, state))  # type: ignore[operator]


def _averaging(firing: Firing, name: str, engine: Engine, state: RunState) -> Callable[..., Any]:
    """Return a hook for the buckets of one model: what the binding returns, or the mean where it is not due."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
    from torch.distributed.distributed_c10d import _get_default_group

    dispatcher, group = engine.dispatcher, _get_default_group()

    def average(_, bucket):  # type: ignore[no-untyped-def] # PyTorch would look at annotations, and not know these
        future = None
        if state.stage == "train":
            future = dispatcher.call_within(firing, (dispatcher.run, name, group, group, bucket))
        return allreduce_hook(group, bucket) if future is None else future

    return average


def _checked(firing: Firing) -> Call:
    """Return the call of a binding, which must return a Future."""
    call, hook = firing.call, firing.binding.hook

    def checked(offered: Sequence[Any]) -> object:
        future = call(offered)
        if not isinstance(future, torch._C.Future):
            message = f'hook "{hook}" must return a torch.futures.Future of the bucket at {POINT}, not {future!r:.40}'
            raise TypeError(message)
        return future

    return checked


def register_hooks(parts: Parts, engine: Engine, state: RunState) -> ExitStack:
    """Register them in the plan's order; close what is returned to take them off. Where one fails, none stays."""
    with ExitStack() as registered:
        for handles in (
            attach_to_parameters(parts.model, engine, state),
            attach_globally(parts.model, engine, state, compiled=bool(parts.section.compile)),
            attach_to_optimizers(parts.optimizers, engine, state),
            attach_to_states(parts.picked, engine, state),
        ):
            for handle in handles:
                registered.callback(handle.remove)
        attach_to_ddp(parts.models, parts.strategy, engine, state)
        return registered.pop_all()
