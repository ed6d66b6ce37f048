"""Callbacks of Lightning, unmodified: each is called as Lightning's Trainer does it, with a trainer that views the run.

`use = "lightning:EarlyStopping"` names a callback of Lightning's own; any other class with Lightning's `Callback` among
its bases is adapted likewise. Source: `lightning.pytorch.callbacks` and `lightning.pytorch.loops`, version 2.6.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakValueDictionary

import tomli

from hookflow.errors import Problem, UserError, Where, nearest
from hookflow.events.rundir import RunDir
from hookflow.hooks.base import Hook
from hookflow.hooks.mmengine import Checkpoint as MMEngineCheckpoint
from hookflow.hooks.mmengine import as_method, has_base, numbers_of
from hookflow.pipeline.registry import missing_package

if TYPE_CHECKING:
    import torch

    from hookflow.hooks.run import Run

PREFIX = "lightning:"
PACKAGES = ("pytorch_lightning", "lightning.pytorch")

BATCH = ("batch", "batch_idx")
OUTPUTS = ("outputs", *BATCH)


def _evaluation(ours: str, theirs: str) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    return {
        f"before_{ours}": ((f"on_{theirs}_start",), ()),
        f"before_{ours}_epoch": ((f"on_{theirs}_epoch_start",), ()),
        f"before_{ours}_iter": ((f"on_{theirs}_batch_start",), BATCH),
        f"after_{ours}_iter": ((f"on_{theirs}_batch_end",), OUTPUTS),
        f"after_{ours}_epoch": ((f"on_{theirs}_epoch_end",), ()),
        f"after_{ours}": ((f"on_{theirs}_end",), ()),
    }


CALLS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "before_run": (("setup",), ()),
    "before_train": (("on_fit_start", "on_train_start"), ()),
    "before_train_epoch": (("on_train_epoch_start",), ()),
    "before_train_iter": (("on_train_batch_start",), BATCH),
    "before_backward": (("on_before_backward",), ("outputs",)),
    "after_backward": (("on_after_backward",), ()),
    "before_optimizer_step": (("on_before_optimizer_step",), ()),
    "after_train_iter": (("on_train_batch_end",), OUTPUTS),
    "after_train_epoch": ((), ()),
    "after_train": (("on_train_end", "on_fit_end"), ()),
    **_evaluation("val", "validation"),
    **_evaluation("test", "test"),
    "before_test": (("setup", "on_test_start"), ()),
    "after_test": (("on_test_end", "teardown"), ()),
    "before_save_checkpoint": (("on_save_checkpoint",), ("checkpoint",)),
    "after_load_checkpoint": (("on_load_checkpoint",), ("checkpoint",)),
    "on_exception": (("on_exception",), ("exception",)),
    "after_run": (("teardown",), ()),
}
"""By point of hookflow: the methods of Lightning that are called there, and what the point offers them."""
EPOCH_END = "on_train_epoch_end"
"""Lightning calls it after the validation of the epoch: see `LightningHook`."""
ENDS_EPOCH = ("after_train_epoch", "after_val", "before_train_epoch", "after_train")

INSTEAD: Mapping[str, str] = {
    "GradientAccumulationScheduler": 'use = "accumulation_schedule"',
    "StochasticWeightAveraging": 'use = "swa"',
    "LearningRateFinder": 'use = "lr_finder"',
    "BatchSizeFinder": "set loader.batch_size",
    "ModelPruning": 'use = "prune"',
    "BasePredictionWriter": 'use = "predict"',
    **dict.fromkeys(("BaseFinetuning", "BackboneFinetuning"), 'use = "freeze"'),
    **dict.fromkeys(("ModelSummary", "RichModelSummary"), "hookflow run FILE --dry-run shows the table of layers"),
    **dict.fromkeys(("ProgressBar", "TQDMProgressBar", "RichProgressBar"), "the dashboard shows the progress"),
}
"""Callbacks of Lightning's own that need parts of its Trainer, with what does their work here."""


def is_lightning(kind: object) -> bool:
    """Say whether something is a callback class of Lightning, without importing Lightning."""
    return has_base(kind, _is_base)


