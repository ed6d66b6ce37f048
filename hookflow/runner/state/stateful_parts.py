"""The parts of a run that have a state, and their registration.

Other objects save and load their state themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hookflow.errors import Problem, UserError, first_few
from hookflow.graph.plan import Binding, Plan
from hookflow.hooks.checkpoint_files import state_key
from hookflow.hooks.optimizer_state import Path, host_tensors_of
from hookflow.runner.builder.components import RunComponents
from hookflow.runner.data.batches import batch_size_in, split_of
from hookflow.runner.data.lengths import save_lengths
from hookflow.runner.device.random_state import random_state, set_random_state
from hookflow.runner.dispatch.engine import DispatchEngine
from hookflow.runner.dispatch.torch_hooks import ModuleHooks
from hookflow.runner.dispatch.triggers import ScheduledTrigger
from hookflow.runner.distributed.parallel import load_model, load_optimizer
from hookflow.runner.iteration.context import HookSettings, RunContext
from hookflow.runner.iteration.finite import StepGuard
from hookflow.runner.iteration.update import OptimizerUpdate
from hookflow.runner.process.state import RunState
from hookflow.runner.state.state_registry import SAME_MODEL, StateRegistry, StateScope
from hookflow.user_code import only_showable

Say = Callable[..., None]


def register_parts(registry: StateRegistry, context: RunContext, update: OptimizerUpdate) -> None:
    """Register every part of a run that a checkpoint holds, in the order of restore.

    Groups that hooks have added must be there before the optimizers are loaded, and throttles
    before the triggers that they thin out. The engine switches hooks off, which changes their
    triggers. Random generators come last: a part may draw as it is loaded.
    """
    parts = context.parts
    say = context.log.say
    shared = StateScope.SHARED
    per_rank = StateScope.PER_RANK
    sharded = StateScope.SHARDED

    models = {name: ModelWeights(model) for name, model in parts.models.items()}
    for name, weights in models.items():
        registry.register(state_key("model", name), weights, sharded, is_large=True)
    host_tensors = HostTensorPlaces(parts.optimizers)
    registry.register("param_groups", FittingPart(update.trained), shared, is_optional=True)
    registry.register("host_tensors", host_tensors, shared, is_optional=True)
    for name, optimizer in parts.optimizers.items():
        part = OptimizerState(name, optimizer, models.values(), host_tensors)
        registry.register(state_key("optimizer", name), part, sharded, is_large=True)
    registry.register("modes", EvaluationModes(parts.model), shared)
    registry.register("without_grad", FrozenNames(parts.model, say), shared, is_optional=True)

    registry.register("gradients", update, per_rank, changes_before_step=True, is_large=True)
    registry.register("group", update.group, shared, changes_before_step=True)
    registry.register("step_guard", StepGuardState(update.guard), shared)
    registry.register(
        "position", RunPosition(context.state, parts, say), shared, changes_before_step=True
    )
    registry.register("requests", context.requests, per_rank, changes_before_step=True)
    registry.register("scalars", context.scalars, per_rank, changes_before_step=True)

    hooks = HookStates(parts.hooks, say)
    registry.register("hooks", hooks, StateScope.PER_RANK_ITEM, changes_before_step=True)
    registry.register(
        "task", TaskState(parts.task, say), per_rank, is_optional=True, changes_before_step=True
    )
    registry.register("throttles", context.throttles, shared, is_optional=True)
    triggers = TriggerStates(context.plan, context.triggers)
    registry.register("triggers", triggers, shared, changes_before_step=True)
    registry.register("engine", HooksInPlace(context.engine, say), per_rank)
    registry.register("settings", SetArguments(context.settings, say), shared, is_optional=True)
    module_hooks = RemovedModuleHooks(context.module_hooks, say)
    registry.register("module_hooks", module_hooks, per_rank, changes_before_step=True)
    registry.register("data", DataStates(parts.data), per_rank, changes_before_step=True)
    registry.register("random", RandomGenerators(parts.device), per_rank)


@contextmanager
def _fitting() -> Iterator[None]:
    """Let PyTorch's `load_state_dict` say that the checkpoint is of other objects.

    They are another model or optimizer.
    """
    try:
        yield
    except KeyError as error:
        message = f"the checkpoint does not fit this pipeline: it has no {error.args[0]}"
        raise UserError(Problem(message, hint=SAME_MODEL)) from error
    except (RuntimeError, ValueError) as error:
        message = f"the checkpoint does not fit this pipeline: {error}"
        raise UserError(Problem(message, hint=SAME_MODEL)) from error


class FittingPart:
    """A part whose state belongs to the model and the optimizers of the checkpoint."""

    def __init__(self, part: Any) -> None:
        self._part = part

    def state_dict(self) -> Any:
        return self._part.state_dict()

    def load_state_dict(self, state: Any) -> None:
        """Load the state. Raises UserError where it is that of another model or optimizer."""
        with _fitting():
            self._part.load_state_dict(state)


class ModelWeights:
    """The weights of one model."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.saved_dtypes: dict[Tensor, torch.dtype] = {}
        """The dtype that each parameter had in the checkpoint; empty before one is loaded."""

    def state_dict(self) -> dict[str, Any]:
        return self._model.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the weights. Raises UserError where they are those of another model."""
        with _fitting():
            load_model(self._model, state)
        for name, parameter in self._model.named_parameters():
            if name in state:
                self.saved_dtypes[parameter] = state[name].dtype


class HostTensorPlaces:
    """The places of optimizer state in host memory whose parameters are on an accelerator.

    They are by optimizer.
    """

    def __init__(self, optimizers: Mapping[str, Optimizer]) -> None:
        self._optimizers = optimizers
        self.loaded: Mapping[str, list[Path]] = {}
        """The places in the checkpoint, which the optimizers take up as they are loaded."""

    def state_dict(self) -> dict[str, list[Path]]:
        return {name: host_tensors_of(optimizer) for name, optimizer in self._optimizers.items()}

    def load_state_dict(self, state: Mapping[str, list[Path]]) -> None:
        self.loaded = state


class OptimizerState:
    """The state of one optimizer."""

    def __init__(
        self,
        name: str,
        optimizer: Optimizer,
        models: Iterable[ModelWeights],
        host_tensors: HostTensorPlaces,
    ) -> None:
        self._name = name
        self._optimizer = optimizer
        self._models = models
        self._host_tensors = host_tensors

    def state_dict(self) -> dict[str, Any]:
        return self._optimizer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the state. Raises UserError where it is that of another optimizer."""
        saved_dtypes: dict[Tensor, torch.dtype] = {}
        for model in self._models:
            saved_dtypes |= model.saved_dtypes
        places = self._host_tensors.loaded.get(self._name, [])
        with _fitting():
            load_optimizer(self._optimizer, state, places, saved_dtypes)


