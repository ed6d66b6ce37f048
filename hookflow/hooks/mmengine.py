"""Hooks of MMEngine, unmodified: each is called as MMEngine's Runner calls it, with a runner that is a view of the run.

`use = "mmengine:EMAHook"` names a hook of MMEngine's registry; any other class with `mmengine.hooks.Hook` among its
bases is adapted likewise. Source: `mmengine.hooks.Hook` and `mmengine.runner.loops`, version 0.10.
"""

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from inspect import Parameter, Signature
from typing import Any, ClassVar

from hookflow.errors import Problem, UserError, Where, nearest
from hookflow.graph.plan import EdgeSpec, Half, Node, Nodes, Phase
from hookflow.hooks.base import Hook, Slots
from hookflow.hooks.mmengine_runner import Checkpoint, Runner, changed, numbers, numbers_of, samples
from hookflow.hooks.run import Run
from hookflow.pipeline.registry import missing_package

ITER: Mapping[str, str] = {"batch_idx": "batch_idx", "data_batch": "batch"}
"""Arguments of MMEngine's methods, by what hookflow's points call them."""
STAGES: Mapping[str, Mapping[str, str]] = {
    **{name: {} for name in ("before_run", "before_train", "before_train_epoch", "after_train_epoch")},
    **{name: {} for name in ("before_val", "before_val_epoch", "after_val", "before_test", "before_test_epoch")},
    **{name: {} for name in ("after_test", "after_train", "after_run")},
    **{f"before_{split}_iter": ITER for split in ("train", "val", "test")},
    **{f"after_{split}_iter": {**ITER, "outputs": "outputs"} for split in ("train", "val", "test")},
    **{f"after_{split}_epoch": {"metrics": "metrics"} for split in ("val", "test")},
    **{name: {"checkpoint": "checkpoint"} for name in ("before_save_checkpoint", "after_load_checkpoint")},
}
"""The 22 points of MMEngine, all of which are hookflow's too, with the arguments beside the runner."""

PHASES: tuple[tuple[int, Phase], ...] = ((20, "first"), (45, "early"), (55, "normal"), (80, "late"), (100, "last"))
"""The greatest priority of each phase."""

INSTEAD: Mapping[str, str] = {
    "mmengine.CheckpointHook": 'use = "checkpoint"',
    "mmengine.LoggerHook": 'use = "log", and [writers.NAME] for TensorBoard and others',
    "mmengine.ParamSchedulerHook": 'use = "scheduler"',
    "mmengine.NaiveVisualizationHook": 'use = "images"',
    "mmengine.PrepareTTAHook": 'use = "tta"',
    "mmengine.NPUProfilerHook": 'use = "profiler"',
    "mmyolo.YOLOXModeSwitchHook": "the hook of this name of mmdet changes the dataset, and works",
    "mmpose.YOLOXPoseModeSwitchHook": "mmdet's PipelineSwitchHook and mmpose's RTMOModeSwitchHook do the same",
    "mmrazor.RazorVisualizationHook": 'use = "images"',
}
"""Hooks that need MMEngine's Runner, or the config from which it is built, with what does their work here."""

SWAPS = ("before_val_epoch", "after_val_epoch", "before_test_epoch", "after_test_epoch")
CHECKPOINT = dict.fromkeys(("before_save_checkpoint", "after_load_checkpoint"), ("checkpoint",))
OFFERED = {**dict.fromkeys((f"after_{split}_iter" for split in ("train", "val", "test")), ("outputs",)), **CHECKPOINT}
"""The slots that the adapter itself reads at these points."""
ByPoint = Mapping[str, tuple[str, ...]]
SLOTS: Mapping[str, tuple[ByPoint, ByPoint]] = {
    "EMAHook": (
        dict.fromkeys((*SWAPS, "after_train_iter", "before_run", "after_load_checkpoint"), ("model",)),
        {**dict.fromkeys(SWAPS, ("model",)), **CHECKPOINT},
    ),
    "EarlyStoppingHook": ({"after_val_epoch": ("metrics",)}, {"after_val_epoch": ("control",)}),
    "RuntimeInfoHook": (
        {"before_train_iter": ("lr",), **dict.fromkeys(("after_val_epoch", "after_test_epoch"), ("metrics",))},
        {},
    ),
    "SyncBuffersHook": ({}, dict.fromkeys(("before_val_epoch", "after_train_epoch"), ("model",))),
}
"""The slots that MMEngine's own hooks read and write, and classes that are derived from them."""