def _is_base(kind: type) -> bool:
    name, module = (str(type.__getattribute__(kind, key)) for key in ("__name__", "__module__"))
    return name == "Callback" and module.startswith(tuple(f"{package}." for package in PACKAGES))


def find(use: str, where: Where | None) -> type:
    """Return the callback of Lightning that `use` names. Raises UserError where there is none."""
    package = next((each for each in PACKAGES if find_spec(each.partition(".")[0])), None)
    if package is None and (problem := missing_package(f'use = "{use}"', PACKAGES[0], "lightning", where)):
        raise UserError(problem)
    callbacks, name = import_module(f"{package}.callbacks"), use.removeprefix(PREFIX)
    result = getattr(callbacks, name, None) or _spike_detection(package, name)
    if not is_lightning(result):
        raise UserError(Problem(f'Lightning has no callback "{name}"', where, nearest(name, callbacks.__all__)))
    return result  # type: ignore[no-any-return]


def _spike_detection(package: str | None, name: str) -> Any:
    """Return the one callback that Lightning does not list."""
    return import_module(f"{package}.callbacks.spike").SpikeDetection if name == "SpikeDetection" else None


def adapted(kind: type, where: Where | None) -> type[Hook]:
    """Return a class of hookflow's hooks that calls a callback of Lightning. Raises UserError for some of its own."""
    if kind.__module__.startswith(PACKAGES) and kind.__name__ in INSTEAD:
        raise UserError(Problem(f"{kind.__name__} needs Lightning's Trainer", where, INSTEAD[kind.__name__]))
    if "on_before_zero_grad" in _own(kind):
        hint = "gradients are cleared before the forward pass: on_train_batch_end is the last method before that"
        raise UserError(Problem(f"{kind.__name__}.on_before_zero_grad has no point here", where, hint))
    methods = {point: _method(point) for point in _points(kind)}
    facts = {"__doc__": kind.__doc__, "__module__": kind.__module__, "__signature__": inspect.signature(kind)}
    return type(kind.__name__, (LightningHook,), {**facts, "kind": kind, **methods})


def _own(kind: type) -> set[str]:
    return {name for base in kind.__mro__ if not _is_base(base) and base is not object for name in vars(base)}


def _points(kind: type) -> Iterator[str]:
    """Yield the points at which a callback has something to do, and those that the trainer counts by."""
    own = _own(kind)
    if kind.__name__ == "LambdaCallback":  # its methods are arguments
        own |= {EPOCH_END, *(name for names, _ in CALLS.values() for name in names)}
    for point, (names, _) in CALLS.items():
        always = point in ("before_run", "before_train_epoch", "after_train_epoch", "on_exception")
        if always or own & {*names} or (EPOCH_END in own and point in ENDS_EPOCH):
            yield point


def _method(point: str) -> Callable[..., None]:
    _, names = CALLS[point]

    def method(self: LightningHook, run: Run, *offered: Any) -> None:
        self.call(point, Trainer.of(run), dict(zip(names, offered, strict=True)))

    return as_method(method, point, names)


