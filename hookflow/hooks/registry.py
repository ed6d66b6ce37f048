"""The registry of hooks: short names of built-in hooks and of hooks in installed packages; hooks found by `use`."""

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from hookflow.errors import Problem, UserError, Where
from hookflow.hooks.base import Hook
from hookflow.pipeline.registry import Registry

BUILT_IN: dict[str, str] = {
    "accumulation_schedule": "hookflow.hooks.builtin.schedules:AccumulationSchedule",
    "accuracy": "hookflow.hooks.builtin.metrics:Accuracy",
    "activation_checkpoint": "hookflow.hooks.builtin.memory:ActivationCheckpoint",
    "activation_stats": "hookflow.hooks.builtin.statistics:ActivationStats",
    "batch_size_finder": "hookflow.hooks.builtin.schedules:BatchSizeFinder",
    "checkpoint": "hookflow.hooks.builtin.checkpoint:Checkpoint",
    "comm_hook": "hookflow.hooks.builtin.gradients:CommHook",
    "confusion_matrix": "hookflow.hooks.builtin.metrics:ConfusionMatrix",
    "cutmix": "hookflow.hooks.builtin.mixing:CutMix",
    "early_stop": "hookflow.hooks.builtin.stops:EarlyStop",
    "ema": "hookflow.hooks.builtin.averaging:EMA",
    "empty_cache": "hookflow.hooks.builtin.memory:EmptyCache",
    "env_info": "hookflow.hooks.builtin.log:EnvInfo",
    "export": "hookflow.hooks.builtin.checkpoint:Export",
    "freeze": "hookflow.hooks.builtin.freeze:Freeze",
    "grad_clip": "hookflow.hooks.builtin.gradients:GradClip",
    "grad_norm": "hookflow.hooks.builtin.gradients:GradNorm",
    "images": "hookflow.hooks.builtin.statistics:Images",
    "log": "hookflow.hooks.builtin.log:Log",
    "lr_finder": "hookflow.hooks.builtin.schedules:LRFinder",
    "lr_monitor": "hookflow.hooks.builtin.log:LRMonitor",
    "lr_schedule": "hookflow.hooks.builtin.schedules:LRSchedule",
    "memory": "hookflow.hooks.builtin.memory:Memory",
    "metrics": "hookflow.hooks.builtin.metrics:Metrics",
    "mixup": "hookflow.hooks.builtin.mixing:Mixup",
    "param_schedule": "hookflow.hooks.builtin.schedules:ParamSchedule",
    "param_stats": "hookflow.hooks.builtin.statistics:ParamStats",
    "precise_bn": "hookflow.hooks.builtin.averaging:PreciseBN",
    "predict": "hookflow.hooks.builtin.predict:Predict",
    "profiler": "hookflow.hooks.builtin.log:Profiler",
    "prune": "hookflow.hooks.builtin.freeze:Prune",
    "resize": "hookflow.hooks.builtin.mixing:Resize",
    "sam": "hookflow.hooks.builtin.gradients:SAM",
    "scheduler": "hookflow.hooks.builtin.scheduler:Scheduler",
    "spike_guard": "hookflow.hooks.builtin.stops:SpikeGuard",
    "swa": "hookflow.hooks.builtin.averaging:SWA",
    "sync_buffers": "hookflow.hooks.builtin.averaging:SyncBuffers",
    "throughput": "hookflow.hooks.builtin.log:Throughput",
    "time_limit": "hookflow.hooks.builtin.stops:TimeLimit",
    "tta": "hookflow.hooks.builtin.predict:TTA",
    "whiten": "hookflow.zoo.hooks:Whiten",
}

HOOKS = Registry("hook", "hookflow.hooks", BUILT_IN)

FRAMEWORKS: Mapping[str, str] = {
    "mmengine:": "hookflow.hooks.mmengine",
    "lightning:": "hookflow.hooks.lightning",
    "pointrix:": "hookflow.hooks.pointrix",
}
"""The adapters of other frameworks' hooks, by what `use` begins with; a training without such hooks imports none."""


class NotImported:
    """Not imported."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Take any arguments: those of the hook are unknown."""


def find_hook(use: str, base: Path, where: Where | None) -> Callable[..., Any]:
    """Return the class or function that `use` names. Raises UserError when there is none, or it cannot be called."""
    theirs = next((adapter for prefix, adapter in FRAMEWORKS.items() if use.startswith(prefix)), None)
    result = import_module(theirs).find(use, where) if theirs else HOOKS.find(use, base, where)
    # past what an object says of its class, which may raise
    if issubclass(type(result), type) and Hook not in type.__getattribute__(result, "__mro__"):
        adapters = map(import_module, FRAMEWORKS.values())
        result = next((each.adapted(result, where) for each in adapters if each.is_hook(result)), result)
    if not callable(result):
        raise UserError(Problem(f'"{use}" is no class or function, so it cannot be a hook', where))
    return result  # type: ignore[no-any-return]


def find_without_import(use: str, base: Path, where: Where | None) -> Callable[..., Any]:
    """Return `NotImported` for a hook of the user's (`--no-import`), and the class itself for one of hookflow's.

    Raises UserError when the file or the module of `use` does not exist, or defines no such name.
    """
    from hookflow.pipeline.load import missing  # loads pydantic, which `hookflow --help` does without

    if use.startswith(tuple(FRAMEWORKS)):
        return NotImported
    if problem := missing(use, base, where, HOOKS):
        raise UserError(problem)
    place = HOOKS.short_names(use).get(use, use)
    if place in BUILT_IN.values() or place.startswith("hookflow.hooks."):
        return HOOKS.find(use, base, where)  # type: ignore[no-any-return]
    return NotImported
