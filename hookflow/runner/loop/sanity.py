"""The sanity check: two batches of validation before the first iteration, without hooks."""

import copy
import inspect
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from hookflow.errors import Problem, UserError, make_place_key, nearest_or_all
from hookflow.graph.plan import Binding, Plan, PlannedHook
from hookflow.hooks.run import describe_declaration
from hookflow.pipeline.condition import METRIC_PREFIX, list_metrics
from hookflow.runner.builder.components import RunComponents
from hookflow.runner.data.batches import in_set, sets_of
from hookflow.runner.data.source import LimitedSource
from hookflow.runner.device.random_state import restore_generators
from hookflow.runner.iteration.context import RunContext
from hookflow.runner.iteration.ignored_targets import IgnoredTargets
from hookflow.runner.iteration.run import Run
from hookflow.runner.iteration.update import OptimizerUpdate
from hookflow.runner.logging.recorder import SANITY_CHECK
from hookflow.runner.loop.evaluation import EvaluationLoop
from hookflow.runner.process.state import RunState
from hookflow.user_code import describe_error, only_showable

NUM_BATCHES = 2
GENERATOR_TYPES = (random.Random, np.random.Generator, np.random.RandomState)
PLACE_TYPES = (bool, int, float, str, list, tuple, dict, *GENERATOR_TYPES)
"""Types of attributes in which a dataset keeps its place."""

OFF = "run.sanity = false leaves the sanity check out"
CHECKED_POINTS = ("before_val", "before_val_epoch", "before_val_iter")


def run_sanity_check(context: RunContext, update: OptimizerUpdate) -> None:
    """Validate two batches, and check the names of the metrics that hooks read.

    Raises the exceptions of the task, or warns of them where a hook prepares the validation. Raises
    UserError for a metric that nothing makes. Where a hook replaces batches, nothing is checked.
    """
    parts = context.parts
    plan = context.plan
    say = context.log.say
    bound = [binding for point in CHECKED_POINTS for binding in plan.at(point)]
    if any("batch" in binding.writes for binding in bound):
        return
    try:
        with only_showable(f"raised in {SANITY_CHECK}, before the training; {OFF}"):
            names = _compute_metrics(context, update)
    except Exception as error:
        prepares = [
            b
            for b in bound
            if not b.writes or not all(slot.startswith(METRIC_PREFIX) for slot in b.writes)
        ]
        own = [b.hook for b in prepares if b.hook in parts.own_hooks]
        if not own or parts.strategy.several:
            raise
        hooks = ", ".join(dict.fromkeys(own))
        say(
            f"{SANITY_CHECK} raised {', '.join(describe_error(error))}; the hooks {hooks} were not"
            f" called in it; {OFF}",
            "warn",
        )
        return
    if names is not None:
        _check_names(context, names)


def _compute_metrics(context: RunContext, update: OptimizerUpdate) -> set[str] | None:
    """Return the names of the metrics of two batches, and of the logged scalars.

    It is None where the task has no copy.
    """
    parts = context.parts
    quiet: Any = SilentRecorder()
    sources = {name: parts.data[name] for name in sets_of("val", parts.data)}
    plan = Plan(context.plan.pipeline, hooks=(), bindings=(), edges=(), own=context.plan.own)
    try:
        task = _copy_parts(parts)
    except Exception as error:
        context.log.say(f"{SANITY_CHECK} is left out: the task cannot be copied ({error})")
        return None
    if parts.section.compile:
        eager = torch.compiler.set_stance("force_eager")
    else:
        eager = nullcontext()
    with restore_afterwards(parts.model, parts.device), eager, ExitStack() as same_places:
        for source in sources.values():
            same_places.enter_context(_same_place(source))
        data = {
            name: LimitedSource(source, min(NUM_BATCHES, len(source)), SANITY_CHECK)
            for name, source in sources.items()
        }
        alone = replace(parts, data=data, task=task, hooks={}, picked={})
        check = RunContext(alone, plan, context.folder, RunState(), context.consensus, quiet, quiet)
        run = Run(check, update)
        check.engine.bind(run)
        ignored = IgnoredTargets("the validation data", context.log.say)
        with ignored:
            EvaluationLoop(check, run, lambda batches: False)("val")
    if context.weigh is None:
        ignored.warn()
    return {*check.state.metrics, *quiet.names}


def _copy_parts(parts: RunComponents) -> Any:
    own = [
        value
        for value in getattr(parts.task, "__dict__", {}).values()
        if isinstance(value, nn.Module)
    ]
    # A metric has no parameters, and is copied with the task.
    networks = [model for model in own if next(model.parameters(), None) is not None]
    return copy.deepcopy(
        parts.task, {id(model): model for model in (parts.model, *parts.models.values(), *networks)}
    )


@contextmanager
def _same_place(source: Any) -> Iterator[None]:
    """Restore the attributes of a dataset and its samplers afterwards, and generators.

    Tensors and arrays are not restored.
    """
    loader = getattr(source, "loader", None)
    dataset = getattr(loader, "dataset", None)
    stream = getattr(dataset, "data", None)
    undo: list[Callable[[], object]] = [partial(setattr, source, "info", source.info)]
    for owner in (
        loader,
        dataset,
        stream,
        getattr(loader, "sampler", None),
        getattr(loader, "batch_sampler", None),
    ):
        for name, value in list(getattr(owner, "__dict__", {}).items()):
            if isinstance(value, torch.Generator):
                undo.append(partial(value.set_state, value.get_state()))
            elif isinstance(value, PLACE_TYPES) and owner is not loader:
                copied = (
                    copy.deepcopy(value) if isinstance(value, GENERATOR_TYPES) else copy.copy(value)
                )
                # The items of a list are not copied, since they may be millions.
                undo.append(partial(setattr, owner, name, copied))
    if hasattr(source, "load_state_dict"):
        undo.append(partial(source.load_state_dict, source.state_dict()))
    try:
        yield
    finally:
        for restore in undo:
            restore()


