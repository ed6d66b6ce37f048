"""The short names of the built-in hooks. A pipeline may also name any class or function by where it stands."""

from __future__ import annotations

BUILT_IN: dict[str, str] = {
    "accuracy": "hookflow.hooks.accuracy:Accuracy",
    "checkpoint": "hookflow.hooks.checkpoint:Checkpoint",
    "early_stop": "hookflow.hooks.early_stop:EarlyStop",
    "ema": "hookflow.hooks.ema:EMA",
    "grad_clip": "hookflow.hooks.grad_clip:GradClip",
    "log": "hookflow.hooks.log:Log",
    "lr_schedule": "hookflow.hooks.lr_schedule:LRSchedule",
    "throughput": "hookflow.hooks.throughput:Throughput",
    "whiten": "hookflow.zoo.whiten:Whiten",
}
