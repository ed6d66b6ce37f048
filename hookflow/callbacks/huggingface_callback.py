"""The graph of hooks as one callback of Hugging Face's Trainer."""

from collections.abc import Collection, Mapping
from functools import cache
from typing import Any

from hookflow.callbacks.driver import STEP_POINTS, Hooks, TrainerDriver

TRAINER_NAME = "Hugging Face's Trainer"
TIMING_NAME_PARTS = ("runtime", "per_second", "epoch")
"""Parts of the names of numbers that are no metrics."""


def make_callback(
    hooks: Hooks,
    overrides: Mapping[str, Any] | None,
    runs: str | None,
    eval_sets: Collection[str] = (),
) -> Any:
    """Return a `TrainerCallback` that drives hooks."""
    driver = TrainerDriver(TRAINER_NAME, hooks, overrides, runs, points=STEP_POINTS)
    return _callback_class()(driver, eval_sets)


def select_metrics(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics of an evaluation by hookflow's names: `eval_loss` is `loss`."""
    selected = {}
    for name, value in metrics.items():
        if isinstance(value, int | float) and not name.endswith(TIMING_NAME_PARTS):
            selected[name.removeprefix("eval_")] = float(value)
    return selected


class TrainerEvents:
    """Calls the hooks of a pipeline, in its order, as Hugging Face's Trainer comes to their points.

    An evaluation has an event at its end alone, and the loss of a step none: the loss is logged by
    `on_log`.
    """

    def __init__(self, driver: TrainerDriver, eval_sets: Collection[str] = ()) -> None:
        self.driver = driver
        self._eval_sets = frozenset(eval_sets)
        self._evaluated: set[str] = set()
        """The sets that the current validation has been through."""
        self._metrics: dict[str, float] = {}
        """The metrics of these sets."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        epochs = max(state.num_train_epochs, 1)
        examples = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
        iters_per_epoch = -(-state.max_steps // epochs)
        loader: Any = given.get("train_dataloader")
        if hasattr(loader, "__len__"):
            iters_per_epoch = -(-len(loader) // args.gradient_accumulation_steps)
        self.driver.begin(
            given["model"],
            given["optimizer"],
            max_iters=state.max_steps,
            iters_per_epoch=iters_per_epoch,
            examples=examples,
            done=state.global_step,
        )
        if self.driver.should_stop():
            text = (
                f"hooks have ended this training, and {TRAINER_NAME} takes one more step before it"
                f" looks for that: use the weights of its checkpoint-{state.global_step}"
            )
            self.driver.run.say(text, "warn")

    def on_step_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        self.driver.begin_iteration()

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> Any:
        self.driver.end_iteration()
        return self._follow(args, state, control)

    def on_log(
        self, args: Any, state: Any, control: Any, logs: Mapping[str, Any], **given: Any
    ) -> None:
        if not self.driver.is_running:
            return
        for name, value in logs.items():
            is_of_evaluation = name.startswith("eval_")
            if (
                isinstance(value, int | float)
                and not is_of_evaluation
                and not name.endswith(TIMING_NAME_PARTS)
            ):
                self.driver.run.log(name, float(value))

    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: Mapping[str, Any], **given: Any
    ) -> Any:
        if not self.driver.is_running:  # an evaluation by itself
            return None
        evaluated = {name for name in self._eval_sets if f"eval_{name}_runtime" in metrics}
        self._evaluated |= evaluated
        self._metrics.update(select_metrics(metrics))
        if evaluated and self._evaluated != self._eval_sets:
            return None
        measured = self._metrics
        self._evaluated = set()
        self._metrics = {}
        self.driver.end_validation(measured)
        return self._follow(args, state, control)

    def on_save(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        if self.driver.is_running:
            has_stepped = state.global_step > self.driver.run.iter
            self.driver.save(state.global_step, has_stepped=has_stepped)

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        self.driver.end()

    def _follow(self, args: Any, state: Any, control: Any) -> Any:
        """Set the flags for what hooks, commands and signals ask for."""
        if self.driver.should_stop():
            control.should_training_stop = True
            # An evaluation follows the stop, and draws: a second save would keep that state.
            if self.driver.should_save(state.global_step) and args.save_strategy != "no":
                control.should_save = True
        elif self.driver.should_validate():
            control.should_evaluate = True
        return control


@cache
def _callback_class() -> type[Any]:
    from transformers import TrainerCallback

    class HookflowCallback(TrainerEvents, TrainerCallback):  # type: ignore[misc]
        """The events that this package follows, as a callback of Hugging Face's Trainer."""

    return HookflowCallback
