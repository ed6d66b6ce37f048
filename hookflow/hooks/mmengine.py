"""Hooks of MMEngine, unmodified: each is called as MMEngine's Runner calls it, with a runner that is a view of the run.

`use = "mmengine:EMAHook"` names a hook of MMEngine's registry; any other class with `mmengine.hooks.Hook` among its
bases is adapted likewise. Source: `mmengine.hooks.Hook` and `mmengine.runner.loops`, version 0.10.
"""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import replace
from functools import cached_property
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakValueDictionary

import tomli

from hookflow.errors import Problem, UserError, Where
from hookflow.events.records import Level
from hookflow.events.rundir import RunDir
from hookflow.graph.plan import EdgeSpec, Node, Nodes, Phase
from hookflow.hooks.base import Hook
from hookflow.pipeline.registry import missing_package

if TYPE_CHECKING:
    from hookflow.hooks.run import Run

PREFIX = "mmengine:"

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
FAN_OUTS = ("_before_epoch", "_after_epoch", "_before_iter", "_after_iter")
"""Methods that the ones of training, validation and test call."""

PRIORITIES = {
    "HIGHEST": 0,
    "VERY_HIGH": 10,
    "HIGH": 30,
    "ABOVE_NORMAL": 40,
    "NORMAL": 50,
    "BELOW_NORMAL": 60,
    "LOW": 70,
    "VERY_LOW": 90,
    "LOWEST": 100,
}
PHASES: tuple[tuple[int, Phase], ...] = ((20, "first"), (45, "early"), (55, "normal"), (80, "late"), (100, "last"))
"""The greatest priority of each phase."""

INSTEAD: Mapping[str, str] = {
    "CheckpointHook": 'use = "checkpoint"',
    "LoggerHook": 'use = "log", and [writers.NAME] for TensorBoard and others',
    "ParamSchedulerHook": 'use = "scheduler"',
    "NaiveVisualizationHook": 'use = "images"',
    "PrepareTTAHook": 'use = "tta"',
    "NPUProfilerHook": 'use = "profiler"',
}
"""Hooks of MMEngine's own that need parts of its Runner, with hookflow's that do their work."""


def has_base(kind: object, is_base: Callable[[type], bool]) -> bool:
    """Say whether something is a class derived from one of a framework, which is not imported for that."""
    if not issubclass(type(kind), type):  # past what an object says of its class, which may raise
        return False
    return any(map(is_base, type.__getattribute__(kind, "__mro__")[1:]))


def as_method(call: Callable[..., None], point: str, offers: Sequence[str]) -> Callable[..., None]:
    """Return a function of a hook, the run and what a point offers, with the name and the signature of a method."""
    parameters = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in ("self", "run", *offers)]
    call.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    call.__name__ = call.__qualname__ = point
    return call


def is_mmengine(kind: object) -> bool:
    """Say whether something is a hook class of MMEngine, without importing MMEngine."""
    return has_base(kind, _is_base)


def _is_base(kind: type) -> bool:
    name, module = (type.__getattribute__(kind, key) for key in ("__name__", "__module__"))
    return name == "Hook" and str(module).startswith("mmengine.")


def find(use: str, where: Where | None) -> type:
    """Return the hook of MMEngine's registry that `use` names. Raises UserError where there is none."""
    from hookflow.errors import nearest

    if problem := missing_package(f'use = "{use}"', "mmengine", "mmengine", where):
        raise UserError(problem)
    import mmengine.hooks
    from mmengine.registry import HOOKS

    name = use.removeprefix(PREFIX)
    result = getattr(mmengine.hooks, name, None) or HOOKS.get(name)
    if not is_mmengine(result):
        known = [*mmengine.hooks.__all__, *HOOKS.module_dict]
        raise UserError(Problem(f'MMEngine has no hook "{name}"', where, nearest(name, known)))
    return result  # type: ignore[no-any-return]


