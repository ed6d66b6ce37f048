"""The registry of hooks: short names of built-in hooks, and of hooks in installed packages."""

from __future__ import annotations

from hookflow.pipeline.registry import Registry

BUILT_IN: dict[str, str] = {
    "accumulation_schedule": "hookflow.hooks.builtin.schedules:AccumulationSchedule",
    "accuracy": "hookflow.hooks.builtin.metrics:Accuracy",
    "activation_checkpoint": "hookflow.hooks.builtin.memory:ActivationCheckpoint",
    "activation_stats": "hookflow.hooks.builtin.activation_stats:ActivationStats",
    "checkpoint": "hookflow.hooks.builtin.checkpoint:Checkpoint",
    "comm_hook": "hookflow.hooks.builtin.comm_hook:CommHook",
    "confusion_matrix": "hookflow.hooks.builtin.metrics:ConfusionMatrix",
    "early_stop": "hookflow.hooks.builtin.early_stop:EarlyStop",
    "ema": "hookflow.hooks.builtin.averaging:EMA",
    "empty_cache": "hookflow.hooks.builtin.memory:EmptyCache",
    "env_info": "hookflow.hooks.builtin.log:EnvInfo",
    "export": "hookflow.hooks.builtin.export:Export",
    "freeze": "hookflow.hooks.builtin.freeze:Freeze",
    "grad_clip": "hookflow.hooks.builtin.gradients:GradClip",
    "grad_norm": "hookflow.hooks.builtin.gradients:GradNorm",
    "images": "hookflow.hooks.builtin.images:Images",
    "log": "hookflow.hooks.builtin.log:Log",
    "lr_finder": "hookflow.hooks.builtin.lr_finder:LRFinder",
    "lr_monitor": "hookflow.hooks.builtin.log:LRMonitor",
    "lr_schedule": "hookflow.hooks.builtin.schedules:LRSchedule",
    "memory": "hookflow.hooks.builtin.memory:Memory",
    "metrics": "hookflow.hooks.builtin.metrics:Metrics",
    "param_schedule": "hookflow.hooks.builtin.schedules:ParamSchedule",
    "param_stats": "hookflow.hooks.builtin.param_stats:ParamStats",
    "precise_bn": "hookflow.hooks.builtin.batch_norm:PreciseBN",
    "predict": "hookflow.hooks.builtin.predict:Predict",
    "profiler": "hookflow.hooks.builtin.profiler:Profiler",
    "scheduler": "hookflow.hooks.builtin.scheduler:Scheduler",
    "spike_guard": "hookflow.hooks.builtin.spike_guard:SpikeGuard",
    "swa": "hookflow.hooks.builtin.averaging:SWA",
    "sync_buffers": "hookflow.hooks.builtin.batch_norm:SyncBuffers",
    "throughput": "hookflow.hooks.builtin.log:Throughput",
    "time_limit": "hookflow.hooks.builtin.time_limit:TimeLimit",
    "tta": "hookflow.hooks.builtin.predict:TTA",
    "whiten": "hookflow.zoo.whiten:Whiten",
}

HOOKS = Registry("hook", "hookflow.hooks", BUILT_IN)
