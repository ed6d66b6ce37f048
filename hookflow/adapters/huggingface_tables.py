"""The calls of Hugging Face's Trainer by point of hookflow.

It also says which of its own callbacks have a counterpart.

Source: `transformers.trainer` and `transformers.trainer_callback`, version 5.24.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EventPoint:
    """The events of a callback at a point, and the arguments that the point gives for them."""

    events: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()


EVENT_POINTS: Mapping[str, EventPoint] = {
    "before_run": EventPoint(("on_init_end",)),
    "before_train": EventPoint(("on_train_begin",)),
    "before_train_epoch": EventPoint(("on_epoch_begin",)),
    "before_train_iter": EventPoint(("on_step_begin",)),
    "before_optimizer_step": EventPoint(("on_pre_optimizer_step",)),
    "after_optimizer_step": EventPoint(("on_optimizer_step",)),
    "after_train_iter": EventPoint(("on_step_end", "on_log"), ("batch", "outputs")),
    "after_train_epoch": EventPoint(("on_epoch_end", "on_log")),
    "before_val": EventPoint(),
    "after_val_iter": EventPoint(("on_prediction_step",)),
    "after_val": EventPoint(("on_log", "on_evaluate"), ("metrics",)),
    "after_copy_checkpoint": EventPoint(("on_save",)),
    "after_train": EventPoint(("on_epoch_end", "on_log", "on_train_end")),
    "before_test": EventPoint(),
    "after_test_iter": EventPoint(("on_prediction_step",)),
    "after_test": EventPoint(("on_predict",), ("metrics",)),
    "before_predict": EventPoint(),
    "after_predict_iter": EventPoint(("on_prediction_step",)),
    "after_predict": EventPoint(("on_predict",)),
}

ALWAYS_BOUND = (
    "before_run",
    "before_train",
    "after_train_iter",
    "after_train_epoch",
    "before_val",
    "after_val",
    "after_copy_checkpoint",
    "after_train",
)
"""The points at which the trainer counts, logs and looks at the flags.

They are bound whatever a callback has to do there.
"""

PASS_START_EVENTS = {"before_test": "on_predict", "before_predict": "on_predict"}
"""Points at which a pass begins; an event at its end has its duration."""

SUBSTEP_EVENT = "on_substep_end"
"""Called between the batches of an iteration: hookflow has no point there."""
PUSH_EVENT = "on_push_begin"

POINT_READS: Mapping[str, tuple[str, ...]] = {
    "before_run": ("lr", "optimizer"),
    "after_train_iter": ("outputs", "lr", "grads"),
    "after_train_epoch": ("lr", "grads"),
    "after_val": ("metrics",),
    "after_test": ("metrics",),
}
"""The slots that the adapter itself reads, for any callback."""

FLOW_HINT = (
    "run.val_every, and the hooks log and checkpoint, say when; control's flags ask for more"
)
PROGRESS_HINT = "the dashboard and the plain lines show the progress"
REPLACEMENT_HINTS: Mapping[str, str] = {
    "DefaultFlowCallback": FLOW_HINT,
    "ProgressCallback": PROGRESS_HINT,
    "NotebookProgressCallback": PROGRESS_HINT,
    "JITCheckpointCallback": (
        "a run that is sent SIGTERM saves at the next safe point, and is resumed by --resume"
    ),
}
"""Callbacks of Hugging Face's own that are parts of its Trainer, with what does their work here."""

TRAINER_METHODS = ("set_trainer",)
"""Methods by which a callback is given the Trainer itself."""
TRAINER_ARGUMENT = "trainer"
"""The argument of a constructor that takes the Trainer itself."""


def translate_events() -> dict[str, str]:
    """Return the point at which each event is called; "" for one that hookflow has no point for."""
    points: dict[str, str] = {}
    for point, called in EVENT_POINTS.items():
        for event in called.events:
            if event != "on_log" and event not in points:
                points[event] = point
    points["on_prediction_step"] = "after_val_iter, after_test_iter"
    points["on_predict"] = "after_test, after_predict"
    points["on_epoch_end"] = "after_train_epoch"
    points["on_save"] = "after_save_checkpoint"
    points[SUBSTEP_EVENT] = ""
    points[PUSH_EVENT] = ""
    return points
