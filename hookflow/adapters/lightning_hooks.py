"""Hooks that call a callback of Lightning as Lightning's Trainer does.

Source: `lightning.pytorch.callbacks` and `lightning.pytorch.loops`, version 2.6.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import replace
from typing import Any, ClassVar

from hookflow.adapters.lightning_tables import CALLBACK_POINTS, EVALUATION_STARTS, SET_METHODS
from hookflow.adapters.lightning_trainer import GradientGroups, LightningCheckpoint, TrainerView
from hookflow.adapters.values import select_changed, select_state
from hookflow.errors import Problem, UserError
from hookflow.hooks.adapter import AdaptedHook
from hookflow.hooks.base import Slots
from hookflow.hooks.capabilities import HookCapabilities
from hookflow.hooks.run import Run
from hookflow.hooks.tensors import enter_evaluation, in_mode, is_sharded
from hookflow.pipeline.by_epoch import batches_by_epoch, takes_several_batches


class LightningHook(AdaptedHook):
    """A callback of Lightning.

    A checkpoint has its `state_dict()`, and the numbers and tensors that have changed.

    Lightning validates within the epoch, hookflow behind it: so `on_train_epoch_end` waits for the
    validation, or for what comes next, where none follows.
    """

    capabilities = HookCapabilities(
        offload_blocker="it is a callback of Lightning, whose trainer shows all of the run"
    )
    package: ClassVar[str]
    """The package of Lightning that the callback is made for."""
    needs: ClassVar[tuple[str, ...]] = ()
    """Points besides those that the callback has methods for."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # The import is here because it loads pydantic, which `hookflow --help` does not need.
        from hookflow.hooks.arguments import with_functions

        own_args = [with_functions(value) for value in args]
        self.callback: Any = self.kind(*own_args, **with_functions(kwargs))
        # SpikeDetection.load_state_dict() looks for `running`, and its attribute is `running_mean`.
        if type(self.callback).__name__ == "SpikeDetection":
            self.callback.running = self.callback.running_mean
        self._initial = deepcopy(select_state(vars(self.callback)))
        self._epoch_ends = False
        """Whether `on_train_epoch_end` is still to be called."""
        self._trainer: Callable[[], TrainerView] | None = None
        """Keeps the trainer, which all callbacks share.

        Changes in it are no changes of this hook.
        """

    def fire(self, point: str, run: Run, offered: dict[str, Any]) -> None:
        """Call what Lightning calls at this point of hookflow."""
        trainer = TrainerView.shared(run, self.package, LightningHook)
        if self._trainer is None:
            self._trainer = trainer.itself
        self.call(point, trainer, offered)

    def call(self, point: str, trainer: TrainerView, offered: dict[str, Any]) -> None:
        """Call what Lightning calls at this point, with the trainer that all callbacks share."""
        if trainer.run.is_predicting and not is_point_of_prediction(point):
            return  # the points before a pass of the split fire, too
        trainer.at(point, offered.get("batch"))
        if point == "on_exception":
            trainer.has_raised = True
        if point == "after_run" and trainer.has_raised:
            return  # as Lightning does
        if point in ("before_train_epoch", "after_train"):
            self._end_epoch(trainer)
            trainer.at(point)
            trainer.epoch_is_over = False
        for name in CALLBACK_POINTS[point].methods:
            self._call_method(name, trainer, offered)
        if point == "after_load_checkpoint":
            offered["checkpoint"]["model"] = trainer.loaded
        if point == "after_train_epoch":
            self._epoch_ends = True
            trainer.epoch_is_over = True
        is_last_of_epoch = point == "after_train_epoch" and not trainer.enable_validation
        if point == "after_val" or is_last_of_epoch:
            self._end_epoch(trainer)

    def _call_method(self, name: str, trainer: TrainerView, offered: dict[str, Any]) -> None:
        mode: AbstractContextManager[Any] = nullcontext()
        if name in EVALUATION_STARTS:
            mode = enter_evaluation(trainer.run.model)
        with mode:
            for arguments in self._arguments(name, trainer, offered):
                method = getattr(self.callback, name)
                method(trainer, trainer.lightning_module, *arguments)

    def _end_epoch(self, trainer: TrainerView) -> None:
        if not self._epoch_ends:
            return
        self._epoch_ends = False
        trainer.epoch_is_over = True
        mode: AbstractContextManager[Any] = nullcontext()
        if trainer.point == "after_val":  # Lightning has put the network back into training by then
            mode = in_mode(trainer.run.model, training=True)
        trainer.at("after_train_epoch")
        with mode:
            self.callback.on_train_epoch_end(trainer, trainer.lightning_module)

    def _arguments(
        self, name: str, trainer: TrainerView, offered: dict[str, Any]
    ) -> list[tuple[Any, ...]]:
        """Return the arguments of each call of a method at a point."""
        if name in ("setup", "teardown"):
            return [(trainer.function_name,)]
        if name == "on_before_backward":
            return [(offered["outputs"]["loss"],)]
        if name == "on_before_optimizer_step":
            return [(optimizer,) for optimizer in trainer.run.stepping.values()]
        if name == "on_save_checkpoint":
            return [(LightningCheckpoint(offered["checkpoint"]),)]
        if name == "on_load_checkpoint":
            # Lightning has loaded the weights by then, and the callback may change them.
            trainer.run.model.load_state_dict(offered["checkpoint"]["model"])
            trainer.loaded = trainer.run.model.state_dict()
            return [(LightningCheckpoint(offered["checkpoint"]),)]
        arguments = tuple(offered.values())
        if name in SET_METHODS and trainer.dataloader_idx is not None:
            arguments = (*arguments, trainer.dataloader_idx)
        return [arguments]

    def state_dict(self) -> dict[str, Any]:
        metrics = {}
        if self._trainer is not None:
            metrics = dict(self._trainer().metrics)
        return {
            "numbers": select_changed(select_state(vars(self.callback)), self._initial),
            "state": dict(self.callback.state_dict()),
            "epoch_ends": self._epoch_ends,
            "metrics": metrics,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        vars(self.callback).update(state["numbers"])
        self._epoch_ends = state["epoch_ends"]
        if self._trainer is not None:
            self._trainer().metrics.update(state.get("metrics", {}))
        if state["state"]:
            self.callback.load_state_dict(dict(state["state"]))


def is_point_of_prediction(point: str) -> bool:
    """Say whether callbacks are called at a point while a checkpoint predicts."""
    return "predict" in point or point in ("after_load_checkpoint", "on_exception")


class AccumulationHook(LightningHook):
    """A GradientAccumulationScheduler.

    An iteration takes one batch, and the last one of a group takes the step. As there, each loss
    counts one part of the group's batches, an incomplete group at the end of an epoch included.
    """

    capabilities = replace(LightningHook.capabilities, accumulates=True)
    writes: ClassVar[Slots] = {"before_backward": ("control",)}
    needs = ("before_train", "before_backward", "after_train_iter")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        own_args = [with_number_keys(value) for value in args]
        own_kwargs = {name: with_number_keys(value) for name, value in kwargs.items()}
        super().__init__(*own_args, **own_kwargs)
        self.groups = GradientGroups()

    def call(self, point: str, trainer: TrainerView, offered: dict[str, Any]) -> None:
        groups = self.groups
        if point == "before_run":
            trainer.groups = groups
        elif point == "before_train":
            self._check(trainer.run)
            self._begin_training(trainer, offered)
            return
        elif point == "before_backward":
            groups.take(trainer.run)
        elif point == "after_train_iter" and groups.left and trainer.run.step_skipped:
            groups.left = 0  # another hook has had the gradients dropped
        super().call(point, trainer, offered)

    def _begin_training(self, trainer: TrainerView, offered: dict[str, Any]) -> None:
        """Call the callback with groups of one batch: it refuses what a resumed run has."""
        batches = self.groups.batches
        self.groups.batches = 1
        super().call("before_train", trainer, offered)
        self.groups.batches = batches

    def _check(self, run: Run) -> None:
        name = type(self.callback).__name__
        if getattr(run.task, "steps_itself", False):
            raise UserError(
                Problem(f"{name} sets when the optimizer steps, and this task steps it itself")
            )
        if takes_several_batches(run.epoch_lengths, batches_by_epoch(run.data["train"])):
            message = f"{name} and run.accumulate both set on how many batches the optimizer steps"
            raise UserError(Problem(message, hint="keep one of them"))

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "groups": dict(vars(self.groups))}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        vars(self.groups).update(state["groups"])


