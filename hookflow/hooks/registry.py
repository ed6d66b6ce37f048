"""The short names of hooks: those built in, and those that installed packages offer by entry points."""

from __future__ import annotations

from hookflow.pipeline.registry import Registry

BUILT_IN: dict[str, str] = {
    "accuracy": "hookflow.hooks.accuracy:Accuracy",
    "checkpoint": "hookflow.hooks.checkpoint:Checkpoint",
    "early_stop": "hookflow.hooks.early_stop:EarlyStop",
    "ema": "hookflow.hooks.ema:EMA",
    "grad_clip": "hookflow.hooks.grad_clip:GradClip",
    "log": "hookflow.hooks.log:Log",
    "lr_schedule": "hookflow.hooks.lr_schedule:LRSchedule",
    "scheduler": "hookflow.hooks.scheduler:Scheduler",
    "throughput": "hookflow.hooks.throughput:Throughput",
    "whiten": "hookflow.zoo.whiten:Whiten",
}

HOOKS = Registry("hook", "hookflow.hooks", BUILT_IN)