def adapted(kind: type, where: Where | None) -> type[Hook]:
    """Return a class of hookflow's hooks that calls a hook of MMEngine. Raises UserError for some of MMEngine's own."""
    if kind.__module__.startswith("mmengine.") and kind.__name__ in INSTEAD:
        message = f"MMEngine's {kind.__name__} needs MMEngine's Runner"
        raise UserError(Problem(message, where, INSTEAD[kind.__name__]))
    methods = {name: _method(name) for name in _stages(kind)}
    priority = getattr(kind, "priority", "NORMAL")
    level = PRIORITIES[priority] if isinstance(priority, str) else int(priority)
    phase = next(phase for most, phase in PHASES if level <= most)
    facts = {"__doc__": kind.__doc__, "__module__": kind.__module__, "__signature__": inspect.signature(kind)}
    return type(kind.__name__, (MMEngineHook,), {**facts, "kind": kind, "level": level, "phase": phase, **methods})


def with_priorities(nodes: Nodes, hooks: Mapping[str, Any]) -> dict[str, Node]:
    """Return the nodes with an edge from each hook of MMEngine to each of a greater number, unless the file has one."""
    levels = {name: hook.level for name, hook in hooks.items() if is_adapted(hook)}
    result = dict(nodes)
    for name, level in levels.items():
        node = nodes[name]
        stated = {edge.hook for edge in (*node.after, *node.before)}
        where = Where(f"priority {level}")
        earlier = [other for other, its in levels.items() if its < level and other not in stated]
        edges = (EdgeSpec(other, False, "class", where) for other in earlier)
        result[name] = replace(node, after=(*node.after, *edges))
    return result


def is_adapted(hook: object, base: type | None = None) -> bool:
    """Say whether a class is what `adapted` has made; with the `base` of another framework, what that one's has."""
    return issubclass(type(hook), type) and issubclass(hook, base or MMEngineHook)  # type: ignore[arg-type]


def _stages(kind: type) -> Iterator[str]:
    """Yield the points at which a hook has something to do."""
    own = {name for base in kind.__mro__ if not _is_base(base) and base is not object for name in vars(base)}
    stages = [name for name in STAGES if name in own]
    for fan_out in FAN_OUTS:
        when, what = fan_out.removeprefix("_").split("_")
        stages += [f"{when}_{split}_{what}" for split in ("train", "val", "test") if fan_out in own]
    for inner, outer in LOOP.items():
        if inner in stages:
            stages.append(outer)  # where MMEngine's iteration-based loop fires it
    yield from dict.fromkeys(stages)


LOOP = {"before_train_epoch": "before_train", "after_train_epoch": "after_train"}
"""The points of an epoch that MMEngine's iteration-based loop fires once: at the ends of the training."""


def _method(stage: str) -> Callable[..., None]:
    def method(self: MMEngineHook, run: Run, *offered: Any) -> None:
        self.call(stage, Runner.of(run), dict(zip(STAGES[stage], offered, strict=True)))

    return as_method(method, stage, [*STAGES[stage].values()])


class MMEngineHook(Hook):
    """A hook of MMEngine. A checkpoint has its numbers and tensors, and the scalars of the message hub."""

    kind: ClassVar[type]
    level: ClassVar[int]
    """The priority: hooks of a lower one fire earlier."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.hook = self.kind(*args, **kwargs)
        self._runner: Runner | None = None
        self._saved: Mapping[str, Any] | None = None
        """The state of the message hub, until the runner of this run is known."""

    def call(self, stage: str, runner: Runner, offered: dict[str, Any]) -> None:
        """Call the hook's method, in the modes and with the counters of MMEngine's Runner."""
        import torch

        self._runner = runner
        if self._saved is not None:
            runner.load_hub(self._saved)
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
            offered["outputs"] = numbers(offered["outputs"]) if "train" in stage else [offered["outputs"]]
        if "batch_idx" in offered and "train" in stage and runner.by_iterations:
            offered["batch_idx"] = runner.run.iter - (stage == "after_train_iter")
        if "checkpoint" in offered:
            offered["checkpoint"] = Checkpoint(offered["checkpoint"])
            runner.resumes = "position" in offered["checkpoint"].state
        runner.stage = stage
        try:
            getattr(self.hook, stage)(runner, **offered)
        finally:
            runner.stage = ""

    def state_dict(self) -> dict[str, Any]:
        hub = self._saved or (self._runner.hub_state() if self._runner and self._runner.first_hook(self) else None)
        return {"numbers": numbers_of(vars(self.hook)), "hub": hub}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        vars(self.hook).update(state["numbers"])
        self._saved = state["hub"]


def numbers_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers and tensors among some values; NumPy's numbers as Python's, which a checkpoint can have."""
    import numpy as np
    import torch

    python = {name: value.item() if isinstance(value, np.generic) else value for name, value in values.items()}
    return {name: value for name, value in python.items() if type(value) in (bool, int, float, torch.Tensor)}


