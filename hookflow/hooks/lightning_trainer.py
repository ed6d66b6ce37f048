"""Views of a run as Lightning's callbacks know them: the Trainer with its loops, its module, loggers and checkpoints.

Source: `lightning.pytorch.trainer` and `lightning.pytorch.loops`, version 2.6.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

from hookflow.errors import Problem, UserError
from hookflow.events.rundir import RunDir
from hookflow.hooks.mmengine_runner import Checkpoint as MMEngineCheckpoint
from hookflow.hooks.mmengine_runner import DataLoader, View

if TYPE_CHECKING:
    import torch

    from hookflow.hooks.run import Run


class Checkpoint(MMEngineCheckpoint):
    """The state of a checkpoint by Lightning's keys; others are kept beside them."""

    KEYS: ClassVar[Mapping[str, str]] = {"state_dict": "model"}
    SECTION = "lightning"

    def __getitem__(self, key: str) -> Any:
        if key in ("epoch", "global_step"):
            return self._meta["epoch" if key == "epoch" else "iter"]
        return super().__getitem__(key)


class Experiment(View):
    """The methods of TensorBoard's SummaryWriter, which log into the run."""

    shown = "TensorBoard's SummaryWriter"

    def __init__(self, run: Run) -> None:
        self._run = run

    def add_scalar(self, tag: str, scalar_value: Any, global_step: int | None = None, **_: Any) -> None:
        self._run.log(tag, scalar_value)

    def add_image(self, tag: str, img_tensor: Any, global_step: int | None = None, **_: Any) -> None:
        self._run.log_image(tag, img_tensor)

    def add_figure(self, tag: str, figure: Any, global_step: int | None = None, **_: Any) -> None:
        self._run.log_figure(tag, figure)

    def add_text(self, tag: str, text_string: str, global_step: int | None = None, **_: Any) -> None:
        self._run.log_text(tag, text_string)

    def add_histogram(self, tag: str, values: Any, global_step: int | None = None, **_: Any) -> None:
        self._run.log_histogram(tag, values)


class Logger(View):
    """Logs into the run. It is an instance of Lightning's TensorBoardLogger, `kind`, for which callbacks look."""

    shown = "Lightning's logger"
    group_separator = "/"
    __class__ = property(lambda self: self._kind)

    def __init__(self, run: Run, kind: type) -> None:
        self._run, self._kind = run, kind
        self.save_dir = self.log_dir = self.root_dir = str(run.dir)
        self.name, self.version = "", run.dir.name
        self.experiment = Experiment(run)

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        for name, value in metrics.items():
            self._run.log(name, value)

    def after_save_checkpoint(self, checkpoint_callback: Any) -> None: ...


class Strategy:
    """The collectives of processes that train together."""

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


