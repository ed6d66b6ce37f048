"""Views of a run as Lightning's callbacks know it: the Trainer with its loops, and checkpoints.

Source: `lightning.pytorch.trainer` and `lightning.pytorch.loops`, version 2.6.
"""

from __future__ import annotations

from functools import cached_property
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

from hookflow.adapters.lightning_logger import LoggerView
from hookflow.adapters.lightning_module import make_module, unwrap_model
from hookflow.adapters.machine_ranks import MachineRanks
from hookflow.adapters.views import (
    CheckpointView,
    DataLoaderView,
    RunView,
    find_common_interval,
    find_sets,
    name_metrics_of_set,
    name_set,
)
from hookflow.errors import Problem, UserError
from hookflow.events.rundir import RunDir
from hookflow.pipeline.by_epoch import batches_by_epoch

if TYPE_CHECKING:
    import torch

    from hookflow.hooks.run import Run

LIGHTNING_STAGES = {"val": "validate", "test": "test", "predict": "predict"}
"""Lightning's names of the stages besides "train", by a part of the names of points."""

SET_POINTS = ("_iter", "_epoch")
"""The ends of the names of the points that fire for each set of an evaluation."""

ACCELERATOR_CLASSES = {"cuda": "CUDAAccelerator", "mps": "MPSAccelerator"}
"""Lightning's classes of accelerators by the type of device; the others are the CPU's."""


class LightningCheckpoint(CheckpointView):
    """The state of a checkpoint by Lightning's keys."""

    KEYS: ClassVar = {"state_dict": "model"}
    SECTION = "lightning"

    def __getitem__(self, key: str) -> Any:
        if key == "epoch":
            return self._epoch
        if key == "global_step":
            return self._iter
        return super().__getitem__(key)