class EvaluationModes:
    """The modules that are in evaluation mode."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def state_dict(self) -> list[str]:
        return [name for name, module in self._model.named_modules() if not module.training]

    def load_state_dict(self, state: Iterable[str]) -> None:
        evaluated = frozenset(state)
        for name, module in self._model.named_modules():
            module.training = name not in evaluated


class FrozenNames:
    """The parameters that do not require a gradient."""

    def __init__(self, model: nn.Module, say: Say) -> None:
        self._model = model
        self._say = say

    def state_dict(self) -> list[str]:
        return [
            name
            for name, parameter in self._model.named_parameters()
            if not parameter.requires_grad
        ]

    def load_state_dict(self, state: Iterable[str]) -> None:
        frozen = frozenset(state)
        changed = []
        for name, parameter in self._model.named_parameters():
            requires_grad = name not in frozen
            if parameter.requires_grad != requires_grad:
                parameter.requires_grad_(requires_grad)
                changed.append(name)
        if changed:
            self._say(f"requires_grad is as before the resume: {first_few(changed)}")


class StepGuardState:
    """The state of the guard that skips steps; empty where a run has none."""

    def __init__(self, guard: StepGuard | None) -> None:
        self._guard = guard

    def state_dict(self) -> dict[str, Any]:
        if self._guard is None:
            return {}
        return self._guard.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if self._guard is not None and state:
            self._guard.load_state_dict(state)


class RunPosition:
    """The counters of a run and its latest metrics.

    It also has what a fork needs to find the place among other batches.
    """

    def __init__(self, state: RunState, parts: RunComponents, say: Say) -> None:
        self._state = state
        self._parts = parts
        self._say = say

    def state_dict(self) -> dict[str, Any]:
        """Return the counters, the examples of a batch on all ranks, and the lengths of the data.

        Where batches are of several sizes, `batch_size` is 0, and `examples` are those of the epoch
        so far.
        """
        state = self._state
        position = state.state_dict()
        position["validation_due"] = list(state.validation_due)
        train = self._parts.data.get("train")
        if train is None:
            return position
        position["batch_size"] = batch_size_in(train, state.epoch)
        position["lengths"] = save_lengths(self._parts.data)
        if state.batch_idx > 0 and hasattr(train, "global_batch_sizes"):
            sizes = train.global_batch_sizes(state.epoch)
            position["examples"] = sum(sizes[: state.batch_idx])
        return position

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the counters; say what a training of another length goes on by."""
        self._state.load_state_dict(state)
        before = state["max_iters"]
        now = self._state.max_iters
        if now != before and "train" in self._parts.data:
            what = "schedules, and all else that is relative to the length, go on by the new one"
            self._say(
                f"the training has {now:,} iterations, where the checkpoint's had {before:,}:"
                f" {what}"
            )