class FitLoop:
    """The loop of the training: what callbacks read of its progress, and what they set of its length."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer, run = trainer, trainer.run
        self.max_epochs = -1 if run.max_epochs is None else run.max_epochs
        self.max_batches = run.iters_per_epoch
        self._skip_backward = False

    @property
    def epoch_loop(self) -> Any:
        run = self._trainer.run
        train, batches = run.data.get("train"), run.batch_idx + (self._trainer.point != "after_train_iter")
        return SimpleNamespace(
            _batches_that_stepped=self._trainer.global_step,
            batch_progress=SimpleNamespace(is_last_batch=train is not None and batches == len(train)),
            val_loop=SimpleNamespace(_has_run=bool(run.metrics)),
        )

    total_batch_idx = property(lambda self: self._trainer.run.iter - 1)

    def _should_accumulate(self) -> bool:
        groups = self._trainer.groups
        return groups is not None and groups.left > 0


class Groups:
    """The batches of which a step takes the gradients, where a callback sets their number."""

    def __init__(self) -> None:
        self.batches = 1
        """The batches of a group."""
        self.left = 0
        """The rest of the current group."""
        self.without_step = 0
        """The iterations that have taken no step, the current one included."""
        self.latest = -1
        """The iterations that were done before the latest of these."""

    def take(self, run: Any) -> None:
        """Take a batch into the group, which ends with its epoch and the run; of its loss count 1 / `batches`."""
        if self.left == 0:
            self.left = max(min(self.batches, run.iters_per_epoch - run.batch_idx, run.max_iters - run.iter), 1)
        self.left -= 1
        run.accumulate(self.batches, step=self.left == 0, by_examples=False)
        if self.left:
            self.without_step += 1
            self.latest = run.iter

    def steps(self, iterations: int) -> int:
        return iterations - self.without_step + (iterations == self.latest)


class Trainer(View):
    """A run as Lightning's Trainer shows it to callbacks of a package; hooks of the class `adapted` call them."""

    shown = "Lightning's Trainer"
    sanity_checking = fast_dev_run = False
    log_every_n_steps = 50

    def __init__(self, run: Run, package: str, adapted: type[Any]) -> None:
        self.run, self.package, self._adapted = run, package, adapted
        self.groups: Groups | None = None
        """Set by the hook of a GradientAccumulationScheduler."""
        self.epoch_is_over = False
        """Whether the epoch is counted, and Lightning would not yet have."""
        self.more_epochs = 0
        """Passes over the training data after the run's epochs, which callbacks have asked for."""
        self.loaded: Any = None
        self._stops = self.has_raised = False
        self.point = "before_run"
        self.metrics: dict[str, torch.Tensor] = {}
        """The numbers of `callback_metrics`."""
        self._batch: Any = None
        self._sums: dict[str, tuple[Any, Any, int]] = {}
        """Of numbers that an evaluation logs by batches: the evaluation, the sum over examples, and how many."""
        self.default_root_dir = self.log_dir = str(run.dir)
        self.world_size, self.num_devices, self.num_nodes = run.world, run.world, 1
        self.global_rank = self.local_rank = run.rank
        self.is_global_zero = run.rank == 0
        self.loggers = [Logger(run, import_module(f"{package}.loggers").TensorBoardLogger)]
        self.strategy, self._accelerator_connector = Strategy(run), SimpleNamespace(is_distributed=run.world > 1)
        self.logger = self.loggers[0]
        self.lr_scheduler_configs: list[Any] = []
        self.ckpt_path = self.datamodule = None

    def at(self, point: str, batch: Any = None) -> None:
        self.point, self._batch = point, batch

    def log(self, name: str, value: Any, batch_size: int | None = None) -> None:
        """Log a number and add it to `callback_metrics`: of batches of an evaluation the mean over examples so far."""
        import torch

        value = torch.as_tensor(value, dtype=torch.get_default_dtype()).detach()
        if self._batch is not None and not self.training:
            size = batch_size or import_module(f"{self.package}.utilities.data").extract_batch_size(self._batch)
            evaluation, total, examples = self._sums.get(name, (None, 0.0, 0))
            if evaluation != (self._stage, self.run.iter):
                total, examples = 0.0, 0
            self._sums[name] = (self._stage, self.run.iter), total + size * value, examples + size
            value = self._sums[name][1] / self._sums[name][2]
        self.metrics[name] = value
        self.run.log(name, value)

    _stage = property(lambda self: next((name for key, name in STAGES.items() if f"_{key}" in self.point), "train"))

    @property
    def state(self) -> Any:
        states = import_module(f"{self.package}.trainer.states")
        fns = {"test": states.TrainerFn.TESTING, "predict": states.TrainerFn.PREDICTING}
        if "train" not in self.run.data:  # a checkpoint is validated
            fns["validate"] = states.TrainerFn.VALIDATING
        fn = fns.get(self._stage, states.TrainerFn.FITTING)
        return SimpleNamespace(fn=fn, stage=states.RunningStage(self._stage))

    training = property(lambda self: self._stage == "train")
    validating = property(lambda self: self._stage == "validate")
    testing = property(lambda self: self._stage == "test")
    predicting = property(lambda self: self._stage == "predict")

    @cached_property
    def _module(self) -> Any:
        return _module(import_module(self.package).LightningModule, self)

    @property
    def lightning_module(self) -> Any:
        self._module.training = _inner(self.run.model).training
        return self._module

    model = property(lambda self: self.lightning_module)

    current_epoch = property(lambda self: self.run.epoch - self.epoch_is_over + self.more_epochs)
    global_step = property(lambda self: self.groups.steps(self.run.iter) if self.groups else self.run.iter)

    @property
    def accumulate_grad_batches(self) -> int:
        return self.groups.batches if self.groups else 1

    @accumulate_grad_batches.setter
    def accumulate_grad_batches(self, batches: int) -> None:
        if self.groups:
            self.groups.batches = batches
        elif batches != 1 and not self.fit_loop._skip_backward:  # where nothing steps
            message = "only a GradientAccumulationScheduler sets trainer.accumulate_grad_batches"
            raise UserError(Problem(message, hint='use = "accumulation_schedule", or run.accumulate'))

    @cached_property
    def callbacks(self) -> list[Any]:
        """The callbacks of the run, in the order of the file."""
        return [hook.callback for hook in self.run.hooks.values() if isinstance(hook, self._adapted)]

    @cached_property
    def fit_loop(self) -> FitLoop:
        return FitLoop(self)

    max_epochs = property(lambda self: self.fit_loop.max_epochs)
    max_steps = property(lambda self: self.run.max_iters)
    num_training_batches = property(lambda self: self.run.iters_per_epoch)
    optimizers = property(lambda self: [*self.run.optimizers.values()])
    train_dataloader = property(lambda self: self._dataloader("train"))
    val_dataloaders = property(lambda self: self._dataloader("val"))
    enable_validation = property(lambda self: "val" in self.run.data)
    num_val_batches = property(lambda self: [len(self.run.data["val"])] if self.enable_validation else [])

    def _dataloader(self, split: str) -> Any:
        return getattr(self.run.data[split], "loader", None) or DataLoader(self, split)  # without workers there is none

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

        if self.predicting:
            return {}
        for name, value in self.run.metrics.items():
            self.metrics[name] = self.metrics[f"val_{name}"] = torch.as_tensor(value)
        return self.metrics

    @cached_property
    def _intervals(self) -> tuple[int | None, float]:
        """The epochs between validations, and the share of an epoch or the iterations; see `run.val_every`."""
        from hookflow.pipeline.load import load  # loads pydantic, which `hookflow --help` does without

        every = load(RunDir(self.run.dir).pipeline, recorded=True).pipeline.run.validates
        if every.unit != "ep":
            return None, float(every.value)
        return (int(every.value), 1.0) if every.value >= 1 else (1, float(every.value))

    check_val_every_n_epoch = property(lambda self: self._intervals[0])
    val_check_interval = property(lambda self: self._intervals[1])

    @property
    def _logger_connector(self) -> Any:
        due = (self.run.iter + (self.point != "after_train_iter")) % self.log_every_n_steps == 0
        due = due or not self.training or self.should_stop
        return SimpleNamespace(should_update_logs=due, log_metrics=self.logger.log_metrics)

    @property
    def _evaluation_loop(self) -> Any:
        total = SimpleNamespace(ready=self.run.batch_idx + 1)
        return SimpleNamespace(batch_progress=SimpleNamespace(total=total))

    predict_loop = _evaluation_loop

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