def has_base(kind: object, is_base: Callable[[type], bool]) -> bool:
    """Say whether something is a class derived from one of a framework, which is not imported for that."""
    if not issubclass(type(kind), type):  # past what an object says of its class, which may raise
        return False
    return any(map(is_base, type.__getattribute__(kind, "__mro__")[1:]))


def module_of(kind: type) -> str:
    """Return the name of the module of a class; empty where it has taken that away."""
    return str(type.__getattribute__(kind, "__module__") or "")


def as_method(call: Callable[..., None], point: str, offers: Sequence[str]) -> Callable[..., None]:
    """Return a function of a hook, the run and what a point offers, with the name and the signature of a method."""
    parameters = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in ("self", "run", *offers)]
    call.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    call.__name__ = call.__qualname__ = point
    return call


def is_hook(kind: object) -> bool:
    """Say whether something is a hook class of MMEngine, without importing MMEngine."""
    return has_base(kind, _is_base)


def _is_base(kind: type) -> bool:
    return type.__getattribute__(kind, "__name__") == "Hook" and module_of(kind).startswith("mmengine.")


def find(use: str, where: Where | None) -> type:
    """Return the hook of MMEngine's registry that `use` names. Raises UserError where there is none."""
    if problem := missing_package(f'use = "{use}"', "mmengine", "mmengine", where):
        raise UserError(problem)
    import mmengine.hooks
    from mmengine.registry import HOOKS

    name = use.partition(":")[2]
    result = getattr(mmengine.hooks, name, None) or HOOKS.get(name)
    if not is_hook(result):
        known = [*mmengine.hooks.__all__, *HOOKS.module_dict]
        raise UserError(Problem(f'MMEngine has no hook "{name}"', where, nearest(name, known)))
    return result  # type: ignore[no-any-return]


def adapted(kind: type, where: Where | None) -> type[Hook]:
    """Return a class of hookflow's hooks that calls a hook of MMEngine. Raises UserError for some of MMEngine's own."""
    package = module_of(kind).partition(".")[0]
    if hint := INSTEAD.get(f"{package}.{kind.__name__}"):
        owner = {"mmengine": "MMEngine"}.get(package, package)
        raise UserError(Problem(f"{owner}'s {kind.__name__} needs MMEngine's Runner", where, hint))
    from mmengine.runner.priority import get_priority

    methods = {name: _method(name) for name in _stages(kind)}
    level = get_priority(kind.priority)  # type: ignore[attr-defined]
    phase = next(phase for most, phase in PHASES if level <= most)
    own = {"level": level, "phase": phase, **slots_of(kind, "mmengine.", SLOTS, methods, OFFERED)}
    return hook_class(MMEngineHook, kind, {**own, **methods})


def hook_class(base: type[Hook], kind: type, members: Mapping[str, Any]) -> type[Hook]:
    """Return a class derived from `base`, whose hooks call objects of the class `kind`, and which looks like that."""
    facts = {"__doc__": kind.__doc__, "__module__": kind.__module__, "__signature__": inspect.signature(kind)}
    facts["writes_outside"] = _writes_outside(kind)
    return type(kind.__name__, (base,), {**facts, "kind": kind, **members})


WITH_KNOWN_WRITES = ("mmengine.", "lightning.", "pytorch_lightning.")
"""The packages whose classes `WRITES_OUTSIDE` names."""

WRITES_OUTSIDE: Mapping[str, tuple[str, ...] | bool] = {
    "ModelCheckpoint": ("dirpath",),
    "OnExceptionCheckpoint": True,
    "ProfilerHook": ("json_trace_path", "on_trace_ready"),
    "SpikeDetection": ("exclude_batches_path",),
}
"""What classes of MMEngine and Lightning write outside the run directory, as `Hook.writes_outside` says it."""