class LightningHook(Hook):
    """A callback of Lightning. A checkpoint has its `state_dict()`, and the numbers and tensors that have changed.

    Lightning validates within the epoch, hookflow behind it: so `on_train_epoch_end` waits for the validation, or for
    what comes next, where none follows.
    """

    kind: ClassVar[type]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        from hookflow.hooks.arguments import with_functions  # loads pydantic, which `hookflow --help` does without

        self.callback: Any = self.kind(*map(with_functions, args), **with_functions(kwargs))
        if type(self.callback).__name__ == "SpikeDetection":  # its load_state_dict() has the wrong name
            self.callback.running = self.callback.running_mean
        self._initial = numbers_of(vars(self.callback))
        self._epoch_ends = False
        """Whether `on_train_epoch_end` is still to be called."""
        self._trainer: Trainer | None = None

    def call(self, point: str, trainer: Trainer, offered: dict[str, Any]) -> None:
        """Call what Lightning calls at this point of hookflow."""
        self._trainer = trainer
        trainer.at(point)
        if point == "on_exception":
            trainer.has_raised = True
        if point == "after_run" and trainer.has_raised:
            return  # as Lightning does
        if point in ("before_train_epoch", "after_train"):
            self._end_epoch(trainer)
            trainer.at(point)
            trainer.epoch_is_over = False
        for name in CALLS[point][0]:
            getattr(self.callback, name)(trainer, trainer.lightning_module, *self._arguments(name, trainer, offered))
        if point == "after_load_checkpoint":
            offered["checkpoint"]["model"] = trainer.loaded
        if point == "after_train_epoch":
            self._epoch_ends = trainer.epoch_is_over = True
        if point == "after_val" or (point == "after_train_epoch" and not trainer.enable_validation):
            self._end_epoch(trainer)

    def _end_epoch(self, trainer: Trainer) -> None:
        if self._epoch_ends:
            self._epoch_ends = False
            trainer.at("after_train_epoch")
            self.callback.on_train_epoch_end(trainer, trainer.lightning_module)

    def _arguments(self, name: str, trainer: Trainer, offered: dict[str, Any]) -> list[Any]:
        match name:
            case "setup" | "teardown":
                return ["test" if trainer.testing else "fit"]
            case "on_before_backward":
                return [offered["outputs"]["loss"]]
            case "on_before_optimizer_step":
                return [trainer.optimizers[0]]
            case "on_save_checkpoint":
                return [Checkpoint(offered["checkpoint"])]
            case "on_load_checkpoint":
                trainer.loaded = trainer.load(offered["checkpoint"]["model"])
                return [Checkpoint(offered["checkpoint"])]
        return [*offered.values()]

    def state_dict(self) -> dict[str, Any]:
        values = numbers_of(vars(self.callback))
        changed = {name: value for name, value in values.items() if not _same(value, self._initial.get(name))}
        return {"numbers": changed, "state": dict(self.callback.state_dict()), "epoch_ends": self._epoch_ends}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        vars(self.callback).update(state["numbers"])
        self._epoch_ends = state["epoch_ends"]
        if state["state"]:
            self.callback.load_state_dict(dict(state["state"]))


def _same(value: Any, other: Any) -> bool:
    return type(value) is type(other) and bool((value == other) if not hasattr(value, "equal") else value.equal(other))


class Checkpoint(MMEngineCheckpoint):
    """The state of a checkpoint by Lightning's keys; others are kept beside them."""

    KEYS: ClassVar[Mapping[str, str]] = {"state_dict": "model"}
    SECTION = "lightning"

    def __getitem__(self, key: str) -> Any:
        if key in ("epoch", "global_step"):
            return self._meta["epoch" if key == "epoch" else "iter"]
        return super().__getitem__(key)


class Logger:
    """Logs into the run."""

    group_separator = "/"

    def __init__(self, run: Run) -> None:
        self._run = run
        self.save_dir = self.log_dir = self.root_dir = str(run.dir)
        self.name, self.version = "", run.dir.name

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        for name, value in metrics.items():
            self._run.log(name, value)

    def after_save_checkpoint(self, checkpoint_callback: Any) -> None: ...

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"hookflow's view of Lightning's logger has no {name}")


