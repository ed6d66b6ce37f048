"""The snapshot: the complete state of a run, captured and restored to the bit.

Every mutable state of the runner is either here or follows from what is: `tests/runner/test_resume.py` walks over
all of it.
"""

from __future__ import annotations

import dis
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from functools import cache
from inspect import isclass, unwrap
from logging import Logger
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn

from hookflow.errors import Problem, UserError, first_few
from hookflow.hooks.base import Hook
from hookflow.hooks.checkpoint_files import lacks_optimizers, mark_of, state_key, with_frozen
from hookflow.hooks.optimizer_state import host_tensors_of
from hookflow.hooks.tensors import local
from hookflow.pipeline.use import imported_files
from hookflow.runner.builder.components import Parts
from hookflow.runner.checkpoint.shards import mapped, unreadable
from hookflow.runner.data.batches import has_own_state, own_parts, split_of
from hookflow.runner.data.lengths import changed_lengths, save_lengths
from hookflow.runner.distributed.parallel import load_model, load_optimizer, local_state
from hookflow.runner.loop.context import Context
from hookflow.runner.loop.update import Update
from hookflow.runner.random_state import GENERATORS, random_state, set_random_state
from hookflow.runner.run_tensors import OPAQUE, mark, of_tensor
from hookflow.user_code import only_showable

OTHER = "model and optimizer must be those of the checkpoint once after_load_checkpoint has fired; else start a new run"

Adapt = Callable[[dict[str, Any]], dict[str, Any]]
"""Returns what a fork takes over of a saved state."""


