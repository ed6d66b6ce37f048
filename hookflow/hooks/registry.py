"""The short names of hooks: those built in, and those that installed packages offer by entry points."""

from __future__ import annotations

from hookflow.pipeline.registry import Registry

BUILT_IN: dict[str, str] = {
    "accumulation_schedule": "hookflow.hooks.builtin.accumulation_schedule:AccumulationSchedule",
    "accuracy": "hookflow.hooks.builtin.accuracy:Accuracy",
    "activation_checkpoint": "hookflow.hooks.builtin.activation_checkpoint:ActivationCheckpoint",
    "activation_stats": "hookflow.hooks.builtin.activation_stats:ActivationStats",
    "checkpoint": "hookflow.hooks.builtin.checkpoint:Checkpoint",
    "comm_hook": "hookflow.hooks.builtin.comm_hook:CommHook",
    "confusion_matrix": "hookflow.hooks.builtin.confusion_matrix:ConfusionMatrix",
    "early_stop": "hookflow.hooks.builtin.early_stop:EarlyStop",
    "ema": "hookflow.hooks.builtin.ema:EMA",
    "empty_cache": "hookflow.hooks.builtin.empty_cache:EmptyCache",
    "env_info": "hookflow.hooks.builtin.env_info:EnvInfo",
    "export": "hookflow.hooks.builtin.export:Export",
    "freeze": "hookflow.hooks.builtin.freeze:Freeze",
    "grad_clip": "hookflow.hooks.builtin.grad_clip:GradClip",
    "grad_norm": "hookflow.hooks.builtin.grad_norm:GradNorm",
    "images": "hookflow.hooks.builtin.images:Images",
    "log": "hookflow.hooks.builtin.log:Log",
    "lr_finder": "hookflow.hooks.builtin.lr_finder:LRFinder",
    "lr_monitor": "hookflow.hooks.builtin.lr_monitor:LRMonitor",
    "lr_schedule": "hookflow.hooks.builtin.lr_schedule:LRSchedule",
    "memory": "hookflow.hooks.builtin.memory:Memory",
    "metrics": "hookflow.hooks.builtin.metrics:Metrics",
    "param_schedule": "hookflow.hooks.builtin.param_schedule:ParamSchedule",
    "param_stats": "hookflow.hooks.builtin.param_stats:ParamStats",
    "precise_bn": "hookflow.hooks.builtin.precise_bn:PreciseBN",
    "predict": "hookflow.hooks.builtin.predict:Predict",
    "profiler": "hookflow.hooks.builtin.profiler:Profiler",
    "scheduler": "hookflow.hooks.builtin.scheduler:Scheduler",
    "spike_guard": "hookflow.hooks.builtin.spike_guard:SpikeGuard",
    "swa": "hookflow.hooks.builtin.swa:SWA",
    "sync_buffers": "hookflow.hooks.builtin.sync_buffers:SyncBuffers",
    "throughput": "hookflow.hooks.builtin.throughput:Throughput",
    "time_limit": "hookflow.hooks.builtin.time_limit:TimeLimit",
    "tta": "hookflow.hooks.builtin.tta:TTA",
    "whiten": "hookflow.zoo.whiten:Whiten",
}

HOOKS = Registry("hook", "hookflow.hooks", BUILT_IN)
