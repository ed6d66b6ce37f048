"""Hooks that PyTorch calls.

It calls them inside modules, on parameters, optimizers, all modules, state dicts, and in DDP.

A binding at a module point that has a trigger, or states its stages, is registered with PyTorch
only while it is due. That is settled before each step and before each evaluation of a batch. In a
compiled network, which PyTorch would compile anew each time, it stays registered and is skipped.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from os import getpid
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.utils.hooks import RemovableHandle

from hookflow.errors import Problem, UserError, Where
from hookflow.events.records import Stage
from hookflow.graph.offload import is_thinned
from hookflow.graph.plan import Binding, Plan
from hookflow.hooks.tensors import matching
from hookflow.runner.builder.components import RunComponents
from hookflow.runner.dispatch.dispatcher import Dispatcher, HookCall
from hookflow.runner.dispatch.engine import DispatchEngine
from hookflow.runner.distributed.parallel import DDPStrategy, ParallelStrategy
from hookflow.runner.model.selectors import Picked, find_differentiable
from hookflow.runner.model.task import NamedParts
from hookflow.runner.process.state import RunState

HOOKS = {
    "forward_pre": "_forward_pre_hooks",
    "forward": "_forward_hooks",
    "full_backward_pre": "_backward_pre_hooks",
    "full_backward": "_backward_hooks",
}
"""Where a module keeps its hooks, by their point."""


def hidden(fire: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that the compiler leaves out, with all that it calls."""
    called: Callable[..., Any] = torch.compiler.disable(fire)
    return called


class ModuleHookStack:
    """The hooks of one module at one point: those of bindings, in the plan's order, and others.

    The module's own hooks fire between those that are prepended and those that are not. The order
    stays the same when a binding is registered again, which PyTorch would put last.
    """

    def __init__(self, module: nn.Module, point: str) -> None:
        self._hooks = getattr(module, HOOKS[point])
        self._own = set(self._hooks)
        self.members: list[ModuleRegistration] = []

    def arrange(self, new: int) -> None:
        """Put all that is registered in order, now that PyTorch has put the new id last."""
        there = [
            (member.handle.id, member.firing.binding.prepend)
            for member in self.members
            if member.handle
        ]
        ahead = [id_ for id_, prepend in there if prepend]
        behind = [id_ for id_, prepend in there if not prepend]
        ids = [id_ for id_ in self._hooks if id_ != new]
        known = [k for k, id_ in enumerate(ids) if id_ in {*self._own, *ahead, *behind}]
        # Hooks outside of the known ones were registered by hand since.
        first, last = (known[0], known[-1] + 1) if known else (0, 0)
        own = [id_ for id_ in ids[first:last] if id_ not in {*ahead, *behind}]
        for id_ in (*ids[:first], *ahead, *own, *behind, *ids[last:]):
            self._hooks.move_to_end(id_)


class ModuleHandle(RemovableHandle):
    """PyTorch's handle, whose `remove` here takes a hook off modules for good.

    A resumed run does not register the hook again.
    """

    def __init__(self, remove: Callable[[], None]) -> None:
        super().__init__(OrderedDict())
        self.remove = remove  # type: ignore[method-assign]


@dataclass(eq=False)
class ModuleRegistration:
    """One binding at one module.

    PyTorch calls it while there is a `handle`. Once it is `removed`, it is never registered again.
    """

    firing: HookCall
    name: str
    module: nn.Module
    stack: ModuleHookStack
    call: Callable[..., Any]
    hide: bool
    handle: RemovableHandle | None = None
    removed: bool = False

    def __post_init__(self) -> None:
        binding = self.firing.binding
        self.stages = binding.stages or ("train",)
        self.key = binding.hook, binding.point, self.name
        """Its name in a checkpoint."""
        self.removal = ModuleHandle(partial(self.drop, for_good=True))
        callback = self._callback()
        self._hook = hidden(callback) if self.hide else callback
        self.stack.members.append(self)

    def add(self) -> None:
        """Register it, unless it has been removed for good."""
        if self.handle is None and not self.removed:
            binding = self.firing.binding
            how = {}
            if binding.point == "forward_pre":
                how = {"with_kwargs": "kwargs" in binding.takes}
            elif binding.point == "forward":
                how = {"with_kwargs": True, "always_call": binding.always_call}
            self.handle = getattr(self.module, f"register_{binding.point}_hook")(self._hook, **how)
            self.stack.arrange(self.handle.id)

    def drop(self, *, for_good: bool = False) -> None:
        """Take it off the module."""
        self.removed |= for_good
        if self.handle is not None:
            self.handle.remove()
            self.handle = None

    def _callback(self) -> Callable[..., Any]:
        """Return a function for PyTorch to call.

        The copy of a network shares a function, and would have a copy of a callable object.
        """
        call = self.call
        match self.firing.binding.point:
            case "forward_pre" if "kwargs" in self.firing.binding.takes:
                return lambda module, args, kwargs: call(self, module, args, args, kwargs)
            case "forward_pre":
                return lambda module, args: call(self, module, args, args, None)
            case "forward":
                return lambda module, args, kwargs, output: call(
                    self, module, args, args, kwargs, output
                )
        return lambda module, *gradients: call(self, module, *gradients)