class StrategyView:
    """The collectives of processes that train together."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.root_device = run.device

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:  # noqa: A002  # as in Lightning
        total = int(self._run.sum(float(decision)))
        if all:
            return total == self._run.world
        return total > 0

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


class FitLoopView:
    """The loop of the training.

    It has what callbacks read of its progress, and what they set of its length.
    """

    def __init__(self, trainer: TrainerView) -> None:
        self._trainer = trainer
        self.max_epochs = -1
        if trainer.run.max_epochs is not None:
            self.max_epochs = trainer.run.max_epochs
        self.max_batches = trainer.run.iters_per_epoch
        self._skip_backward = False

    @property
    def epoch_loop(self) -> Any:
        run = self._trainer.run
        train = run.data.get("train")
        num_batches = run.batch_idx
        if self._trainer.point != "after_train_iter":
            num_batches += 1
        is_last_batch = train is not None and num_batches == batches_by_epoch(train).at(run.epoch)
        return SimpleNamespace(
            _batches_that_stepped=self._trainer.global_step,
            batch_progress=SimpleNamespace(is_last_batch=is_last_batch),
            val_loop=SimpleNamespace(_has_run=bool(run.metrics)),
        )

    @property
    def total_batch_idx(self) -> int:
        return self._trainer.run.iter - 1

    def _should_accumulate(self) -> bool:
        groups = self._trainer.groups
        return groups is not None and groups.left > 0


class GradientGroups:
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
        """Take a batch into the group, which ends with its epoch and the run.

        Of its loss count 1 / `batches`.
        """
        if self.left == 0:
            rest_of_epoch = run.iters_per_epoch - run.batch_idx
            rest_of_run = run.max_iters - run.iter
            self.left = max(min(self.batches, rest_of_epoch, rest_of_run), 1)
        self.left -= 1
        run.accumulate(self.batches, step=self.left == 0, by_examples=False)
        if self.left:
            self.without_step += 1
            self.latest = run.iter

    def count_steps(self, iterations: int) -> int:
        """Return the steps of so many iterations that are done; the current one is not."""
        without_step = self.without_step
        if iterations == self.latest:
            without_step -= 1
        return iterations - without_step


class TrainerView(RunView):
    """A run as Lightning's Trainer shows it to callbacks of a package.

    Hooks of the class `adapted` call them.
    """

    shown = "Lightning's Trainer"
    sanity_checking = False
    fast_dev_run = False
    log_every_n_steps = 50

    def __init__(self, run: Run, package: str, adapted: type[Any]) -> None:
        self.run = run
        self.package = package
        self._adapted = adapted
        self.groups: GradientGroups | None = None
        """Set by the hook of a GradientAccumulationScheduler."""
        self.epoch_is_over = False
        """Whether the epoch is counted, and Lightning would not yet have."""
        self.more_epochs = 0
        """Passes over the training data after the run's epochs, which callbacks have asked for."""
        self.loaded: Any = None
        self._stops = False
        self.has_raised = False
        self.point = "before_run"
        self.metrics: dict[str, torch.Tensor] = {}
        """The numbers of `callback_metrics`."""
        self._batch: Any = None
        self._means: dict[str, RunningMean] = {}
        """Of numbers that an evaluation logs by batches."""
        folder = str(run.dir)
        self.default_root_dir = folder
        self.log_dir = folder
        self.world_size = run.world
        machine = MachineRanks.of_environment(run)
        self.num_devices = machine.num_local
        self.num_nodes = run.world // machine.num_local
        self.global_rank = run.rank
        self.local_rank = machine.local_rank
        self.node_rank = run.rank // machine.num_local
        self.is_global_zero = run.rank == 0
        loggers = import_module(f"{package}.loggers")
        self.logger = LoggerView(run, loggers.TensorBoardLogger)
        self.loggers = [self.logger]
        self.strategy = StrategyView(run)
        self._accelerator_connector = SimpleNamespace(is_distributed=run.world > 1)
        self.lr_scheduler_configs: list[Any] = []
        self.ckpt_path = None
        self.datamodule = None

    def at(self, point: str, batch: Any = None) -> None:
        """Show the state of a point, at an iteration with its batch."""
        self.point = point
        self._batch = batch

    def log(self, name: str, value: Any, batch_size: int | None = None) -> None:
        """Log a number and add it to `callback_metrics`.

        Of batches of an evaluation it is the mean over examples so far.
        """
        import torch

        value = torch.as_tensor(value, dtype=torch.get_default_dtype()).detach()
        if self._batch is not None and not self.training:
            mean = self._means.get(name)
            evaluation = (self._stage, self.run.iter)
            if mean is None or mean.evaluation != evaluation:
                mean = RunningMean(evaluation)
                self._means[name] = mean
            value = mean.add(value, batch_size or self._count_examples())
        self.metrics[name] = value
        self.run.log(name, value)

    def _count_examples(self) -> int:
        data = import_module(f"{self.package}.utilities.data")
        size: int = data.extract_batch_size(self._batch)
        return size

    @property
    def _stage(self) -> str:
        for part, name in LIGHTNING_STAGES.items():
            if f"_{part}" in self.point:
                return name
        return "train"

    @property
    def function_name(self) -> str:
        """The name of the Trainer's function that `setup` and `teardown` receive."""
        if self.testing:
            return "test"
        if self.predicting:
            return "predict"
        return "fit"

    @property
    def state(self) -> Any:
        states = import_module(f"{self.package}.trainer.states")
        fn = states.TrainerFn.FITTING
        if self.testing:
            fn = states.TrainerFn.TESTING
        elif self.predicting:
            fn = states.TrainerFn.PREDICTING
        elif self.validating and "train" not in self.run.data:  # a checkpoint is validated
            fn = states.TrainerFn.VALIDATING
        return SimpleNamespace(fn=fn, stage=states.RunningStage(self._stage))

    @property
    def training(self) -> bool:
        return self._stage == "train"

    @property
    def validating(self) -> bool:
        return self._stage == "validate"

    @property
    def testing(self) -> bool:
        return self._stage == "test"

    @property
    def predicting(self) -> bool:
        return self._stage == "predict"

    @cached_property
    def _module(self) -> Any:
        base = import_module(self.package).LightningModule
        return make_module(base, self)

    @property
    def lightning_module(self) -> Any:
        self._module.training = unwrap_model(self.run.model).training
        return self._module

    @property
    def model(self) -> Any:
        return self.lightning_module

    @property
    def current_epoch(self) -> int:
        epoch = self.run.epoch + self.more_epochs
        if self.epoch_is_over:
            epoch -= 1
        return epoch

    @property
    def global_step(self) -> int:
        if self.groups is None:
            return self.run.iter
        return self.groups.count_steps(self.run.iter)

    @property
    def accumulate_grad_batches(self) -> int:
        if self.groups is None:
            return 1
        return self.groups.batches

    @accumulate_grad_batches.setter
    def accumulate_grad_batches(self, batches: int) -> None:
        if self.groups is not None:
            self.groups.batches = batches
        elif batches != 1 and not self.fit_loop._skip_backward:  # where nothing steps
            message = "only a GradientAccumulationScheduler sets trainer.accumulate_grad_batches"
            raise UserError(
                Problem(message, hint='use = "accumulation_schedule", or run.accumulate')
            )

    @cached_property
    def callbacks(self) -> list[Any]:
        """The callbacks of the run, in the order of the file."""
        return [
            hook.callback for hook in self.run.hooks.values() if isinstance(hook, self._adapted)
        ]

    @cached_property
    def fit_loop(self) -> FitLoopView:
        return FitLoopView(self)

    @property
    def max_epochs(self) -> int:
        return self.fit_loop.max_epochs

    @property
    def max_steps(self) -> int:
        return self.run.max_iters

    @property
    def estimated_stepping_batches(self) -> int:
        """The optimizer steps of the run. As in Lightning, none are known where groups change."""
        if self.groups is not None:
            message = (
                "trainer.estimated_stepping_batches is not known where a"
                " GradientAccumulationScheduler sets when the optimizer steps"
            )
            raise UserError(Problem(message, hint="run.max_iters has the batches"))
        return self.run.max_iters

    @property
    def num_training_batches(self) -> int:
        return self.run.iters_per_epoch

    @property
    def optimizers(self) -> list[Any]:
        return [*self.run.optimizers.values()]

    @property
    def train_dataloader(self) -> Any:
        return self._dataloader("train")

    @property
    def val_dataloaders(self) -> Any:
        """The validation data, or a dict of each set's by its name."""
        if "val" in self.run.data:
            return self._dataloader("val")
        return {name_set(name): self._dataloader(name) for name in find_sets(self.run, "val")}

    def _dataloader(self, split: str) -> Any:
        loader = getattr(self.run.data[split], "loader", None)
        return loader or DataLoaderView(self, split)  # without workers there is none

    @property
    def enable_validation(self) -> bool:
        return bool(find_sets(self.run, "val"))

    @property
    def num_val_batches(self) -> list[int]:
        return [len(self.run.data[name]) for name in find_sets(self.run, "val")]

    @property
    def dataloader_idx(self) -> int | None:
        """The number of the set that is evaluated; None where there is one set alone."""
        split = self.run.split.partition(".")[0]
        sets = find_sets(self.run, split)
        if len(sets) < 2:
            return None
        return sets.index(self.run.split)

    @property
    def should_stop(self) -> bool:
        return self._stops

    @should_stop.setter
    def should_stop(self, stop: bool) -> None:
        if stop and not self._stops:
            self.run.stop("a callback of Lightning has set trainer.should_stop")
            self._stops = True

    @property
    def callback_metrics(self) -> dict[str, torch.Tensor]:
        """The metrics of the latest validation, and what callbacks have added.

        They are there as `accuracy` and as `val_accuracy`, those of a set as `ood/accuracy` and as
        `val_ood/accuracy`.
        """
        import torch

        if self.predicting:
            return {}
        for name, number in self._name_latest_metrics().items():
            value = torch.as_tensor(number)
            self.metrics[name] = value
            self.metrics[f"val_{name}"] = value
        return self.metrics

    def _name_latest_metrics(self) -> dict[str, float]:
        """Return the metrics of the latest evaluation, by their names among those of all sets.

        Within an evaluation of several sets the run has those of the latest set, without its name.
        """
        run = self.run
        is_within_set = self.point.endswith(SET_POINTS) and "train" not in self.point
        if not is_within_set or not name_set(run.split):
            return dict(run.metrics)
        if self.point.startswith("after_") and self.point.endswith("_epoch"):
            return name_metrics_of_set(run.metrics, run.split)
        return {}

    @cached_property
    def _validation_interval(self) -> Any:
        """The interval of the validations."""
        # The import is here because it loads pydantic, which `hookflow --help` does not need.
        from hookflow.pipeline.load import load

        loaded = load(RunDir(self.run.dir).pipeline, recorded=True)
        return find_common_interval(loaded.pipeline)

    @property
    def check_val_every_n_epoch(self) -> int | None:
        interval = self._validation_interval
        if interval.unit != "ep":
            return None
        return max(int(interval.value), 1)

    @property
    def val_check_interval(self) -> float:
        """The share of an epoch between validations, or the iterations or seconds."""
        interval = self._validation_interval
        if interval.unit == "ep" and interval.value >= 1:
            return 1.0
        return float(interval.value)

    @property
    def _logger_connector(self) -> Any:
        num_iterations = self.run.iter
        if self.point != "after_train_iter":
            num_iterations += 1
        is_due = num_iterations % self.log_every_n_steps == 0
        should_update = is_due or not self.training or self.should_stop
        return SimpleNamespace(
            should_update_logs=should_update, log_metrics=self.logger.log_metrics
        )

    @property
    def _evaluation_loop(self) -> Any:
        total = SimpleNamespace(ready=self.run.batch_idx + 1)
        return SimpleNamespace(batch_progress=SimpleNamespace(total=total))

    predict_loop = _evaluation_loop

    @cached_property
    def accelerator(self) -> Any:
        accelerators = import_module(f"{self.package}.accelerators")
        name = ACCELERATOR_CLASSES.get(self.run.device.type, "CPUAccelerator")
        return getattr(accelerators, name)()

    @cached_property
    def precision_plugin(self) -> Any:
        return import_module(f"{self.package}.plugins.precision").Precision()

    def save_checkpoint(
        self, filepath: str, weights_only: bool | None = None, storage_options: Any = None
    ) -> None:
        """Write a file with the keys of Lightning's checkpoints, in the training thread.

        The first of several ranks writes it.
        """
        import torch

        module = self.lightning_module
        content: dict[str, Any] = {
            "epoch": self.current_epoch,
            "global_step": self.global_step,
            "pytorch-lightning_version": import_module(self.package).__version__,
            "state_dict": module.state_dict(),
            "loops": {},
        }
        if not weights_only:
            content["callbacks"] = {each.state_key: each.state_dict() for each in self.callbacks}
            content["optimizer_states"] = [each.state_dict() for each in self.optimizers]
            content["lr_schedulers"] = []
        for callback in self.callbacks:
            callback.on_save_checkpoint(self, module, content)
        if self.is_global_zero:
            Path(filepath).parent.mkdir(parents=True, exist_ok=True)
            torch.save(content, filepath)


class RunningMean:
    """The mean over examples of a number that an evaluation logs by batches.

    `evaluation` is the stage and the iteration at which it began.
    """

    def __init__(self, evaluation: tuple[str, int]) -> None:
        self.evaluation = evaluation
        self._sum: Any = 0.0
        self._examples = 0

    def add(self, value: Any, examples: int) -> Any:
        """Add the number of a batch of so many examples; return the mean so far."""
        self._sum = self._sum + examples * value
        self._examples += examples
        return self._sum / self._examples