STAGES: Mapping[str, str] = {"train": "train", "val": "validate", "test": "test", "predict": "predict"}
"""Lightning's names of the stages, by a part of the names of points."""


def _inner(model: Any) -> Any:
    return getattr(model, "module", model) if type(model).__name__ == "DistributedDataParallel" else model


def _module(base: type, trainer: Trainer) -> Any:
    """Return a LightningModule that shares parameters, buffers and modules with the run's model, under their names."""
    run, inner = trainer.run, _inner(trainer.run.model)

    def log(self: Any, name: str, value: Any, *_: Any, batch_size: int | None = None, **__: Any) -> None:
        trainer.log(name, value, batch_size)

    def train(self: Any, mode: bool = True) -> Any:
        if self._modules is inner._modules:  # a copy, such as an average, has modules of its own
            inner.training = mode
        return base.train(self, mode)  # type: ignore[attr-defined]

    def missing(self: Any, name: str) -> Any:
        try:
            return base.__getattr__(self, name)  # type: ignore[attr-defined]
        except AttributeError:
            return getattr(inner, name)

    methods: dict[str, Any] = {"log": log, "forward": lambda self, *args, **kwargs: inner(*args, **kwargs)}
    methods |= {"optimizers": lambda self, *_, **__: run.optimizer, "train": train, "__getattr__": missing}
    own = {name: getattr(inner, name) for name in ("hparams", "example_input_array") if hasattr(inner, name)}
    kind = type("Module", (base,), methods | own)
    module: Any = kind()
    for shared in ("_parameters", "_buffers", "_modules"):
        module.__dict__[shared] = inner.__dict__[shared]
    module._device = run.device
    module._trainer = trainer
    return module