def with_number_keys(value: Any) -> Any:
    """Return a table with whole numbers as keys, which TOML cannot write.

    Anything else is returned as it is.
    """
    if not isinstance(value, Mapping) or not all(str(key).isdigit() for key in value):
        return value
    return {int(key): item for key, item in value.items()}


class WeightAveragingHook(LightningHook):
    """A StochasticWeightAveraging, whose schedule of the learning rates steps after each epoch.

    Where the network has batch norms, it measures their statistics of the averaged weights in one
    more pass over the training data, without gradients. The points of the training and the
    validation do not fire for that pass.
    """

    reads: ClassVar[Slots] = {
        "before_run": ("model",),
        "before_train_epoch": ("model",),
        "before_test": ("model",),
    }
    writes: ClassVar[Slots] = {
        "before_train": ("lr", "optimizer"),
        "before_train_epoch": ("lr", "optimizer"),
        "after_train_epoch": ("lr", "optimizer"),
        "after_train": ("model",),
    }
    needs = ("before_train", "after_train")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._resumes = False
        """Whether the schedule of a resumed run is still to be built."""

    def call(self, point: str, trainer: TrainerView, offered: dict[str, Any]) -> None:
        if point == "before_run":
            self._check(trainer)
        elif point == "after_train_epoch":
            for config in trainer.lr_scheduler_configs:
                config.scheduler.step()
        elif point == "after_train":
            self._end_epoch(trainer)
            trainer.epoch_is_over = False
            if trainer.run.epoch == trainer.run.max_epochs == trainer.max_epochs - 1:
                self._measure_norms(trainer)
        super().call(point, trainer, offered)
        if point == "before_train" and self._resumes:
            self._build_schedule(trainer)
        if point == "after_train":
            trainer.run.save_checkpoint("last")  # what the last epoch has saved are other weights

    def _check(self, trainer: TrainerView) -> None:
        if any(is_sharded(parameter) for parameter in trainer.run.model.parameters()):
            message = f"{type(self.callback).__name__} does not support sharded models"
            raise UserError(Problem(message, hint='use = "swa"'))

    def _build_schedule(self, trainer: TrainerView) -> None:
        """Build a resumed run's schedule, with the learning rates as the checkpoint has them."""
        self._resumes = False
        groups = trainer.optimizers[0].param_groups
        saved_groups = [_copy_settings(group) for group in groups]
        # The callback builds no schedule after its last epoch, so the trainer shows that epoch
        # then.
        trainer.more_epochs = min(self.callback.swa_end - trainer.current_epoch, 0)
        self.callback.on_train_epoch_start(trainer, trainer.lightning_module)
        trainer.more_epochs = 0
        for group, saved in zip(groups, saved_groups, strict=True):
            group.update(saved)

    def _measure_norms(self, trainer: TrainerView) -> None:
        import torch

        run = trainer.run
        module = trainer.lightning_module
        self.callback.on_train_epoch_start(trainer, module)
        devices = []
        if run.device.type == "cuda":
            devices.append(run.device)
        # The random state is restored, so that a run that is resumed here measures the same again.
        with torch.no_grad(), torch.random.fork_rng(devices):
            for batch in run.data["train"].epoch(run.epoch):
                run.evaluate(batch)
        self.callback.on_train_epoch_end(trainer, module)
        trainer.more_epochs = 1

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        for name in list(state["numbers"]):
            # The callback derives its private numbers from the rest, and from the trainer.
            if name.startswith("_"):
                del state["numbers"][name]
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._resumes = state["state"]["scheduler_state"] is not None


def _copy_settings(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a parameter group has besides its parameters."""
    return {name: value for name, value in group.items() if name != "params"}