Step = Callable[[Any, Any], Any]


class ModuleHooks:
    """The bindings at module points of one run; `picked` are their modules.

    Nothing is registered before `attach`.
    """

    def __init__(self, engine: DispatchEngine, picked: Picked, state: RunState) -> None:
        self._engine = engine
        points = engine.plan.points
        self._bindings = [
            binding for binding in engine.plan.bindings if points[binding.point].kind == "module"
        ]
        self._picked = picked
        self._state = state
        self._registrations: list[ModuleRegistration] = []
        self._idling: list[ConditionalRegistration] = []
        self._current: ModuleRegistration | None = None
        handles = {
            each.hook: ModuleHandle(partial(self._remove, each.hook)) for each in self._bindings
        }
        self.handles: Mapping[str, ModuleHandle] = NamedParts("hook inside the network", handles)

    def attach(self, *, compiled: bool) -> None:
        """Register every binding that is never idle, in the plan's order.

        In a compiled network all are registered.
        """
        for point in (point.name for point in self._engine.plan.points if point.kind == "module"):
            stacks: dict[nn.Module, ModuleHookStack] = {}
            for firing in self._engine.firings(point):
                idling = None
                if self._is_sometimes_idle(firing.binding):
                    idling = ConditionalRegistration(firing, keep_registered=compiled)
                for name, module in self._picked[firing.binding.id].items():
                    stack = stacks.setdefault(module, ModuleHookStack(module, point))
                    made = ModuleRegistration(firing, name, module, stack, self._call, compiled)
                    self._registrations.append(made)
                    if idling:
                        idling.registrations.append(made)
                    if idling is None or compiled:
                        made.add()
                if idling:
                    self._idling.append(idling)

    def detach(self) -> None:
        for registration in self._registrations:
            registration.drop()

    def make_settling_step(self, step: Step) -> Step:
        """Return a step that first registers the bindings that are due, and takes off the others.

        It is `step` itself where all bindings are always due.
        """
        if not any(map(self._is_sometimes_idle, self._bindings)):
            return step
        idling = self._idling
        state = self._state

        def settle_and_step(run: Any, batch: Any) -> Any:
            stage = state.stage
            done = state.iter
            for each in idling:
                each.settle(stage, done)
            return step(run, batch)

        return settle_and_step

    @property
    def handle(self) -> ModuleHandle:
        """The function that removes the current hook from the current module only."""
        current = self._current
        here = self._engine.current
        if current is None or here is not current.firing.binding:
            hint = next((f'another hook writes run.handles["{hook}"]' for hook in self.handles), "")
            raise UserError(
                Problem(
                    "run.handle is for a hook inside the network, while it is called", hint=hint
                )
            )
        return current.removal

    def state_dict(self) -> dict[str, Any]:
        """Return what was removed for good, and each trigger's latest answer with its iteration."""
        return {
            "removed": [list(each.key) for each in self._registrations if each.removed],
            "settled": {each.key: each.state_dict() for each in self._idling},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> list[str]:
        """Take back what `state_dict` returned.

        Returns the hooks that stay removed from some module.
        """
        removed = {tuple(key) for key in state["removed"]}
        gone = [each for each in self._registrations if each.key in removed]
        for each in gone:
            each.drop(for_good=True)
        for idling in self._idling:
            if idling.key in state["settled"]:
                idling.load_state_dict(state["settled"][idling.key])
        return list(dict.fromkeys(each.firing.binding.hook for each in gone))

    def _call(self, registration: ModuleRegistration, module: nn.Module, *offered: Any) -> Any:
        if self._state.stage not in registration.stages:
            return None
        dispatcher = self._engine.dispatcher
        before = self._current
        self._current = registration
        try:
            return dispatcher.call_within(
                registration.firing, (dispatcher.run, module, registration.name, *offered)
            )
        finally:
            self._current = before

    def _is_sometimes_idle(self, binding: Binding) -> bool:
        return bool(str(binding.trigger) or binding.stages) or is_thinned(
            self._engine.plan, binding
        )

    def _remove(self, hook: str) -> None:
        for each in self._registrations:
            if each.firing.binding.hook == hook:
                each.drop(for_good=True)


class ConditionalRegistration:
    """A binding that is registered only while it is due, as its trigger says once an iteration.

    With `keep_registered` it stays registered, and is skipped while it is not due.
    """

    def __init__(self, firing: HookCall, *, keep_registered: bool) -> None:
        self.registrations: list[ModuleRegistration] = []
        self.key = f"{firing.binding.hook}@{firing.binding.point}"
        self._gate = firing.gate
        self._stages = firing.binding.stages or ("train",)
        self._keep_registered = keep_registered
        self._active = False
        self._asked = -1
        self._answer = False
        firing.due = lambda: self._active

    def settle(self, stage: Stage, done: int) -> None:
        """Register the binding if it is due, in this stage and after so many iterations.

        Take it off the modules if it is not.
        """
        due = stage in self._stages
        if due:
            if done != self._asked:  # once an iteration; here, as a call would cost time
                gate = self._gate
                self._asked = done
                self._answer = gate is None or (done >= gate.next and gate())
            due = self._answer
        if due == self._active:
            return
        self._active = due
        if self._keep_registered:
            return
        for registration in self.registrations:
            if due:
                registration.add()
            else:
                registration.drop()

    def state_dict(self) -> list[int]:
        return [self._asked, int(self._answer)]

    def load_state_dict(self, state: Sequence[int]) -> None:
        self._asked, self._answer = state[0], bool(state[1])


def check_comm_hook(plan: Plan, strategy: ParallelStrategy, place: Callable[[str], Where]) -> None:
    """Raise UserError where the plan has a communication hook, and no DDP calls it."""
    for binding in plan.at("ddp_comm"):
        if not isinstance(strategy, DDPStrategy):
            why = (
                'only several ranks with strategy = "ddp" average gradients in buckets, and no task'
                " that steps itself"
            )
            message = f'hook "{binding.hook}" has nothing to do at ddp_comm: {why}'
            hint = f"leave it out: --without {binding.hook}"
            raise UserError(Problem(message, place(f"hooks.{binding.hook}.use"), hint))


Handles = Iterator[RemovableHandle]


def register_hooks(
    parts: RunComponents, engine: DispatchEngine, state: RunState, undoing: ExitStack
) -> None:
    """Register the bindings that PyTorch calls outside of modules, in the plan's order.

    `undoing` takes them off again.
    """
    for point in engine.plan.points:
        if point.kind in _REGISTER_BY_KIND:
            for firing in engine.firings(point.name):
                if point.kind != "state":
                    firing.ask_once_per_iteration(state)
                for handle in _REGISTER_BY_KIND[point.kind](
                    firing, parts, engine.dispatcher, state
                ):
                    undoing.callback(handle.remove)


def _make_caller(
    firing: HookCall, dispatcher: Dispatcher, fires: Callable[[], bool], *known: Any
) -> Callable[..., Any]:
    """Return a function for PyTorch to call, which calls a binding if `fires` returns True.

    The binding is given the run, what is `known`, and the arguments of PyTorch. The copy of a
    module shares a function, and would have a copy of a callable object.
    """

    def call(*offered: Any) -> Any:
        if fires():
            return dispatcher.call_within(firing, (dispatcher.run, *known, *offered))
        return None

    return call


def _on_parameters(
    firing: HookCall, parts: RunComponents, dispatcher: Dispatcher, state: RunState
) -> Handles:
    """Register a binding on its parameters.

    Frozen ones are included, for when they are trained again.
    """
    for name, parameter in matching(
        find_differentiable(parts.model), firing.binding.parameters
    ).items():
        known = (name, parameter) if firing.binding.point == "parameter_grad" else (name,)
        call = _make_caller(firing, dispatcher, lambda: state.stage == "train", *known)
        trains = parameter.requires_grad
        parameter.requires_grad_(True)  # or PyTorch refuses
        if firing.binding.point == "parameter_grad":
            yield parameter.register_hook(call)
        else:

            def call_with_parameter(parameter: Tensor, call: Callable[..., Any] = call) -> None:
                call(parameter)

            yield parameter.register_post_accumulate_grad_hook(call_with_parameter)
        parameter.requires_grad_(trains)


def _on_all_modules(
    firing: HookCall, parts: RunComponents, dispatcher: Dispatcher, state: RunState
) -> Handles:
    """Register a binding for all modules.

    It is given the module's name in the network, or None outside of it.
    """
    names = {module: name for name, module in parts.model.named_modules()}
    process = getpid()
    call = _make_caller(firing, dispatcher, lambda: state.stage == "train" and getpid() == process)

    def named(module: nn.Module, *offered: Any) -> Any:
        return call(names.get(module), module, *offered)

    if parts.section.compile:
        fire = hidden(named)
    else:
        fire = named
    match firing.binding.point:
        case "global_forward_pre":
            yield torch_module.register_module_forward_pre_hook(
                lambda module, args: fire(module, args, args)
            )
        case "global_forward":
            yield torch_module.register_module_forward_hook(
                lambda module, args, kwargs, output: fire(module, args, args, kwargs, output),
                with_kwargs=True,
            )
        case "global_full_backward_pre":
            yield torch_module.register_module_full_backward_pre_hook(fire)
        case _:
            yield torch_module.register_module_full_backward_hook(fire)


def _on_optimizers(
    firing: HookCall, parts: RunComponents, dispatcher: Dispatcher, state: RunState
) -> Handles:
    for name, optimizer in parts.optimizers.items():
        register = getattr(
            optimizer, f"register_{firing.binding.point.removeprefix('optimizer_')}_hook"
        )
        yield register(_make_caller(firing, dispatcher, lambda: True, name))


def _on_states(
    firing: HookCall, parts: RunComponents, dispatcher: Dispatcher, state: RunState
) -> Handles:
    """Register a binding around the state of its modules.

    It does not fire in the stage "end", in which a copy of a module may be asked for its state.
    """
    for name, module in parts.picked[firing.binding.id].items():
        register: Callable[..., RemovableHandle] = getattr(
            module, f"register_{firing.binding.point}_hook"
        )
        yield register(_make_caller(firing, dispatcher, lambda: state.stage != "end", name))


def _on_buckets(
    firing: HookCall, parts: RunComponents, dispatcher: Dispatcher, state: RunState
) -> Handles:
    """Let a binding average the gradients of DDP, which has no handle.

    Where it is not due, the mean is taken.
    """
    if not isinstance(parts.strategy, DDPStrategy):
        return
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
    from torch.distributed.distributed_c10d import _get_default_group

    group = _get_default_group()
    plain = firing.call

    def checked(offered: Sequence[Any]) -> object:
        future = plain(offered)
        if not isinstance(future, torch._C.Future):
            must = (
                f'hook "{firing.binding.hook}" must return a torch.futures.Future of the bucket at'
                " ddp_comm"
            )
            raise TypeError(f"{must}, not {future!r:.40}")
        return future

    def make_averaging_hook(name: str) -> Callable[..., Any]:
        call = _make_caller(firing, dispatcher, lambda: state.stage == "train", name, group)

        def average(_, bucket):  # type: ignore[no-untyped-def] # PyTorch would look at annotations, and not know these
            future = call(group, bucket)
            if future is None:
                return allreduce_hook(group, bucket)
            return future

        return average

    firing.call = checked
    for name, model in parts.models.items():
        parts.strategy.register_comm_hook(model, make_averaging_hook(name))
    yield from ()


_REGISTER_BY_KIND: dict[str, Callable[[HookCall, RunComponents, Dispatcher, RunState], Handles]] = {
    "parameter": _on_parameters,
    "global": _on_all_modules,
    "optimizer": _on_optimizers,
    "state": _on_states,
    "comm": _on_buckets,
}