class HookStates:
    """The states of the hooks that have one, by hook."""

    def __init__(self, hooks: Mapping[str, Any], say: Say) -> None:
        self._hooks = hooks
        self._say = say

    def state_dict(self) -> dict[str, Any]:
        return {
            name: hook.state_dict()
            for name, hook in self._hooks.items()
            if hasattr(hook, "state_dict")
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the states; say which hooks start anew, and which states are dropped."""
        for name, hook in self._hooks.items():
            if name in state:
                with only_showable(f'raised while the hook "{name}" was given back its state'):
                    hook.load_state_dict(state[name])
            elif hasattr(hook, "state_dict") and hook.state_dict():
                self._say(f'the checkpoint does not know the hook "{name}": it starts anew', "warn")
        for name in state.keys() - self._hooks.keys():
            if state[name]:
                lost = f"its state is dropped ({first_few(map(str, state[name]))})"
                self._say(
                    f'the checkpoint knows a hook "{name}" that this pipeline does not have:'
                    f" {lost}",
                    "warn",
                )


class TaskState:
    """The state of the task; empty where it has none."""

    def __init__(self, task: Any, say: Say) -> None:
        self._task = task
        self._say = say

    def state_dict(self) -> Any:
        if hasattr(self._task, "state_dict"):
            return self._task.state_dict()
        return {}

    def load_state_dict(self, state: Any) -> None:
        """Load the state.

        A message says so where the task has one now and had none, or the other way round.
        """
        if not state:
            if self.state_dict():
                self._say("the checkpoint has no state of the task: the task starts anew", "warn")
        elif not hasattr(self._task, "load_state_dict"):
            self._say("the task has no load_state_dict(): the task starts anew", "warn")
        else:
            with only_showable("raised while the task was given back its state"):
                self._task.load_state_dict(state)


def trigger_key(binding: Binding) -> str:
    """Return the name of a binding's trigger in a checkpoint.

    It is its hook, and its point or its method.
    """
    if binding.half == "enter":
        place = binding.method
    else:
        place = binding.point
    return f"{binding.hook}@{place}"


class TriggerStates:
    """The counters of the triggers, by the hook and the point of their bindings."""

    def __init__(self, plan: Plan, triggers: Mapping[int, ScheduledTrigger]) -> None:
        self._triggers = {
            trigger_key(plan.bindings[number]): trigger for number, trigger in triggers.items()
        }

    def state_dict(self) -> dict[str, Any]:
        return {key: trigger.state_dict() for key, trigger in self._triggers.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the counters; triggers without an entry begin here."""
        for key, trigger in self._triggers.items():
            if key in state:
                trigger.load_state_dict(state[key])
            else:
                trigger.begin_here()


class HooksInPlace:
    """The hooks that are inside an `around_train_epoch`, and those that are switched off."""

    def __init__(self, engine: DispatchEngine, say: Say) -> None:
        self._engine = engine
        self._say = say

    def state_dict(self) -> dict[str, Any]:
        return self._engine.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load both; name the hooks that stay switched off."""
        for hook, why in self._engine.load_state_dict(state).items():
            self._say(
                f'the hook "{hook}" stays switched off: {why}, before this run was resumed', "warn"
            )


class SetArguments:
    """The arguments of hooks that commands have set."""

    def __init__(self, settings: HookSettings, say: Say) -> None:
        self._settings = settings
        self._say = say

    def state_dict(self) -> dict[str, Any]:
        return self._settings.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set them again; say so of each."""
        for line in self._settings.load_state_dict(state):
            self._say(line, "warn")


class RemovedModuleHooks:
    """The hooks that are removed from modules, and the decisions of triggers inside the network."""

    def __init__(self, module_hooks: ModuleHooks, say: Say) -> None:
        self._module_hooks = module_hooks
        self._say = say

    def state_dict(self) -> dict[str, Any]:
        return self._module_hooks.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load both; name the hooks that remain removed."""
        for hook in self._module_hooks.load_state_dict(state):
            self._say(f'the hook "{hook}" remains removed from its modules, as before the resume')


class DataStates:
    """The positions and states of the data that have one, by split; a test begins anew."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.sources = {}
        """The sources that have a state."""
        for split, source in data.items():
            if split_of(split) != "test" and hasattr(source, "state_dict"):
                self.sources[split] = source

    def state_dict(self) -> dict[str, Any]:
        return {split: source.state_dict() for split, source in self.sources.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for split, source in self.sources.items():
            if split in state and hasattr(source, "load_state_dict"):
                source.load_state_dict(state[split])


class RandomGenerators:
    """The global random generators of Python, NumPy and PyTorch."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def state_dict(self) -> dict[str, Any]:
        return random_state(self._device)

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Load the generators.

        None, which is of a missing rank or of another seed, leaves them alone.
        """
        if state is not None:
            set_random_state(state, self._device)
