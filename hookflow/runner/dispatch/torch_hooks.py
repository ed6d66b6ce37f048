"""Hooks that PyTorch calls: on parameters, optimizers, all modules, state dicts, and DDP's communication."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from os import getpid
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.utils.hooks import RemovableHandle

from hookflow.errors import Problem, UserError, Where
from hookflow.graph.plan import Binding, Plan
from hookflow.hooks.tensors import is_sharded, matching, named_parameters, no_match
from hookflow.runner.builder.components import Parts
from hookflow.runner.dispatch.dispatcher import Dispatcher, Firing
from hookflow.runner.dispatch.engine import Engine
from hookflow.runner.dispatch.module_hooks import hidden
from hookflow.runner.distributed.parallel import DDP, Strategy
from hookflow.runner.process.state import RunState


def differentiable(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that can have a gradient, by every name that they have."""
    return {name: p for name, p in named_parameters(model).items() if p.is_floating_point() or p.is_complex()}


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
        if binding.point == "parameter_grad" and any(map(is_sharded, matching(names, binding.parameters).values())):
            message = f'hook "{binding.hook}": parameter_grad never fires with FSDP, whose gradients are sharded'
            hint = 'use post_accumulate_grad, or strategy = "ddp"'
            yield Problem(message, place(binding, binding.parameters[0]), hint)


def check_comm_hook(plan: Plan, strategy: Strategy, place: Callable[[str], Where]) -> None:
    """Raise UserError where the plan has a communication hook, and no DDP calls it."""
    for binding in plan.at("ddp_comm"):
        if not isinstance(strategy, DDP):
            why = 'only several ranks with strategy = "ddp" average gradients in buckets, and no task that steps itself'
            message = f'hook "{binding.hook}" has nothing to do at ddp_comm: {why}'
            hint = f"leave it out: --without {binding.hook}"
            raise UserError(Problem(message, place(f"hooks.{binding.hook}.use"), hint))


Handles = Iterator[RemovableHandle]


def register_hooks(parts: Parts, engine: Engine, state: RunState) -> ExitStack:
    """Register them in the plan's order; close what is returned to take them off. Where one fails, none stays."""
    with ExitStack() as registered:
        for point in engine.plan.points:
            for firing in engine.firings(point.name) if point.kind in _REGISTER else ():
                if point.kind != "state":
                    firing.ask_once_per_iteration(state)
                for handle in _REGISTER[point.kind](firing, parts, engine.dispatcher, state):
                    registered.callback(handle.remove)
        return registered.pop_all()


def _caller(firing: Firing, dispatcher: Dispatcher, fires: Callable[[], bool], *known: Any) -> Callable[..., Any]:
    """Return a function that calls a binding, while it `fires`, with the run, what is `known`, and PyTorch's offer.

    A copy of a module keeps such a function; of a callable object it would have a copy.
    """

    def call(*offered: Any) -> Any:
        return dispatcher.call_within(firing, (dispatcher.run, *known, *offered)) if fires() else None

    return call


def _on_parameters(firing: Firing, parts: Parts, dispatcher: Dispatcher, state: RunState) -> Handles:
    """Register a binding on its parameters, also on frozen ones, for when they are trained again."""
    for name, parameter in matching(differentiable(parts.model), firing.binding.parameters).items():
        known = (name, parameter) if firing.binding.point == "parameter_grad" else (name,)
        call = _caller(firing, dispatcher, lambda: state.stage == "train", *known)
        trains = parameter.requires_grad
        parameter.requires_grad_(True)  # or PyTorch refuses
        if firing.binding.point == "parameter_grad":
            yield parameter.register_hook(call)  # type: ignore[no-untyped-call]
        else:

            def accumulated(parameter: Tensor, call: Callable[..., Any] = call) -> None:
                call(parameter)

            yield parameter.register_post_accumulate_grad_hook(accumulated)  # type: ignore[no-untyped-call]
        parameter.requires_grad_(trains)


def _on_all_modules(firing: Firing, parts: Parts, dispatcher: Dispatcher, state: RunState) -> Handles:
    """Register a binding for all modules: with the module's name in the network, or None outside of it."""
    names = {module: name for name, module in parts.model.named_modules()}
    process = getpid()
    call = _caller(firing, dispatcher, lambda: state.stage == "train" and getpid() == process)

    def named(module: nn.Module, *offered: Any) -> Any:
        return call(names.get(module), module, *offered)

    fire = hidden(named) if parts.section.compile else named
    match firing.binding.point:
        case "global_forward_pre":
            yield torch_module.register_module_forward_pre_hook(lambda module, args: fire(module, args, args))
        case "global_forward":
            yield torch_module.register_module_forward_hook(
                lambda module, args, kwargs, output: fire(module, args, args, kwargs, output), with_kwargs=True
            )
        case "global_full_backward_pre":
            yield torch_module.register_module_full_backward_pre_hook(fire)
        case _:
            yield torch_module.register_module_full_backward_hook(fire)


def _on_optimizers(firing: Firing, parts: Parts, dispatcher: Dispatcher, state: RunState) -> Handles:
    for name, optimizer in parts.optimizers.items():
        register = getattr(optimizer, f"register_{firing.binding.point.removeprefix('optimizer_')}_hook")
        yield register(_caller(firing, dispatcher, lambda: True, name))


def _on_states(firing: Firing, parts: Parts, dispatcher: Dispatcher, state: RunState) -> Handles:
    """Register a binding around the state of its modules. In the end a copy of a module may be asked for its state."""
    for name, module in parts.picked[firing.binding.id].items():
        register: Callable[..., RemovableHandle] = getattr(module, f"register_{firing.binding.point}_hook")
        yield register(_caller(firing, dispatcher, lambda: state.stage != "end", name))


def _on_buckets(firing: Firing, parts: Parts, dispatcher: Dispatcher, state: RunState) -> Handles:
    """Let a binding average the gradients of DDP, which has no handle. Where it is not due, the mean is taken."""
    if not isinstance(parts.strategy, DDP):
        return
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
    from torch.distributed.distributed_c10d import _get_default_group

    group, plain = _get_default_group(), firing.call

    def checked(offered: Sequence[Any]) -> object:
        future = plain(offered)
        if not isinstance(future, torch._C.Future):
            must = f'hook "{firing.binding.hook}" must return a torch.futures.Future of the bucket at ddp_comm'
            raise TypeError(f"{must}, not {future!r:.40}")
        return future

    def averaging(name: str) -> Callable[..., Any]:
        call = _caller(firing, dispatcher, lambda: state.stage == "train", name, group)

        def average(_, bucket):  # type: ignore[no-untyped-def] # PyTorch would look at annotations, and not know these
            future = call(group, bucket)
            return allreduce_hook(group, bucket) if future is None else future

        return average

    firing.call = checked
    for name, model in parts.models.items():
        parts.strategy.register_comm_hook(model, averaging(name))
    yield from ()


_REGISTER: dict[str, Callable[[Firing, Parts, Dispatcher, RunState], Handles]] = {
    "parameter": _on_parameters,
    "global": _on_all_modules,
    "optimizer": _on_optimizers,
    "state": _on_states,
    "comm": _on_buckets,
}
