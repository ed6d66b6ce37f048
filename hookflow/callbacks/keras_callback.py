"""The graph of hooks as one callback of Keras, where PyTorch computes."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from hookflow.callbacks.driver import Hooks, TrainerDriver
from hookflow.errors import Problem, UserError
from hookflow.pipeline.registry import missing_package

TRAINER_NAME = "Keras"
DRIVEN_POINTS = ("before_val", "before_val_epoch")


def make_callback(hooks: Hooks, overrides: Mapping[str, Any] | None, runs: str | None) -> Any:
    """Return a `Callback` of Keras that drives hooks.

    Raises UserError where another backend computes.
    """
    problem = missing_package("hookflow.callbacks.keras", "keras", "")
    if problem is not None:
        raise UserError(Problem(problem.message, hint="pip install keras"))
    import keras

    if keras.backend.backend() != "torch":
        message = (
            "hookflow.callbacks.keras needs PyTorch, and Keras computes by"
            f" {keras.backend.backend()}"
        )
        raise UserError(
            Problem(message, hint='os.environ["KERAS_BACKEND"] = "torch", before keras is imported')
        )
    return _callback_class()(
        TrainerDriver(TRAINER_NAME, hooks, overrides, runs, points=DRIVEN_POINTS)
    )


class KerasEvents:
    """Calls the hooks of a pipeline, in its order, as Keras comes to their points.

    The numbers of an epoch are logged at its end: those of a batch are means over the epoch so far.
    Keras sets `model` and `params` before the first event.
    """

    model: Any
    params: Mapping[str, Any]

    def __init__(self, driver: TrainerDriver) -> None:
        super().__init__()
        self.driver = driver

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        steps = self.params.get("steps")
        epochs = self.params["epochs"]
        if steps is None:
            message = "Keras does not say how many steps an epoch of these data has"
            raise UserError(Problem(message, hint="model.fit(…, steps_per_epoch=…)"))
        self.driver.begin(self.model, None, max_iters=steps * epochs, iters_per_epoch=steps)

    def on_train_batch_begin(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        self.driver.begin_iteration()

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        self.driver.end_iteration()
        self._follow()

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        for name, value in (logs or {}).items():
            if not name.startswith("val_"):
                self.driver.run.log(f"{name}_epoch", float(value))

    def on_test_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        if self.driver.is_running:
            self.driver.begin_validation()

    def on_test_end(self, logs: Mapping[str, Any] | None = None) -> None:
        if self.driver.is_running:
            self.driver.end_validation({name: float(value) for name, value in (logs or {}).items()})
            self._follow()

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        self.driver.end()

    def _follow(self) -> None:
        if self.driver.should_stop():
            self.model.stop_training = True


@cache
def _callback_class() -> type[Any]:
    import keras

    class HookflowCallback(KerasEvents, keras.callbacks.Callback):  # type: ignore[misc]
        """The events that this package follows, as a callback of Keras."""

    return HookflowCallback
