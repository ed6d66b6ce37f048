"""A hook that calls a callback of Hugging Face's as its Trainer does.

Source: `transformers.trainer_callback`, version 5.24.
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

from hookflow.adapters.huggingface_tables import EVENT_POINTS, SUBSTEP_EVENT
from hookflow.adapters.huggingface_trainer import TrainerView
from hookflow.adapters.values import select_changed, select_state
from hookflow.errors import Problem, UserError
from hookflow.hooks.adapter import AdaptedHook
from hookflow.hooks.capabilities import HookCapabilities
from hookflow.hooks.run import Run

CALLED_BY_THE_VIEW = ("on_log",)
"""Events that all callbacks get at once, as the Trainer calls them."""


class HuggingFaceHook(AdaptedHook):
    """A `TrainerCallback`.

    A checkpoint has its numbers and tensors that have changed, and the trainer's state.
    """

    capabilities = HookCapabilities(
        offload_blocker="it is a TrainerCallback, which is shown the state of the run"
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # The import is here because it loads pydantic, which `hookflow --help` does not need.
        from hookflow.hooks.arguments import with_functions

        own_args = [with_functions(value) for value in args]
        self.callback: Any = self.kind(*own_args, **with_functions(kwargs))
        self._initial = deepcopy(select_state(vars(self.callback)))
        self._trainer: Callable[[], TrainerView] | None = None
        """Keeps the trainer, which all callbacks share.

        Changes in it are no changes of this hook.
        """

    def fire(self, point: str, run: Run, offered: dict[str, Any]) -> None:
        """Call what Hugging Face's Trainer calls at this point of hookflow."""
        trainer = TrainerView.shared(run)
        if self._trainer is None:
            self._trainer = trainer.itself
            self._check(trainer)
        if run.is_predicting and point in ("before_val", "before_test"):
            return  # the points before a pass of the split fire, too
        trainer.enter(self, point, offered)
        try:
            self._call_events(point, trainer)
        finally:
            trainer.leave()

    def _call_events(self, point: str, trainer: TrainerView) -> None:
        for event in EVENT_POINTS[point].events:
            if event in CALLED_BY_THE_VIEW:
                continue
            if point == "after_train" and event == "on_epoch_end":
                continue  # of an epoch that was left: the view calls it
            if event in ("on_evaluate", "on_predict"):
                trainer.call(self, event, metrics=trainer.latest_metrics)
            else:
                trainer.call(self, event)
        if point == "before_train" and trainer.run.batch_idx > 0:  # resumed within an epoch
            trainer.call(self, "on_epoch_begin")

    def _check(self, trainer: TrainerView) -> None:
        """Raise UserError where the run does not offer what this callback needs."""
        name = type(self.callback).__name__
        if trainer.args.gradient_accumulation_steps > 1 and _has_own_method(
            type(self.callback), SUBSTEP_EVENT
        ):
            message = (
                f"{name}.{SUBSTEP_EVENT} has no point here: an iteration ends with its last batch"
            )
            raise UserError(
                Problem(message, hint="run.accumulate = 1, or a hook at after_backward")
            )
        bases = [base.__name__ for base in type(self.callback).__mro__]
        if "EarlyStoppingCallback" in bases and trainer.args.metric_for_best_model is None:
            message = f"{name} compares the metric of the best checkpoint, and no hook watches one"
            raise UserError(
                Problem(
                    message,
                    hint='[hooks.checkpoint] use = "checkpoint", args = { monitor = "loss" }',
                )
            )

    def state_dict(self) -> dict[str, Any]:
        trainer = {}
        if self._trainer is not None:
            trainer = self._trainer().state_dict()
        return {
            "numbers": select_changed(select_state(vars(self.callback)), self._initial),
            "trainer": trainer,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        vars(self.callback).update(state["numbers"])
        if self._trainer is not None and state["trainer"]:
            self._trainer().load_state_dict(state["trainer"])


def _has_own_method(kind: type, event: str) -> bool:
    """Say whether a class has a method of its own for an event, below `TrainerCallback`."""
    for base in kind.__mro__:
        if base.__name__ == "TrainerCallback":
            return False
        if event in vars(base):
            return True
    return False