class Strategy:
    """What processes do together."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.root_device = run.device

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:  # noqa: A002  # as in Lightning
        total = int(self._run.sum(float(decision)))
        return total == self._run.world if all else total > 0

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        import torch.distributed as dist

        objects = [obj]
        if self._run.world > 1:
            dist.broadcast_object_list(objects, src)
        return objects[0]

    def barrier(self, name: str | None = None) -> None:
        self._run.sum(0.0)

    def remove_checkpoint(self, filepath: str) -> None:
        if self._run.rank == 0:
            Path(filepath).unlink(missing_ok=True)


TRAINERS: WeakValueDictionary[int, Trainer] = WeakValueDictionary()
"""The trainer of each run, by its identity: the callbacks of the run share it, and keep it alive."""


class Trainer:
    """A run as Lightning's Trainer shows it to callbacks."""

    sanity_checking = fast_dev_run = False
    log_every_n_steps = 50
    accumulate_grad_batches = 1

    def __init__(self, run: Run) -> None:
        self.run = run
        self.epoch_is_over = False
        """Whether the epoch is counted, and Lightning would not yet have."""
        self.loaded: Any = None
        self._stops = self.has_raised = False
        self._point = "before_run"
        self._metrics: dict[str, torch.Tensor] = {}
        self.callbacks = [hook.callback for hook in run.hooks.values() if isinstance(hook, LightningHook)]
        self.default_root_dir = self.log_dir = str(run.dir)
        self.world_size, self.num_devices, self.num_nodes = run.world, run.world, 1
        self.global_rank = self.local_rank = run.rank
        self.is_global_zero = run.rank == 0
        self.loggers, self.strategy = [Logger(run)], Strategy(run)
        self.logger = self.loggers[0]
        self.lr_scheduler_configs: list[Any] = []
        self.ckpt_path = self.datamodule = None

    @classmethod
    def of(cls, run: Run) -> Trainer:
        """Return the trainer of a run."""
        known = TRAINERS.get(id(run))
        return known if known is not None else TRAINERS.setdefault(id(run), cls(run))

    def at(self, point: str) -> None:
        """Take the state of a point."""
        self._point = point

    @property
    def _stage(self) -> str:
        return next((name for key, name in STAGES.items() if f"_{key}" in self._point), "train")

    @property
    def state(self) -> Any:
        states = import_module(f"{self.package}.trainer.states")
        fn = states.TrainerFn.TESTING if self._stage == "test" else states.TrainerFn.FITTING
        return SimpleNamespace(fn=fn, stage=states.RunningStage(self._stage))

    training = property(lambda self: self._stage == "train")
    validating = property(lambda self: self._stage == "validate")
    testing = property(lambda self: self._stage == "test")

    @cached_property
    def package(self) -> str:
        """The package that the callbacks come from: both may be installed."""
        bases = (base.__module__ for callback in self.callbacks for base in type(callback).__mro__ if _is_base(base))
        return next((package for package in PACKAGES if next(bases, "").startswith(package)), PACKAGES[0])

    @cached_property
    def lightning_module(self) -> Any:
        return _module(import_module(self.package).LightningModule, self)

    model = property(lambda self: self.lightning_module)

    def load(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Load weights as Lightning has by the time of `on_load_checkpoint`; return the model's, which may change."""
        self.run.model.load_state_dict(state)
        return self.run.model.state_dict()

    @property
    def current_epoch(self) -> int:
        return self.run.epoch - self.epoch_is_over

    @property
    def global_step(self) -> int:
        return self.run.iter

    max_epochs = property(lambda self: self.run.max_epochs)
    max_steps = property(lambda self: self.run.max_iters)
    num_training_batches = property(lambda self: self.run.iters_per_epoch)
    optimizers = property(lambda self: [*self.run.optimizers.values()])
    train_dataloader = property(lambda self: self.run.data["train"].loader)
    val_dataloaders = property(lambda self: self.run.data["val"].loader)
    enable_validation = property(lambda self: "val" in self.run.data)

    @property
    def num_val_batches(self) -> list[int]:
        return [len(self.run.data["val"])] if self.enable_validation else []

    @property
    def should_stop(self) -> bool:
        return self._stops

    @should_stop.setter
    def should_stop(self, stop: bool) -> None:
        if stop and not self._stops:
            self.run.stop("a callback of Lightning has set trainer.should_stop")
        self._stops = self._stops or stop

    @property
    def callback_metrics(self) -> dict[str, torch.Tensor]:
        """The metrics of the latest validation, as `accuracy` and as `val_accuracy`, and what callbacks have added."""
        import torch

        for name, value in self.run.metrics.items():
            self._metrics[name] = self._metrics[f"val_{name}"] = torch.as_tensor(value)
        return self._metrics

    @cached_property
    def _intervals(self) -> tuple[int | None, float]:
        """The epochs between validations, and the share of an epoch or the iterations; see `run.val_every`."""
        run = tomli.loads(RunDir(self.run.dir).pipeline.read_text("utf-8"))["run"]
        every = f"{run.get('val_every', 1)}"
        number = float(every.rstrip("epitms") or 1)
        if every[-1:].isdigit() or every.endswith("ep"):
            return (int(number), 1.0) if number >= 1 else (1, number)
        return None, number

    check_val_every_n_epoch = property(lambda self: self._intervals[0])
    val_check_interval = property(lambda self: self._intervals[1])

    @property
    def _logger_connector(self) -> Any:
        due = (self.run.iter + (self._point != "after_train_iter")) % self.log_every_n_steps == 0
        due = due or not self.training or self.should_stop
        return SimpleNamespace(should_update_logs=due, log_metrics=self.logger.log_metrics)

    @property
    def fit_loop(self) -> Any:
        run = self.run
        progress = SimpleNamespace(is_last_batch=run.batch_idx + 1 == run.iters_per_epoch)
        loop = SimpleNamespace(
            _batches_that_stepped=run.iter,
            batch_progress=progress,
            val_loop=SimpleNamespace(_has_run=bool(run.metrics)),
        )
        return SimpleNamespace(epoch_loop=loop, total_batch_idx=run.iter - 1, _should_accumulate=lambda: False)

    @property
    def _evaluation_loop(self) -> Any:
        total = SimpleNamespace(ready=self.run.batch_idx + 1)
        return SimpleNamespace(batch_progress=SimpleNamespace(total=total))

    @cached_property
    def accelerator(self) -> Any:
        accelerators = import_module(f"{self.package}.accelerators")
        names = {"cuda": "CUDAAccelerator", "mps": "MPSAccelerator"}
        return getattr(accelerators, names.get(self.run.device.type, "CPUAccelerator"))()

    @cached_property
    def precision_plugin(self) -> Any:
        return import_module(f"{self.package}.plugins.precision").Precision()

    def save_checkpoint(self, filepath: Any, weights_only: bool | None = None, storage_options: Any = None) -> None:
        """Write a file with the keys of Lightning's checkpoints, in the training thread; of several ranks the first."""
        import torch

        module = self.lightning_module
        content: dict[str, Any] = {"epoch": self.current_epoch, "global_step": self.global_step}
        content |= {"pytorch-lightning_version": import_module(self.package).__version__}
        content |= {"state_dict": module.state_dict(), "loops": {}}
        if not weights_only:
            content["callbacks"] = {each.state_key: each.state_dict() for each in self.callbacks}
            content |= {"optimizer_states": [each.state_dict() for each in self.optimizers], "lr_schedulers": []}
        for callback in self.callbacks:
            callback.on_save_checkpoint(self, module, content)
        if self.is_global_zero:
            Path(filepath).parent.mkdir(parents=True, exist_ok=True)
            torch.save(content, filepath)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"hookflow's view of Lightning's Trainer has no {name}")