def numbers(outputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the single numbers among the outputs of a step, as MMEngine's `log_vars`."""
    import torch

    detached = {name: v.detach() if isinstance(v, torch.Tensor) else v for name, v in outputs.items()}
    return {
        name: v
        for name, v in detached.items()
        if isinstance(v, torch.Tensor | int | float) and not getattr(v, "ndim", 0)
    }


class Checkpoint(MutableMapping[str, Any]):
    """The state of a checkpoint by MMEngine's keys: `state_dict`, `optimizer`, `meta`; others are kept beside them."""

    KEYS: ClassVar[Mapping[str, str]] = {"state_dict": "model", "optimizer": "optimizer"}
    SECTION: ClassVar[str] = "mmengine"

    def __init__(self, state: dict[str, Any]) -> None:
        self.state = state
        position = state.get("position", {})
        self._meta = {"epoch": position.get("epoch", 0), "iter": position.get("iter", 0)}
        more = state.setdefault(self.SECTION, {}) if position else state.get(self.SECTION, {})
        self._more: dict[str, Any] = more

    def __getitem__(self, key: str) -> Any:
        if key == "meta":
            return self._meta
        return self.state[self.KEYS[key]] if key in self.KEYS else self._more[key]

    def __setitem__(self, key: str, value: Any) -> None:
        if key in self.KEYS:
            self.state[self.KEYS[key]] = value
        else:
            self._more[key] = value

    def __delitem__(self, key: str) -> None:
        del self._more[key]

    def __iter__(self) -> Iterator[str]:
        return iter([*(key for key, ours in self.KEYS.items() if ours in self.state), "meta", *self._more])

    def __len__(self) -> int:
        return len([*self])


class DataLoader:
    """The data of a split, as MMEngine's hooks use a dataloader."""

    def __init__(self, source: Any) -> None:
        self._source = source
        self.batch_size = source.info["batch_size"] or None
        self.dataset = getattr(source, "dataset", source)

    def __len__(self) -> int:
        return len(self._source)

    def __getattr__(self, name: str) -> Any:
        owners = (self._source, getattr(self._source, "loader", None))
        for owner in owners if name in ("sampler", "collate_fn", "num_workers") else ():
            if hasattr(owner, name):
                return getattr(owner, name)
        raise AttributeError(f"hookflow's view of a dataloader of MMEngine has no {name}")


class Loop:
    """The loop of a split: of training, with what stops it."""

    def __init__(self, runner: Runner, split: str) -> None:
        self._runner, self._split = runner, split

    @property
    def dataloader(self) -> DataLoader:
        return self._runner.dataloader(self._split)

    @property
    def stop_training(self) -> bool:
        return self._runner.stopped

    @stop_training.setter
    def stop_training(self, stop: bool) -> None:
        if stop and not self._runner.stopped:
            self._runner.run.stop("a hook of MMEngine has set train_loop.stop_training")
        self._runner.stopped = self._runner.stopped or stop

    def __getattr__(self, name: str) -> Any:
        if self._split == "train" and name in ("iter", "epoch", "max_iters", "max_epochs"):
            return getattr(self._runner, name)
        raise AttributeError(f"hookflow's view of a loop of MMEngine has no {name}")


class Messages(logging.Handler):
    """Passes what hooks log on to the messages of the run."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._run = run

    def emit(self, record: logging.LogRecord) -> None:
        level: Level = "info" if record.levelno < logging.WARNING else "warn"
        if record.levelno >= logging.ERROR:
            level = "error"
        self._run.say(record.getMessage(), level)


class Visualizer:
    """The methods of MMEngine's visualizer that log something."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.dataset_meta: Any = None

    def add_scalar(self, name: str, value: Any, step: int = 0, **_: Any) -> None:
        self._run.log(name, value)

    def add_scalars(self, scalar_dict: Mapping[str, Any], step: int = 0, **_: Any) -> None:
        for name, value in scalar_dict.items():
            self._run.log(name, value)

    def add_image(self, name: str, image: Any, step: int = 0, **_: Any) -> None:
        self._run.log_image(name, image)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"hookflow's view of MMEngine's visualizer has no {name}")