def _writes_outside(kind: type) -> Any:
    """Return what a class, or the nearest of its bases that is known, writes outside the run directory."""
    for base in kind.__mro__:
        if "writes_outside" in vars(base):
            return vars(base)["writes_outside"]
        if base.__name__ in WRITES_OUTSIDE and base.__module__.startswith(WITH_KNOWN_WRITES):
            return WRITES_OUTSIDE[base.__name__]
    return ()


def slots_of(
    kind: type,
    package: str | tuple[str, ...],
    known: Mapping[str, tuple[ByPoint, ByPoint]],
    points: Collection[str],
    offered: ByPoint,
) -> dict[str, Slots]:
    """Return the slots that an adapted class reads and writes: those `offered` to any, and those `known` of its base.

    The base is a class of the framework's own `package`.
    """
    own = (base.__name__ for base in kind.__mro__ if module_of(base).startswith(package))
    reads, writes = next((known[name] for name in own if name in known), ({}, {}))
    every = {point: (*reads.get(point, ()), *offered.get(point, ())) for point in points}
    return {"reads": {point: slots for point, slots in every.items() if slots}, "writes": writes}


def with_priorities(nodes: Nodes, hooks: Mapping[str, Any]) -> dict[str, Node]:
    """Return the nodes with an edge from each hook of MMEngine to each of a greater number.

    At a point where stated edges put the two the other way round, directly or by way of others, there is none.
    """
    levels = {name: hook.level for name, hook in hooks.items() if is_adapted(hook, MMEngineHook)}
    result = dict(nodes)
    if not levels:
        return result
    points = {name: {(bound.point, bound.half) for bound in node.bound} for name, node in nodes.items()}
    followers = {place: _followers(nodes, points, place) for name in levels for place in points[name]}
    for name, level in levels.items():
        where = Where(f"priority {level}")
        edges: list[EdgeSpec] = []
        for other, its_level in levels.items():
            if its_level >= level:
                continue
            shared = points[name] & points[other]
            stated = {place for place in shared if other in followers[place].get(name, ())}
            if not stated:
                edges.append(EdgeSpec(other, False, "class", where))
            else:
                edges += (EdgeSpec(other, False, "class", where, place) for place in sorted(shared - stated))
        result[name] = replace(nodes[name], after=(*nodes[name].after, *edges))
    return result


def _followers(
    nodes: Nodes, points: Mapping[str, Collection[tuple[str, Half]]], place: tuple[str, Half]
) -> dict[str, set[str]]:
    """Return, for each hook at a point, the hooks that stated edges put after it there, directly or by others."""
    import networkx as nx  # which a training without hooks of MMEngine does without

    graph = nx.DiGraph()
    graph.add_nodes_from(name for name, places in points.items() if place in places)
    for name in [*graph]:
        for spec in nodes[name].after:
            if spec.hook in graph and spec.at in (None, place):
                graph.add_edge(spec.hook, name)
        for spec in nodes[name].before:
            if spec.hook in graph and spec.at in (None, place):
                graph.add_edge(name, spec.hook)
    return {name: nx.descendants(graph, name) for name in graph}


def is_adapted(hook: object, base: type[Hook]) -> bool:
    """Say whether something is a class that a framework's `adapted` has derived from its `base`."""
    return issubclass(type(hook), type) and issubclass(hook, base)  # type: ignore[arg-type]


def _stages(kind: type) -> list[str]:
    """Return the points at which a hook has something to do."""
    from mmengine.hooks import Hook as Base

    own = {*Base.get_triggered_stages(kind)}  # which takes a class as well
    own |= {outer for inner, outer in LOOP.items() if inner in own}  # where the iteration-based loop fires it
    if "before_train_epoch" in own:
        own.add("after_load_checkpoint")
    return [name for name in STAGES if name in own]


LOOP = {"before_train_epoch": "before_train", "after_train_epoch": "after_train"}
"""The points of an epoch that MMEngine's iteration-based loop fires once: at the ends of the training."""


