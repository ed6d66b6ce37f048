"""The graph of hooks as one callback of Lightning's Trainer."""

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from math import isfinite, isnan
from pathlib import Path
from typing import Any

from hookflow.callbacks.driver import STEP_POINTS, Hooks, TrainerDriver
from hookflow.errors import Problem, UserError

TRAINER_NAME = "Lightning's Trainer"
LIGHTNING_PACKAGES = ("lightning.pytorch", "pytorch_lightning")
DRIVEN_POINTS = (
    "after_forward",
    "before_backward",
    "after_backward",
    *STEP_POINTS,
    "before_val",
    "before_val_epoch",
)


def make_callback(hooks: Hooks, overrides: Mapping[str, Any] | None, runs: str | None) -> Any:
    """Return a `Callback` of Lightning that drives hooks, of the package that is installed."""
    return _callback_class()(
        TrainerDriver(
            TRAINER_NAME, hooks, overrides, runs, points=DRIVEN_POINTS, arguments=("batch",)
        )
    )


def _find_package() -> str:
    for package in LIGHTNING_PACKAGES:
        if find_spec(package.partition(".")[0]):
            return package
    hint = "pip install 'hookflow[lightning]'"
    raise UserError(
        Problem("hookflow.callbacks.lightning needs the package pytorch-lightning", hint=hint)
    )


class LightningEvents:
    """Calls the hooks of a pipeline, in its order, as Lightning's Trainer comes to their points.

    An iteration is a step of the optimizer, however many batches it takes. Its loss is the mean of
    theirs. Lightning divides each by the batches of a whole group, also in a group that the end of
    the epoch has cut. Where a module steps several times in a batch by itself, these steps are one
    iteration, and its loss is the mean of theirs.
    """

    def __init__(self, driver: TrainerDriver) -> None:
        self.driver = driver
        self._step = 0
        """The Trainer's step as the latest iteration has ended."""
        self._iterations = 0
        """The iterations that have ended. A module may step several times in one by itself."""
        self._restored: tuple[int, int] | None = None
        """These two, of the checkpoint that the Trainer resumes from."""
        self._loss: Any = None
        """The loss that is being differentiated."""
        self._batches = 0
        """The batches of the current iteration that have had a loss."""
        self._sum: Any = 0.0
        """The sum of what has been differentiated in the current iteration."""
        self._known: dict[str, float] = {}
        """The numbers that were there before the current validation."""
        self._of_validation: set[str] = set()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if len(trainer.optimizers) > 1:
            message = (
                "hookflow.callbacks.lightning follows one optimizer, and this module has several"
            )
            raise UserError(
                Problem(message, hint="hookflow.attach follows several in a loop of your own")
            )
        max_iters = trainer.estimated_stepping_batches
        if not isfinite(max_iters):
            message = "this training has no length that hookflow could show"
            raise UserError(Problem(message, hint="Trainer(max_steps=…) or Trainer(max_epochs=…)"))
        batches = trainer.num_training_batches
        iters_per_epoch = int(max_iters)
        if isfinite(batches):
            iters_per_epoch = -(-int(batches) // trainer.accumulate_grad_batches)
        steps = trainer.global_step
        done = steps
        if self._restored is not None:
            steps_of_iterations, done = self._restored
            if steps > steps_of_iterations:  # saved in an iteration that had taken its step
                done += 1
        self._restored = None
        self.driver.begin(
            pl_module,
            next(iter(trainer.optimizers), None),
            max_iters=int(max_iters),
            iters_per_epoch=iters_per_epoch,
            done=done,
            tells_steps=True,  # the step's closure computes the gradients
        )
        self._step = steps
        self._iterations = done
        self._batches = 0
        self._sum = 0.0
        if self.driver.should_stop():  # hooks had ended the training that is resumed
            trainer.should_stop = True

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        self.driver.begin_iteration(batch)

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        self._loss = loss
        self.driver.begin_backward(loss)

    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        self.driver.end_backward(self._loss)
        self._batches += 1
        self._sum = self._sum + self._loss.detach()
        self._loss = None

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        self.driver.before_step(optimizer)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step == self._step:  # the gradients of other batches are to be added
            return
        steps = trainer.global_step - self._step
        self._step = trainer.global_step
        self._iterations += 1
        whole = trainer.accumulate_grad_batches
        outputs_of_iteration = {}
        if self._batches and steps > 1:  # a module has stepped several times by itself
            outputs_of_iteration["loss"] = self._sum / steps
        elif 0 < self._batches < whole:
            outputs_of_iteration["loss"] = self._sum * whole / self._batches
        self._batches = 0
        self._sum = 0.0
        self.driver.end_iteration(outputs_of_iteration)
        self._follow(trainer)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        if trainer.sanity_checking or not self.driver.is_running:
            return
        self._known = {name: float(value) for name, value in trainer.callback_metrics.items()}
        self.driver.begin_validation()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if trainer.sanity_checking or not self.driver.is_running:
            return
        metrics = {}
        for name, value in trainer.callback_metrics.items():
            number = float(value)
            if not self._was_known(name, number):  # the training logs nothing meanwhile
                self._of_validation.add(name)
            if name in self._of_validation:
                metrics[name.removeprefix("val_")] = number
        self.driver.end_validation(metrics)
        self._follow(trainer)

    def _was_known(self, name: str, number: float) -> bool:
        """Say whether a metric had this value before the current validation."""
        if name not in self._known:
            return False
        before = self._known[name]
        if isnan(number):
            return isnan(before)
        return number == before

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        has_stepped = trainer.global_step != self._step
        self.driver.save(trainer.global_step, has_stepped=has_stepped)

    def state_dict(self) -> dict[str, Any]:
        """Return what the Trainer's checkpoint keeps: how many iterations its step is."""
        return {"steps": self._step, "iterations": self._iterations}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._restored = state["steps"], state["iterations"]

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self.driver.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self.driver.fail(exception)

    def _follow(self, trainer: Any) -> None:
        if not self.driver.should_stop():
            return
        trainer.should_stop = True
        if self.driver.should_save(trainer.global_step):
            self._save_checkpoint(trainer)

    def _save_checkpoint(self, trainer: Any) -> None:
        """Let the Trainer save beside its other checkpoints, if it has a folder for these.

        A validation may follow the stop, and would draw: this is the state after the step.
        """
        folder = getattr(trainer.checkpoint_callback, "dirpath", None)
        if folder is None:
            return
        path = Path(folder, f"stopped-step={trainer.global_step}.ckpt")
        trainer.save_checkpoint(path)
        self.driver.run.say(f"{TRAINER_NAME} has saved {path}: resume by ckpt_path")


@cache
def _callback_class() -> type[Any]:
    base = import_module(_find_package()).Callback

    class HookflowCallback(LightningEvents, base):  # type: ignore[misc,valid-type]
        """The events that this package follows, as a callback of Lightning's Trainer."""

    return HookflowCallback
