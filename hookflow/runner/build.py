"""From a pipeline's words to the things themselves: model, data, optimizer, task and hooks."""

from __future__ import annotations

import inspect
import random
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from hookflow.errors import Problem, UserError, Where
from hookflow.graph.plan import Plan, PlannedHook
from hookflow.hooks.compile import find_hook
from hookflow.hooks.inspect import wrong_arguments
from hookflow.pipeline.load import Loaded
from hookflow.pipeline.refer import refer
from hookflow.pipeline.registry import DATA
from hookflow.pipeline.schema import Component, ParamGroup, RunSection
from hookflow.runner.device import choose_device, choose_precision
from hookflow.runner.source import as_source

Made = TypeVar("Made")


@dataclass(frozen=True)
class Parts:
    """Everything that a runner is given."""

    section: RunSection
    device: torch.device
    precision: str
    model: nn.Module
    optimizer: torch.optim.Optimizer
    task: Any
    data: Mapping[str, Any]
    hooks: Mapping[str, Any]


def build(loaded: Loaded, plan: Plan, base: Path, say: Callable[..., None]) -> Parts:
    """Build everything. Paths of the pipeline's own files are relative to `base`; `say` takes lines for people.

    Raises UserError with the place in the pipeline when something cannot be built from what is written there.
    """
    return _Builder(loaded, base, say).parts(plan)