def _method(stage: str) -> Callable[..., None]:
    def method(self: MMEngineHook, run: Run, *offered: Any) -> None:
        self.call(stage, Runner.shared(run), dict(zip(STAGES[stage], offered, strict=True)))

    return as_method(method, stage, [*STAGES[stage].values()])


class MMEngineHook(Hook):
    """A hook of MMEngine. A checkpoint has its numbers and tensors, and the scalars of the message hub."""

    offload_blocker = "it is a hook of MMEngine, whose runner shows all of the run"
    """Why no other thread can call the hook."""
    kind: ClassVar[type]
    level: ClassVar[int]
    """The priority: hooks of a lower one fire earlier."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.hook = self.kind(*map(_as_config, args), **{name: _as_config(value) for name, value in kwargs.items()})
        self._initial = deepcopy(numbers_of(vars(self.hook)))
        self._runner: Callable[[], Runner] | None = None
        """Returns the runner, which all hooks share: what changes in it is no change of this hook."""
        self._saved: Mapping[str, Any] | None = None
        """The state that has been loaded, until the runner of this run is known."""

    def call(self, stage: str, runner: Runner, offered: dict[str, Any]) -> None:
        """Call the hook's method, in the modes and with the counters of MMEngine's Runner."""
        import torch

        if self._runner is None:
            self._runner = runner.itself
            runner.keeper = runner.keeper or id(self)
            if self._saved is not None:
                runner.resume(self._saved["hub"])
                self._saved = None
        if stage in LOOP and runner.by_iterations:
            return
        if stage == "after_train" and runner.by_iterations:
            self._call("after_train_epoch", runner, {})
        with torch.set_grad_enabled(torch.is_grad_enabled() or not stage.endswith("_iter")):
            self._call(stage, runner, offered)
        if stage == "before_train" and runner.by_iterations:
            self._call("before_train_epoch", runner, {})

    def _call(self, stage: str, runner: Runner, offered: dict[str, Any]) -> None:
        if "outputs" in offered:
            offered["outputs"] = (numbers if "train" in stage else samples)(offered["outputs"])
        if "batch_idx" in offered and "train" in stage and runner.by_iterations:
            offered["batch_idx"] = runner.run.iter - (stage == "after_train_iter")
        if "checkpoint" in offered:
            offered["checkpoint"] = Checkpoint(offered["checkpoint"])
            runner.resumes = "position" in offered["checkpoint"].state
        with runner.at(stage):
            getattr(self.hook, stage)(runner, **offered)
        if stage == "after_load_checkpoint" and runner.resumes and not runner.by_iterations:
            self._begin_epochs(runner, offered["checkpoint"].state["position"])

    def _begin_epochs(self, runner: Runner, position: Mapping[str, Any]) -> None:
        """Show the hook the beginning of each epoch that has begun, before the state of the checkpoint is loaded.

        No checkpoint has what hooks set there: a pipeline of the dataset, attributes of modules that are no tensors.
        """
        for epoch in range(position["epoch"] + (position["batch_idx"] > 0)):
            with runner.at("before_train_epoch", epoch):
                self.hook.before_train_epoch(runner)

    def state_dict(self) -> dict[str, Any]:
        runner = self._runner and self._runner()
        hub = runner.hub_state() if runner and runner.keeper == id(self) else None
        if runner is None and self._saved is not None:
            hub = self._saved["hub"]
        return {"numbers": changed(numbers_of(vars(self.hook)), self._initial), "hub": hub}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        vars(self.hook).update(state["numbers"])
        if self._runner is None:
            self._saved = state
        else:
            self._runner().resume(state["hub"])


def _as_config(value: Any) -> Any:
    """Return an argument as MMEngine's Config has it: tables with attributes, and numbers as keys if all look so."""
    from mmengine.config import ConfigDict

    if isinstance(value, list):
        return [_as_config(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    whole = all(str(key).isdigit() for key in value)
    return ConfigDict({int(key) if whole else key: _as_config(item) for key, item in value.items()})
