"""The calls of Lightning by point of hookflow, and what its own callbacks touch, by its names.

Source: `lightning.pytorch.callbacks` and `lightning.pytorch.loops`, version 2.6.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from hookflow.hooks.adapter import OutsideWrites, SlotsByPoint


@dataclass(frozen=True, slots=True)
class CallbackPoint:
    """The methods of a callback that are called at a point, and their arguments of that point."""

    methods: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()


BATCH_ARGUMENTS = ("batch", "batch_idx")
OUTPUT_ARGUMENTS = ("outputs", "batch", "batch_idx")


def make_evaluation_points(ours: str, theirs: str) -> dict[str, CallbackPoint]:
    """Return the points of an evaluation of the split `ours`.

    `theirs` is its name in Lightning's methods.
    """
    return {
        f"before_{ours}": CallbackPoint((f"on_{theirs}_start",)),
        f"before_{ours}_epoch": CallbackPoint((f"on_{theirs}_epoch_start",)),
        f"before_{ours}_iter": CallbackPoint((f"on_{theirs}_batch_start",), BATCH_ARGUMENTS),
        f"after_{ours}_iter": CallbackPoint((f"on_{theirs}_batch_end",), OUTPUT_ARGUMENTS),
        f"after_{ours}_epoch": CallbackPoint((f"on_{theirs}_epoch_end",)),
        f"after_{ours}": CallbackPoint((f"on_{theirs}_end",)),
    }


CALLBACK_POINTS: Mapping[str, CallbackPoint] = {
    "before_run": CallbackPoint(("setup",)),
    "before_train": CallbackPoint(("on_fit_start", "on_train_start")),
    "before_train_epoch": CallbackPoint(("on_train_epoch_start",)),
    "before_train_iter": CallbackPoint(("on_train_batch_start",), BATCH_ARGUMENTS),
    "before_backward": CallbackPoint(("on_before_backward",), ("outputs",)),
    "after_backward": CallbackPoint(("on_after_backward",)),
    "before_optimizer_step": CallbackPoint(("on_before_optimizer_step",)),
    "after_train_iter": CallbackPoint(("on_train_batch_end",), OUTPUT_ARGUMENTS),
    "after_train_epoch": CallbackPoint(),
    "after_train": CallbackPoint(("on_train_end", "on_fit_end")),
    **make_evaluation_points("val", "validation"),
    **make_evaluation_points("test", "test"),
    "before_test": CallbackPoint(("setup", "on_test_start")),
    "after_test": CallbackPoint(("on_test_end", "teardown")),
    "before_predict": CallbackPoint(("setup", "on_predict_start", "on_predict_epoch_start")),
    "before_predict_iter": CallbackPoint(("on_predict_batch_start",), BATCH_ARGUMENTS),
    "after_predict_iter": CallbackPoint(("on_predict_batch_end",), OUTPUT_ARGUMENTS),
    "after_predict": CallbackPoint(("on_predict_epoch_end", "on_predict_end", "teardown")),
    "before_save_checkpoint": CallbackPoint(("on_save_checkpoint",), ("checkpoint",)),
    "after_load_checkpoint": CallbackPoint(("on_load_checkpoint",), ("checkpoint",)),
    "on_exception": CallbackPoint(("on_exception",), ("exception",)),
    "after_run": CallbackPoint(("teardown",)),
}

EPOCH_END = "on_train_epoch_end"
"""Lightning calls it after the validation of the epoch: see `LightningHook`."""
EPOCH_END_POINTS = ("after_train_epoch", "after_val", "before_train_epoch", "after_train")
"""The points at which it may be called."""
ALWAYS_BOUND = ("before_run", "before_train_epoch", "after_train_epoch", "on_exception")
"""The points by which the trainer counts, whatever a callback has to do there."""
EVALUATION_STARTS = ("on_validation_start", "on_test_start")
"""The network is in evaluation by then."""
SET_METHODS = (
    "on_validation_batch_start",
    "on_validation_batch_end",
    "on_test_batch_start",
    "on_test_batch_end",
)
"""Where there are several sets, they are given the number of the batch's as `dataloader_idx`."""

PROGRESS_HINT = "the dashboard shows the progress"
SUMMARY_HINT = "hookflow run FILE --dry-run shows the table of layers"
REPLACEMENT_HINTS: Mapping[str, str] = {
    "LearningRateFinder": 'use = "lr_finder"',
    "BatchSizeFinder": 'use = "batch_size_finder"',
    "ModelPruning": 'use = "prune"',
    "BasePredictionWriter": 'use = "predict"',
    "BaseFinetuning": 'use = "freeze"',
    "BackboneFinetuning": 'use = "freeze"',
    "ModelSummary": SUMMARY_HINT,
    "RichModelSummary": SUMMARY_HINT,
    "ProgressBar": PROGRESS_HINT,
    "TQDMProgressBar": PROGRESS_HINT,
    "RichProgressBar": PROGRESS_HINT,
}
"""Callbacks of Lightning's own that need parts of its Trainer, with what does their work here."""

EPOCH_END_READS = dict.fromkeys(EPOCH_END_POINTS, ("metrics",))
STOP_WRITES = dict.fromkeys(EPOCH_END_POINTS, ("control",))
RATE_READS = {
    "before_train": ("optimizer",),
    "before_train_epoch": ("lr", "optimizer", "metrics"),
    "before_train_iter": ("lr", "optimizer", "metrics"),
}
AVERAGE_POINTS = (
    "before_val_epoch",
    "after_val_epoch",
    *EPOCH_END_POINTS,
    "after_train_iter",
    "before_run",
)
AVERAGE_READS = dict.fromkeys((*AVERAGE_POINTS, "after_load_checkpoint"), ("model",))
AVERAGE_WRITES = {
    "before_val_epoch": ("model",),
    "after_val_epoch": ("model",),
    "after_train": ("model",),
    "before_save_checkpoint": ("checkpoint",),
    "after_load_checkpoint": ("checkpoint", "model"),  # Lightning has loaded the weights by then
}
CALLBACK_SLOTS: Mapping[str, SlotsByPoint] = {
    "EarlyStopping": SlotsByPoint(EPOCH_END_READS, STOP_WRITES),
    "ModelCheckpoint": SlotsByPoint(EPOCH_END_READS),
    "LearningRateMonitor": SlotsByPoint(RATE_READS),
    "SpikeDetection": SlotsByPoint({"after_train_iter": ("outputs",)}),
    "Timer": SlotsByPoint(writes={"after_train_iter": ("control",), **STOP_WRITES}),
    "WeightAveraging": SlotsByPoint(AVERAGE_READS, AVERAGE_WRITES),
}
"""The slots that Lightning's own callbacks, and classes derived from them, read and write."""

ADAPTER_READS = {
    "before_save_checkpoint": ("checkpoint",),
    "after_load_checkpoint": ("checkpoint",),
}
"""The slots that the adapter itself reads, for any callback."""

CALLBACK_WRITES_OUTSIDE: Mapping[str, OutsideWrites] = {
    "ModelCheckpoint": ("dirpath",),
    "OnExceptionCheckpoint": True,
    "SpikeDetection": ("exclude_batches_path",),
}
"""The places outside the run directory to which Lightning's own callbacks write."""


def translate_methods() -> dict[str, str]:
    """Return the point at which each of a callback's methods is called.

    It is "" for one that hookflow has no point for.
    """
    points = {}
    for point, called in CALLBACK_POINTS.items():
        for method in called.methods:
            if method.startswith("on_") and method != point:
                points[method] = point
    points[EPOCH_END] = "after_train_epoch"
    points["on_before_zero_grad"] = ""
    return points