class Snapshot:
    """The state of every part of a run's context that has one."""

    def __init__(self, context: Context, update: Update) -> None:
        self.context, self.parts, self.plan, self.update = context, context.parts, context.plan, update
        self.data = {
            split: source
            for split, source in context.parts.data.items()
            if split_of(split) != "test" and hasattr(source, "state_dict")
        }
        self.say = context.log.say

    def capture(self, *, validation_due: Sequence[str] = ()) -> dict[str, Any]:
        """Return the state between two iterations, without copies of tensors.

        With `validation_due` a run that is resumed from it begins with a validation on these sets of data.
        """
        self.context.engine.settle()  # offloaded hooks have a state, and numbers of this iteration to log
        guard, state = self.update.guard, self.context.state
        return {
            **{state_key("model", name): model.state_dict() for name, model in self.parts.models.items()},
            **{state_key("optimizer", name): each.state_dict() for name, each in self.parts.optimizers.items()},
            "modes": [name for name, module in self.parts.model.named_modules() if not module.training],
            "without_grad": [name for name, p in self.parts.model.named_parameters() if not p.requires_grad],
            "gradients": self.update.state_dict(),
            "param_groups": self.update.trained.state_dict(),
            "host_tensors": {name: host_tensors_of(each) for name, each in self.parts.optimizers.items()},
            "group": self.update.group.state_dict(),
            "step_guard": guard.state_dict() if guard else {},
            "position": state.state_dict()
            | self._examples()
            | {"validation_due": [*(validation_due or state.validation_due)]},
            "requests": self.context.requests.state_dict(),
            "engine": self.context.engine.state_dict(),
            "settings": self.context.settings.state_dict(),
            "module_hooks": self.context.module_hooks.state_dict(),
            "scalars": self.context.scalars.state_dict(),
            "throttles": self.context.throttles.state_dict(),
            "hooks": {
                name: hook.state_dict() for name, hook in self.parts.hooks.items() if hasattr(hook, "state_dict")
            },
            "task": self.parts.task.state_dict() if hasattr(self.parts.task, "state_dict") else {},
            "triggers": self.trigger_states(),
            "data": {split: source.state_dict() for split, source in self.data.items()},
            "random": random_state(self.parts.device),
        }

    def trigger_states(self) -> dict[str, Any]:
        """Return the state of each trigger, by the hook and the point of its binding."""
        return {self._key(id_): trigger.state_dict() for id_, trigger in self.context.triggers.items()}

    def check_states(self) -> None:
        """Raise UserError for a state of a hook, the data or the task that cannot be loaded again, tensors aside."""
        self.context.engine.settle()
        hooks = [(f"hooks.{name}", hook) for name, hook in self.parts.hooks.items()]
        data = [(f"data.{split}", part) for split, source in self.data.items() for part in own_parts(source)]
        for key, owner in [("task", self.parts.task), *hooks, *data]:
            state: Any = None
            with suppress(Exception):  # it has none, or none before the first iteration
                state = mapped(owner.state_dict(), lambda leaf: None if isinstance(leaf, torch.Tensor) else leaf)
            if wrong := unreadable(state):
                hint = "a checkpoint holds tensors, numbers, strings, lists and dicts"
                raise UserError(Problem(f"{key}: state_dict(){wrong}", self.parts.place(f"{key}.use"), hint))

    def _examples(self) -> dict[str, Any]:
        """Return the examples of a batch on all ranks, by which a fork finds the place among other batches.

        Where batches are of several sizes, that is 0, and `examples` are those of the epoch so far. The `lengths` of
        the data say whether they are still the same.
        """
        train, state = self.parts.data.get("train"), self.context.state
        if train is None:
            return {}
        sizes = getattr(train, "global_batch_sizes", None)
        so_far = {"examples": sum(sizes(state.epoch)[: state.batch_idx])} if sizes and state.batch_idx else {}
        lengths = save_lengths(self.parts.data)
        return {"batch_size": train.info["batch_size"], "lengths": lengths} | so_far

    def nonfinite_weights(self, state: Mapping[str, Any]) -> Iterator[str]:
        """Yield the names of parameters and running statistics in a captured state that are not finite."""
        parameters = {name for model in self.parts.models.values() for name, _ in model.named_parameters()}
        for key in [key for key in state if key.startswith("model")]:
            for name, value in state[key].items():
                counts = name in parameters or name.rpartition(".")[2].startswith("running_")
                if counts and isinstance(value, torch.Tensor) and not local(value).isfinite().all():
                    yield name if key == "model" else f"{key.removeprefix('model_')}.{name}"

    def restore(self, state: dict[str, Any], adapt: Adapt | None = None) -> None:
        """Restore the state of this rank; parts without an entry start anew, which is reported.

        Raises UserError when the checkpoint is that of another model or optimizer. A fork has the state adapted.
        """
        if (before := 1 + len(state.get("ranks", []))) != self.parts.ranks.world:
            if adapt is None and hasattr(self.parts.data.get("train"), "global_batch_sizes"):
                message = f"a batch_sampler shares out whole batches, and those of {before} ranks are others"
                hint = f"resume it on {before} ranks; hookflow fork carries the place over by examples"
                raise UserError(Problem(message, self.parts.place("data.train.loader.batch_sampler"), hint))
            self.say(f"saved by {before} ranks, resumed on {self.parts.ranks.world}: not bit-identical", "warn")
        self._compare_lengths(state["position"].get("lengths", {}), before, is_fork=adapt is not None)
        state = local_state(state, self.parts.ranks)
        if adapt is not None:
            state = adapt(state)
        self._restore_weights(state)
        if adapt is None and "without_grad" in state and state["hooks"].keys() <= self.parts.hooks.keys():
            self._restore_requires_grad(state["without_grad"])  # unless the hook that froze them may be gone
        self.update.load_state_dict(state["gradients"])
        self.update.group.load_state_dict(state["group"])
        if self.update.guard and state["step_guard"]:
            self.update.guard.load_state_dict(state["step_guard"])
        self.context.state.load_state_dict(state["position"])
        self._say_new_length(state["position"]["max_iters"])
        self.context.requests.load_state_dict(state["requests"])
        self.context.scalars.load_state_dict(state["scalars"])
        self._restore_hooks(state["hooks"])
        self._restore_task(state.get("task", {}))
        self.context.throttles.load_state_dict(state.get("throttles", {}))
        for id_, trigger in self.context.triggers.items():
            if self._key(id_) in state["triggers"]:
                trigger.load_state_dict(state["triggers"][self._key(id_)])
            else:
                trigger.begin_here()
        switched_off = self.context.engine.load_state_dict(state["engine"])  # after the triggers, which it changes
        for hook, why in switched_off.items():
            self.say(f'the hook "{hook}" stays switched off: {why}, before this run was resumed', "warn")
        for line in self.context.settings.load_state_dict(state.get("settings", {})):
            self.say(line, "warn")
        for hook in self.context.module_hooks.load_state_dict(state["module_hooks"]):
            self.say(f'the hook "{hook}" remains removed from its modules, as before the resume')
        for split, data in self.data.items():
            if split in state["data"] and hasattr(data, "load_state_dict"):
                data.load_state_dict(state["data"][split])
        if state["random"] is not None:
            set_random_state(state["random"], self.parts.device)

    def _say_new_length(self, before: int) -> None:
        """Say what a training that has another length than the saved one goes on by."""
        now = self.context.state.max_iters
        if now != before and "train" in self.parts.data:
            what = "schedules, and all else that is relative to the length, go on by the new one"
            self.say(f"the training has {now:,} iterations, where the checkpoint's had {before:,}: {what}")

    def _compare_lengths(self, saved: Mapping[str, Any], ranks_then: int, *, is_fork: bool) -> None:
        """Compare the data with those of the checkpoint.

        A fork says what has another length, as a resume does of validation data. Raises UserError where a resume has
        other training data: the rest of the epoch, the order of the next ones and the schedules would be others.
        """
        ranks, data_ranks = self.parts.ranks, self.parts.data_ranks
        world_then = ranks_then * data_ranks.world // ranks.world
        changes = changed_lengths(
            saved, self.parts.data, rank=data_ranks.rank, world=data_ranks.world, world_then=world_then
        )
        for change in changes:
            if change.split == "train" and not is_fork:
                hint = "give it the same data; or go on with these: hookflow fork RUN"
                raise UserError(Problem(str(change), self.parts.place("data.train.use"), hint))
            after = "its metrics cannot be compared with the earlier ones"
            if change.split == "train":
                after = "the rest of the epoch, and those to come, are in another order"
            self.say(f"{change}: {after}", "warn")

    def _restore_weights(self, state: Mapping[str, Any]) -> None:
        try:
            for name, model in self.parts.models.items():
                key = state_key("model", name)
                load_model(model, _with_training_weights(state, key))
            self.update.trained.load_state_dict(state.get("param_groups", {}))
            if not lacks_optimizers(state):
                self._restore_optimizers(state)
        except (KeyError, RuntimeError, ValueError) as error:
            what = f"it has no {error.args[0]}" if isinstance(error, KeyError) else error
            raise UserError(Problem(f"the checkpoint does not fit this pipeline: {what}", hint=OTHER)) from error
        in_eval = frozenset(state["modes"])
        for name, module in self.parts.model.named_modules():
            module.training = name not in in_eval

    def _restore_optimizers(self, state: Mapping[str, Any]) -> None:
        saved_dtypes: dict[torch.Tensor, torch.dtype] = {}
        for name, model in self.parts.models.items():
            saved = state[state_key("model", name)]
            for key, parameter in model.named_parameters():
                if key in saved:
                    saved_dtypes[parameter] = saved[key].dtype
        for name, optimizer in self.parts.optimizers.items():
            host_tensors = state.get("host_tensors", {}).get(name, [])
            load_optimizer(optimizer, state[state_key("optimizer", name)], host_tensors, saved_dtypes)

    def _restore_requires_grad(self, without: Iterable[str]) -> None:
        parameters, frozen = self.parts.model.named_parameters(), frozenset(without)
        changed = {name: p for name, p in parameters if p.requires_grad == (name in frozen)}
        for parameter in changed.values():
            parameter.requires_grad_(not parameter.requires_grad)
        if changed:
            self.say(f"requires_grad is as before the resume: {first_few(changed)}")

    def _restore_hooks(self, saved: dict[str, Any]) -> None:
        for name, hook in self.parts.hooks.items():
            if name in saved:
                with only_showable(f'raised while the hook "{name}" was given back its state'):
                    hook.load_state_dict(saved[name])
            elif hasattr(hook, "state_dict") and hook.state_dict():
                self.say(f'the checkpoint does not know the hook "{name}": it starts anew', "warn")
        for name in saved.keys() - self.parts.hooks.keys():
            if saved[name]:
                lost = f"its state is dropped ({first_few(map(str, saved[name]))})"
                self.say(f'the checkpoint knows a hook "{name}" that this pipeline does not have: {lost}', "warn")

    def _restore_task(self, saved: Any) -> None:
        if hasattr(self.parts.task, "load_state_dict") and saved:
            with only_showable("raised while the task was given back its state"):
                self.parts.task.load_state_dict(saved)
        elif saved or (hasattr(self.parts.task, "state_dict") and self.parts.task.state_dict()):
            lacks = "the task has no load_state_dict()" if saved else "the checkpoint has no state of the task"
            self.say(f"{lacks}: the task starts anew", "warn")

    def _key(self, binding_id: int) -> str:
        binding = self.plan.bindings[binding_id]
        return f"{binding.hook}@{binding.method if binding.half == 'enter' else binding.point}"