RUNNERS: WeakValueDictionary[int, Runner] = WeakValueDictionary()
"""The runner of each run, by its identity: the hooks of the run share it, and keep it alive."""


class Runner:
    """A run as MMEngine's Runner shows it to hooks. Counters step after the hooks have fired, as there."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.stage = ""
        self.stopped = self.resumes = False
        self.model = run.model
        self.work_dir = self.log_dir = self._log_dir = str(run.dir)
        self.timestamp = time.strftime("%Y%m%d_%H%M%S")
        self.experiment_name = run.dir.name
        self.rank, self.world_size, self.distributed = run.rank, run.world, run.world > 1
        self.visualizer = Visualizer(run)
        self.train_loop, self.val_loop, self.test_loop = (Loop(self, split) for split in ("train", "val", "test"))
        self._train_loop = self.train_loop
        self.param_schedulers: list[Any] = []
        self.hooks = [hook.hook for hook in run.hooks.values() if isinstance(hook, MMEngineHook)]

    @classmethod
    def of(cls, run: Run) -> Runner:
        """Return the runner of a run."""
        known = RUNNERS.get(id(run))
        return known if known is not None else RUNNERS.setdefault(id(run), cls(run))

    @property
    def by_iterations(self) -> bool:
        """Whether the run is one of MMEngine's iteration-based loop."""
        return self.run.max_epochs is None

    @property
    def iter(self) -> int:
        return self.run.iter - (self.stage == "after_train_iter")

    @property
    def epoch(self) -> int:
        return 0 if self.by_iterations else self.run.epoch - (self.stage == "after_train_epoch")

    @property
    def max_iters(self) -> int:
        return self.run.max_iters

    @property
    def max_epochs(self) -> int:
        return self.run.max_epochs or 1

    @property
    def _resume(self) -> bool:
        return self.resumes

    def dataloader(self, split: str) -> DataLoader:
        return DataLoader(self.run.data[split])

    train_dataloader = property(lambda self: self.dataloader("train"))
    val_dataloader = property(lambda self: self.dataloader("val"))
    test_dataloader = property(lambda self: self.dataloader("test"))

    @cached_property
    def logger(self) -> logging.Logger:
        logger = logging.Logger("mmengine")
        logger.addHandler(Messages(self.run))
        return logger

    @cached_property
    def optim_wrapper(self) -> Any:
        """MMEngine's own wrapper of the optimizer, to be read: `param_groups`, `get_lr()`."""
        from mmengine.optim import OptimWrapper

        return OptimWrapper(self.run.optimizer)

    @cached_property
    def cfg(self) -> Any:
        """The pipeline as MMEngine's Config."""
        from mmengine.config import Config

        return Config(tomli.loads(RunDir(self.run.dir).pipeline.read_text("utf-8")))

    @property
    def seed(self) -> int:
        return int(self.cfg.run.seed)

    @cached_property
    def message_hub(self) -> Any:
        from mmengine.logging import MessageHub

        return MessageHub.get_instance(f"hookflow {self.run.dir.name}")

    def first_hook(self, hook: MMEngineHook) -> bool:
        return self.hooks[:1] == [hook.hook]

    def hub_state(self) -> dict[str, Any]:
        """Return the scalars of the message hub, float64 and int64 (count,), and the numbers of its information."""
        import torch

        hub = self.message_hub
        columns = {name: buffer.data for name, buffer in hub.log_scalars.items()}
        scalars = {name: [torch.from_numpy(column.copy()) for column in data] for name, data in columns.items()}
        return {"scalars": scalars, "infos": numbers_of(hub.runtime_info)}

    def load_hub(self, state: Mapping[str, Any]) -> None:
        from mmengine.logging import HistoryBuffer

        for name, (values, counts) in state["scalars"].items():
            self.message_hub.log_scalars[name] = HistoryBuffer(values.numpy(), counts.numpy())
        self.message_hub.runtime_info.update(state["infos"])

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"hookflow's view of MMEngine's Runner has no {name}")