@contextmanager
def restore_afterwards(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Restore the buffers of a model and the random generators afterwards."""
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    try:
        with restore_generators(device):
            yield
    finally:
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)


class SilentRecorder:
    """A log that records nothing but the names of scalars; it has every method of a log."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def scalar(self, name: str, *_: Any) -> None:
        self.names.add(name)

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None


def _check_names(context: RunContext, names: set[str]) -> None:
    """Check the metrics that hooks monitor or have in conditions.

    Raises UserError with all that nothing makes. Where a hook adds metrics without naming them, an
    unknown name is a warning.
    """
    parts = context.parts
    plan = context.plan
    made = _list_hook_metrics(context)
    known = names | made.named
    problems = []
    for hook, name, key in _read(parts, plan):
        if name in known:
            continue
        message = (
            f'hook "{hook.name}" reads the metric "{name}", which the validation does not give'
        )
        hint = nearest_or_all(name, sorted(known))
        if made.unnamed:
            maker = made.unnamed[min(made.unnamed)]
            hint = (
                f"{describe_declaration(f'{METRIC_PREFIX}{name}', maker.hook, maker.writes)};"
                f" {hint}"
            )
            context.log.say(f'{message}, unless the hook "{maker.hook}" makes it; {hint}', "warn")
        elif hook.on_error != "raise":
            context.log.say(f"{message}; {hint}", "warn")
        else:
            end = "; a"
            if hint.endswith("?"):
                end = " A"
            hint += f'{end} hook that makes it declares writes = ["{METRIC_PREFIX}{name}"]'
            problems.append(Problem(message, parts.place(key), hint))
    if problems:
        raise UserError(sorted(problems, key=make_place_key))


@dataclass(frozen=True, slots=True)
class HookMetrics:
    """The metrics that hooks make.

    `named` has their names, and `unnamed` by hook the binding that makes others.
    """

    named: set[str]
    unnamed: dict[str, Binding]


def _list_hook_metrics(context: RunContext) -> HookMetrics:
    parts = context.parts
    plan = context.plan
    named: set[str] = set()
    unnamed: dict[str, Binding] = {}
    for binding in plan.at("after_val_epoch"):
        if not _list_declared_metrics(binding) and "metrics" in (*binding.takes, *binding.writes):
            unnamed[binding.hook] = binding
        for metric in _list_made_metrics(parts, binding):
            named.update(in_set(name, metric) for name in sets_of("val", parts.data))
    for binding in plan.at("after_val"):  # they are over all sets
        if "metrics" in binding.writes:
            unnamed[binding.hook] = binding
        named.update(_list_made_metrics(parts, binding))
    return HookMetrics(named, unnamed)


def _list_declared_metrics(binding: Binding) -> set[str]:
    """Return the metrics that a hook declares to make."""
    return {
        slot.removeprefix(METRIC_PREFIX)
        for slot in binding.writes
        if slot.startswith(METRIC_PREFIX)
    }


def _list_made_metrics(parts: RunComponents, binding: Binding) -> set[str]:
    """Return the metrics that a hook declares to make, and those that it sets in its source."""
    metrics = _list_declared_metrics(binding)
    if binding.hook in parts.own_hooks:  # hookflow's name theirs
        from hookflow.hooks.uses import keys_set, source_of  # takes 0.4 MB of the training's memory

        hook = parts.hooks[binding.hook]
        source = source_of(hook if inspect.isroutine(hook) else type(hook), binding.method)
        metrics.update(assigned.key for assigned in keys_set(source, "metrics"))
    return metrics


def _names_metric(value: Any, metric: str) -> bool:
    """Say whether an argument of a hook names a metric: by itself, in a formula, or as a key."""
    if isinstance(value, str):
        return metric in list_metrics(value)
    return isinstance(value, dict) and any(_names_metric(key, metric) for key in value)


def _read(parts: RunComponents, plan: Plan) -> Iterator[tuple[PlannedHook, str, str]]:
    for hook in plan.hooks:
        bound = [binding for binding in plan.bindings if binding.hook == hook.name]
        if any(binding.point in ("after_val", "after_val_epoch") for binding in bound):
            args = hook.args if isinstance(hook.args, Mapping) else {}
            after = (
                slot for binding in bound if binding.point == "after_val" for slot in binding.reads
            )
            declared = (
                slot.removeprefix(METRIC_PREFIX) for slot in after if slot.startswith(METRIC_PREFIX)
            )
            monitored = [
                name
                for text in parts.capabilities[hook.name].monitors
                for name in list_metrics(text)
            ]
            for name in dict.fromkeys((*monitored, *declared)):
                keys = (key for key, value in args.items() if _names_metric(value, name))
                argument = next((f"args.{key}" for key in keys), "use")
                yield hook, name, f"hooks.{hook.name}.{argument}"
        conditions = (binding.trigger.when for binding in bound if binding.trigger.when)
        for name in sorted({name for condition in conditions for name in condition.names}):
            if name.startswith(METRIC_PREFIX):
                yield hook, name.removeprefix(METRIC_PREFIX), f"hooks.{hook.name}.when"