def _with_training_weights(state: Mapping[str, Any], model: str) -> Any:
    """Return the weights of a model, with those that optimizers with modes train from in place of those for use."""
    result = copy(state[model])
    for of_models in state.get("training_weights", {}).values():
        result.update(of_models.get(model, {}))
    return result


class Frozen:
    """The parameters that models were built with frozen: checkpoints leave them out, except those changed since then.

    Every change in place counts a version of the tensor up, by which it is looked for.
    """

    def __init__(self, models: Mapping[str, nn.Module]) -> None:
        self._of = {state_key("model", name): _frozen_in(model) for name, model in models.items()}
        self._marks = {id(p): (mark_of(p), p._version) for frozen in self._of.values() for p in frozen.values()}

    def __bool__(self) -> bool:
        return bool(self._marks)

    def holds(self, parameter: nn.Parameter) -> bool:
        return id(parameter) in self._marks

    def without(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return a captured state without them, and with their marks: of models, and of averages of models."""
        still = {
            key: {name: self._marks[id(p)][0] for name, p in frozen.items() if self._stands(p)}
            for key, frozen in self._of.items()
        }
        result, left_out = dict(state), {}
        for entry in [key for key in state if key.startswith("model") and key not in ("modes", "module_hooks")]:
            averaged = (marks for marks in still.values() if marks.keys() <= state[entry].keys())
            if marks := still.get(entry) or next(averaged, {}):
                result[entry] = {name: value for name, value in state[entry].items() if name not in marks}
                left_out[entry] = marks
        return {**result, "frozen": left_out}

    def _stands(self, parameter: nn.Parameter) -> bool:
        mark, version = self._marks[id(parameter)]
        if parameter.requires_grad or (parameter._version != version and mark_of(parameter) != mark):
            return False
        self._marks[id(parameter)] = mark, parameter._version
        return True


def _frozen_in(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in model.named_parameters(remove_duplicate=False) if not p.requires_grad}


def completed(state: Mapping[str, Any], models: Mapping[str, nn.Module]) -> dict[str, Any]:
    """Return a saved state with the frozen parameters that it leaves out: those of the models.

    Raises UserError where these are others.
    """
    result = dict(state)
    for entry, marks in result.pop("frozen", {}).items():
        fitting = (model for model in models.values() if marks.keys() <= model.state_dict().keys())
        own = {state_key("model", name): model for name, model in models.items()}.get(entry) or next(fitting, None)
        if own is not None:  # else it belongs to a model that a fork does not have
            result[entry] = with_frozen(result[entry], marks, own)
    return result


class Unsaved:
    """Finds attributes of the task, the data, the user's modules and hooks, and of their classes, that change unsaved.

    It finds globals of the pipeline's files, too. `known` objects belong to other parts.
    """

    def __init__(self, parts: Parts, known: Iterable[Any]) -> None:
        data = [
            (f"data.{split} ({type(part).__name__})", part)
            for split, source in parts.data.items()
            for part in own_parts(source)
            if not (type(part).__module__ or "").startswith(("hookflow.", "torchdata."))
        ]
        self._owners = {name: part for name, part in data if not has_own_state(part)}
        if not hasattr(parts.task, "state_dict"):
            self._owners[f"the task {type(parts.task).__name__}"] = parts.task
        self._owners |= {
            f'the hook "{name}"': hook
            for name, hook in parts.own_hooks.items()
            if getattr(type(hook), "state_dict", Hook.state_dict) is Hook.state_dict
        }
        self._owners |= {
            f"{path or 'the model'} ({type(module).__name__})": module
            for path, module in parts.model.named_modules()
            if (type(module).__module__ or "").partition(".")[0] not in LIBRARIES
            if type(module).get_extra_state is nn.Module.get_extra_state
        }
        self._owners |= {
            f'the optimizer "{name}" ({type(optimizer).__name__})': optimizer
            for name, optimizer in parts.optimizers.items()
            if (type(optimizer).__module__ or "").partition(".")[0] not in LIBRARIES
            if type(optimizer).state_dict is torch.optim.Optimizer.state_dict
        }
        self._owners |= {Path(file).name: module for file, module in imported_files().items()}
        self._known = {id(thing) for thing in (*known, *self._owners.values(), *(part for _, part in data))}
        self._before: dict[str, dict[Hashable, Hashable]] = {}

    def look(self) -> None:
        """Note the attributes as they are now; a second look adds the tensors that were assigned since the first."""
        for name, owner in self._owners.items():
            now = dict(self._marks(owner))
            before = self._before.setdefault(name, now)
            before |= {key: mark for key, mark in now.items() if isinstance(key, tuple) and key not in before}

    def warnings(self) -> Iterator[str]:
        """Yield a warning for each owner of attributes that have changed, once."""
        for name, before in [*self._before.items()]:
            owner = self._owners[name]
            # a tensor of another shape than before is a cache
            now = ((key, mark) for key, mark in self._marks(owner) if key in before or not isinstance(key, tuple))
            if changed := [key for key, mark in now if before.get(key) != mark]:
                del self._before[name]
                names = ", ".join(key[0] if isinstance(key, tuple) else key for key in changed)
                has = "a buffer, or get_extra_state() and set_extra_state()" if isinstance(owner, nn.Module) else OWN
                has += " in a task that holds it" * isinstance(owner, ModuleType)
                lost = "while it trains, and no checkpoint holds that: a resumed run starts without it. Define"
                yield f"{name} changes {names} {lost} {has}"

    def _marks(self, owner: Any) -> Iterator[tuple[Any, Hashable]]:
        if isinstance(owner, nn.Module | ModuleType):
            yield from _numbers_of(owner)
            return
        own = (kind for kind in type(owner).__mro__ if (kind.__module__ or "").partition(".")[0] not in LIBRARIES)
        of_classes = ((f"{kind.__name__}.{name}", value) for kind in own for name, value in vars(kind).items())
        for name, value in (*getattr(owner, "__dict__", {}).items(), *of_classes):
            if hasattr(value, "__get__") or ".__" in name:  # a method, or what Python keeps in a class
                continue
            if isinstance(owner, torch.optim.Optimizer) and (name in SAVED_OF_OPTIMIZERS or name.startswith("_")):
                continue
            if "epoch" in name and hasattr(owner, "set_epoch"):  # it is set anew before each epoch
                continue
            if id(value) not in self._known and not isinstance(value, (*OPAQUE, *NO_STATE)):
                yield name, mark(value, self._known)


def _numbers_of(module: Any) -> Iterator[tuple[Any, Hashable]]:
    """Yield the attributes of a module, or a file's globals, that hold a state and no result, each with a mark.

    They are numbers and lists of them, arrays, generators, tensors changed in place, and buffers of no state_dict.
    Tensors that a call takes over from the call before have their shapes beside the name: a cache changes with these.
    """
    own = isinstance(module, nn.Module)
    kind: Any = type(module) if own else module
    carried = _carried(kind)
    numbers = (np.ndarray, *GENERATORS, *((int, float) if own else ()))  # numbers in globals are settings, mostly
    for name in getattr(module, "_non_persistent_buffers_set", ()):
        if (buffer := getattr(module, name)) is not None:
            yield name, _content(buffer)
    for name, value in [*vars(module).items()]:
        first = next(iter(value), None) if isinstance(value, (list, tuple, deque)) else value
        if isinstance(first, torch.Tensor):
            tensors = (value,) if value is first else (*value,)
            if name in carried and all(isinstance(tensor, torch.Tensor) for tensor in tensors):
                yield (name, *(tensor.shape for tensor in tensors)), (*map(_content, tensors),)
            elif value is first and not value.is_inference() and value._version:
                yield name, value._version
        elif isinstance(first, numbers) and name != "training" and not isinstance(value, tuple):
            yield name, mark(value)


def _content(tensor: torch.Tensor) -> Hashable:
    with suppress(RuntimeError, NotImplementedError):  # of a tensor without contents
        if tensor.nbytes < 2**20:  # a large one, as a mask, is compared as an object
            return of_tensor(tensor)
    return mark(tensor)


@cache
def _carried(owner: Any) -> frozenset[str]:
    """Return the names that a function of a class, or of a file, reads and then assigns."""
    names = set()
    if isinstance(owner, type):
        inside = [base for base in owner.__mro__ if (base.__module__ or "").partition(".")[0] not in LIBRARIES]
    else:
        classes = filter(isclass, vars(owner).values())
        inside = [owner, *(kind for kind in classes if kind.__module__ == owner.__name__)]
    functions = (unwrap(value) for each in inside for value in vars(each).values() if isinstance(value, FunctionType))
    for function in functions:
        read: dict[str, bool] = {}  # whether the name is read first
        for step in dis.get_instructions(function) if isinstance(function, FunctionType) else ():  # C has none
            if step.opname.endswith(("_ATTR", "_GLOBAL")):
                stores = step.opname.startswith("STORE")
                names |= {step.argval} if read.setdefault(step.argval, not stores) and stores else set()
    return frozenset(names)


OWN = "state_dict() and load_state_dict()"

LIBRARIES = ("builtins", "hookflow", "torch")
"""Packages whose classes keep no state of a training."""

SAVED_OF_OPTIMIZERS = ("state", "param_groups", "defaults")
"""Attributes of an optimizer that its `state_dict()` holds, or that are its settings."""

NO_STATE = (type(None), str, bytes, torch.device, torch.dtype, Logger)
"""Types of attributes that are settings, and not state of a training."""