class _Builder:
    def __init__(self, loaded: Loaded, base: Path, say: Callable[..., None]) -> None:
        self.pipeline = loaded.pipeline
        self.places = loaded.places
        self.base = base
        self.say = say

    def parts(self, plan: Plan) -> Parts:
        section = self.pipeline.run
        if section.threads is not None:
            torch.set_num_threads(section.threads)
        device = choose_device(section.device)
        seed_everything(section.seed)
        model = self._model(device)
        return Parts(
            section=section,
            device=device,
            precision=choose_precision(section.precision, device),
            model=model,
            optimizer=self._optimizer(model),
            task=self._task(),
            hooks={hook.name: self._hook(hook) for hook in plan.hooks},
            data=self._data(device),  # last, since it may take long, and all else can be wrong in no time
        )

    def _data(self, device: torch.device) -> dict[str, Any]:
        offers = {"seed": self.pipeline.run.seed, "device": device, "say": self.say}
        declared = self.pipeline.data
        splits = {
            "train": declared.train,
            "val": declared.val,
            "test": declared.test if self.pipeline.run.test else None,
        }
        parts = {f"data.{split}": part for split, part in splits.items() if part is not None}
        makes = {key: self._find(key, part, offers, DATA) for key, part in parts.items()}
        layout = self.pipeline.run.channels_last
        return {
            key.removeprefix("data."): as_source(
                self._call(*make, key), self.places.of(f"{key}.use"), device, layout, self.say
            )
            for key, make in makes.items()
        }

    def _model(self, device: torch.device) -> nn.Module:
        made = self._checked("model", self._make("model", self.pipeline.model), nn.Module)
        layout = torch.channels_last if self.pipeline.run.channels_last else torch.preserve_format
        model: nn.Module = made.to(device=device, memory_format=layout)  # type: ignore[call-overload]
        return model

    def _task(self) -> Any:
        task = self._make("task", self.pipeline.task)
        for method in ("step", "evaluate"):
            if not callable(getattr(task, method, None)):
                said = f"a task needs the methods step and evaluate; {type(task).__name__} has no {method}"
                raise UserError(Problem(said, self.places.of("task.use")))
        return task

    def _checked(self, key: str, made: Any, kind: type[Made]) -> Made:
        if not isinstance(made, kind):
            said = f"{key} must be a {kind.__module__}.{kind.__qualname__}, and this makes a {type(made).__name__}"
            raise UserError(Problem(said, self.places.of(f"{key}.use")))
        return made

    def _make(self, key: str, part: Component) -> Any:
        return self._call(*self._find(key, part, {}, {}), key)

    def _find(
        self, key: str, part: Component, offers: Mapping[str, Any], registered: Mapping[str, str]
    ) -> tuple[Callable[..., Any], dict[str, Any]]:
        """Return what `part` names, and its args with those of `offers` that it takes and the file does not give."""
        make = refer(part.use, self.base, self.places.of(f"{key}.use"), registered)
        offered = {name: value for name, value in offers.items() if name in _parameters(make)}
        self._check(make, part.args, key, offered)
        return make, offered | part.args

    def _optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        declared = self.pipeline.optimizer
        make = refer(declared.use, self.base, self.places.of("optimizer.use"))
        self._check(make, declared.args, "optimizer", ["params"])
        args = {"params": self._param_groups(model, declared.groups)} | declared.args
        optimizer = self._checked("optimizer", self._call(make, args, "optimizer"), torch.optim.Optimizer)
        for group in optimizer.param_groups:
            group.setdefault("initial_lr", group["lr"])
        return optimizer

    def _param_groups(self, model: nn.Module, groups: Sequence[ParamGroup]) -> list[dict[str, Any]]:
        """Return the file's groups, each with what no earlier one has taken, and one with all that is left."""
        left = {name: p for name, p in model.named_parameters() if p.requires_grad}
        found = []
        for k, group in enumerate(groups):
            taken = [name for name in left if fnmatchcase(name, group.match)]
            if not taken:
                said = f'"{group.match}" matches no parameter that trains and that no earlier group has taken'
                there = f"there are {', '.join(list(left)[:8])}{', …' if len(left) > 8 else ''}"
                raise UserError(Problem(said, self.places.of(f"optimizer.groups.{k}.match"), there))
            found.append({"params": [left.pop(name) for name in taken], **group.args})
        return [*found, {"params": list(left.values())}] if left else found

    def _hook(self, planned: PlannedHook) -> Any:
        """Make a hook's object; a plain function is called itself, with its args bound."""
        found = find_hook(planned.use, self.base, self.places.of(f"hooks.{planned.name}.use"))
        if not isinstance(found, type):
            return BoundFunction(found, planned.args) if planned.args else found
        hook = self._call(found, planned.args, f"hooks.{planned.name}")
        hook.name = planned.name
        return hook

    def _check(self, make: Callable[..., Any], args: Mapping[str, Any], key: str, filled: Collection[str]) -> None:
        def place(name: str) -> Where:
            return self.places.of(f"{key}.args.{name}" if name else f"{key}.use")

        if problems := list(wrong_arguments(make, args, key, place, filled)):
            raise UserError(problems)

    def _call(self, make: Callable[..., Any], args: Mapping[str, Any] | Sequence[Any], key: str) -> Any:
        """Call `make`; a value that it refuses is the user's mistake, with its place in the pipeline."""
        try:
            return make(**args) if isinstance(args, Mapping) else make(*args)
        except (ValueError, TypeError) as error:
            _, *frames = traceback.extract_tb(error.__traceback__)
            hint = f"raised at {frames[-1].filename}:{frames[-1].lineno}: {frames[-1].line}" if frames else ""
            raise UserError(Problem(f"{key}: {error}", self.places.of(f"{key}.args"), hint)) from error


class BoundFunction:
    """A plain function with the arguments of the pipeline file in it."""

    def __init__(self, function: Callable[..., Any], args: Mapping[str, Any] | Sequence[Any]) -> None:
        names = list(_parameters(function))
        if isinstance(args, Mapping):
            self._function = partial(function, **args)
            self._names = [name for name in names if name not in args]
        else:
            self._function = partial(function, *args)
            self._names = names[len(args) :]

    def __call__(self, *offered: Any) -> Any:
        return self._function(**dict(zip(self._names, offered, strict=False)))


def seed_everything(seed: int) -> None:
    """Seed every global random generator: Python's, NumPy's and torch's, on every device."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def _parameters(make: Callable[..., Any]) -> Iterator[str]:
    try:
        yield from inspect.signature(make).parameters
    except (TypeError, ValueError):
        return
