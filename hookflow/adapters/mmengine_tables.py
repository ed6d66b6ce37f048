"""The arguments of MMEngine's hooks, and the slots of its own ones, by its names.

Source: `mmengine.hooks` and `mmengine.runner.loops`, version 0.10.
"""

from collections.abc import Mapping

from hookflow.graph.plan import Phase
from hookflow.hooks.adapter import SlotsByPoint

POINT_ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "before_run": (),
    "before_train": (),
    "before_train_epoch": (),
    "after_train_epoch": (),
    "before_val": (),
    "before_val_epoch": (),
    "after_val": (),
    "before_test": (),
    "before_test_epoch": (),
    "after_test": (),
    "after_train": (),
    "after_run": (),
    "before_train_iter": ("batch_idx", "batch"),
    "before_val_iter": ("batch_idx", "batch"),
    "before_test_iter": ("batch_idx", "batch"),
    "after_train_iter": ("batch_idx", "batch", "outputs"),
    "after_val_iter": ("batch_idx", "batch", "outputs"),
    "after_test_iter": ("batch_idx", "batch", "outputs"),
    "after_val_epoch": ("metrics",),
    "after_test_epoch": ("metrics",),
    "before_save_checkpoint": ("checkpoint",),
    "after_load_checkpoint": ("checkpoint",),
}
"""The 22 points of MMEngine with the arguments besides the runner.

All of them are hookflow's, too.
"""

EPOCH_OF_LOOP: Mapping[str, str] = {
    "before_train_epoch": "before_train",
    "after_train_epoch": "after_train",
}
"""The points of an epoch that MMEngine's iteration-based loop fires once.

They fire at the ends of the training.
"""

HIGHEST_PRIORITIES: tuple[tuple[int, Phase], ...] = (
    (20, "first"),
    (45, "early"),
    (55, "normal"),
    (80, "late"),
    (100, "last"),
)
"""The greatest priority of each phase."""

REPLACEMENT_HINTS: Mapping[str, str] = {
    "mmengine.CheckpointHook": 'use = "checkpoint"',
    "mmengine.LoggerHook": 'use = "log", and [writers.NAME] for TensorBoard and others',
    "mmengine.ParamSchedulerHook": 'use = "scheduler"',
    "mmengine.NaiveVisualizationHook": 'use = "images"',
    "mmengine.PrepareTTAHook": 'use = "tta"',
    "mmengine.NPUProfilerHook": 'use = "profiler"',
    "mmyolo.YOLOXModeSwitchHook": "the hook of this name of mmdet changes the dataset, and works",
    "mmpose.YOLOXPoseModeSwitchHook": (
        "mmdet's PipelineSwitchHook and mmpose's RTMOModeSwitchHook do the same"
    ),
    "mmrazor.RazorVisualizationHook": 'use = "images"',
}
"""Hooks that need MMEngine's Runner, or its config, with what replaces them here.

The Runner is built from that config.
"""

SWAP_POINTS = ("before_val_epoch", "after_val_epoch", "before_test_epoch", "after_test_epoch")
"""Where `EMAHook` swaps the weights with their average."""
CHECKPOINT_SLOTS = {
    "before_save_checkpoint": ("checkpoint",),
    "after_load_checkpoint": ("checkpoint",),
}

ADAPTER_READS: Mapping[str, tuple[str, ...]] = {
    "after_train_iter": ("outputs",),
    "after_val_iter": ("outputs",),
    "after_test_iter": ("outputs",),
    **CHECKPOINT_SLOTS,
}
"""The slots that the adapter itself reads, for any hook."""

EMA_READS = dict.fromkeys(
    (*SWAP_POINTS, "after_train_iter", "before_run", "after_load_checkpoint"), ("model",)
)
EMA_WRITES = {**dict.fromkeys(SWAP_POINTS, ("model",)), **CHECKPOINT_SLOTS}
RUNTIME_INFO_READS = {
    "before_train_iter": ("lr",),
    "after_val_epoch": ("metrics",),
    "after_test_epoch": ("metrics",),
}
SYNC_BUFFERS_WRITES = {"before_val_epoch": ("model",), "after_train_epoch": ("model",)}

HOOK_SLOTS: Mapping[str, SlotsByPoint] = {
    "EMAHook": SlotsByPoint(EMA_READS, EMA_WRITES),
    "EarlyStoppingHook": SlotsByPoint(
        {"after_val_epoch": ("metrics",)}, {"after_val_epoch": ("control",)}
    ),
    "RuntimeInfoHook": SlotsByPoint(RUNTIME_INFO_READS),
    "SyncBuffersHook": SlotsByPoint(writes=SYNC_BUFFERS_WRITES),
}
"""The slots that MMEngine's own hooks read and write, and classes that are derived from them."""

HOOK_WRITES_OUTSIDE: Mapping[str, tuple[str, ...]] = {
    "ProfilerHook": ("json_trace_path", "on_trace_ready")
}
"""The arguments by which MMEngine's own hooks write outside the run directory."""

FAN_OUTS = {
    "before_epoch": "before_train_epoch, before_val_epoch, before_test_epoch",
    "after_epoch": "after_train_epoch, after_val_epoch, after_test_epoch",
    "before_iter": "before_train_iter, before_val_iter, before_test_iter",
    "after_iter": "after_train_iter, after_val_iter, after_test_iter",
}
"""Methods that MMEngine calls for each of the splits, also with an underscore before the name."""


def translate_members() -> dict[str, str]:
    """Return the names here of the members of MMEngine's hooks that are no points.

    Members are methods and attributes.
    """
    members = {"priority": "phase"}
    for name, ours in FAN_OUTS.items():
        members[name] = ours
        members[f"_{name}"] = ours
    return members