STAGES: Mapping[str, str] = {"train": "train", "val": "validate", "test": "test"}
"""What Lightning calls the stages, by what is in the names of points."""


def _module(base: type, trainer: Trainer) -> Any:
    """Return a LightningModule that shares parameters, buffers and modules with the run's model, under their names."""
    model, run = trainer.run.model, trainer.run
    inner = getattr(model, "module", model) if type(model).__name__ == "DistributedDataParallel" else model

    def log(self: Any, name: str, value: Any, *_: Any, **__: Any) -> None:
        run.log(name, value)

    def log_dict(self: Any, values: Mapping[str, Any], *_: Any, **__: Any) -> None:
        for name, value in values.items():
            run.log(name, value)

    def missing(self: Any, name: str) -> Any:
        try:
            return base.__getattr__(self, name)  # type: ignore[attr-defined]
        except AttributeError:
            return getattr(inner, name)

    methods = {"log": log, "log_dict": log_dict, "forward": lambda self, *args, **kwargs: inner(*args, **kwargs)}
    methods |= {"optimizers": lambda self, *_, **__: run.optimizer, "__getattr__": missing}
    kind = type("Module", (base,), methods)
    module: Any = kind()
    for shared in ("_parameters", "_buffers", "_modules"):
        module.__dict__[shared] = inner.__dict__[shared]
    module._device = run.device
    module.training = inner.training
    module._trainer = trainer
    return module
