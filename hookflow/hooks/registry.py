"""The short names of hooks: those built in, and those that installed packages offer by entry points."""

from __future__ import annotations

from hookflow.pipeline.registry import Registry

BUILT_IN: dict[str, str] = {
    "accumulation_schedule": "hookflow.hooks.accumulation_schedule:AccumulationSchedule",
    "accuracy": "hookflow.hooks.accuracy:Accuracy",
    "activation_checkpoint": "hookflow.hooks.activation_checkpoint:ActivationCheckpoint",
    "activation_stats": "hookflow.hooks.activation_stats:ActivationStats",
    "checkpoint": "hookflow.hooks.checkpoint:Checkpoint",
    "comm_hook": "hookflow.hooks.comm_hook:CommHook",
    "confusion_matrix": "hookflow.hooks.confusion_matrix:ConfusionMatrix",
    "early_stop": "hookflow.hooks.early_stop:EarlyStop",
    "ema": "hookflow.hooks.ema:EMA",
    "empty_cache": "hookflow.hooks.empty_cache:EmptyCache",
    "env_info": "hookflow.hooks.env_info:EnvInfo",
    "export": "hookflow.hooks.export:Export",
    "freeze": "hookflow.hooks.freeze:Freeze",
    "grad_clip": "hookflow.hooks.grad_clip:GradClip",
    "grad_norm": "hookflow.hooks.grad_norm:GradNorm",
    "images": "hookflow.hooks.images:Images",
    "log": "hookflow.hooks.log:Log",
    "lr_finder": "hookflow.hooks.lr_finder:LRFinder",
    "lr_monitor": "hookflow.hooks.lr_monitor:LRMonitor",
    "lr_schedule": "hookflow.hooks.lr_schedule:LRSchedule",
    "memory": "hookflow.hooks.memory:Memory",
    "metrics": "hookflow.hooks.metrics:Metrics",
    "param_schedule": "hookflow.hooks.param_schedule:ParamSchedule",
    "param_stats": "hookflow.hooks.param_stats:ParamStats",
    "precise_bn": "hookflow.hooks.precise_bn:PreciseBN",
    "predict": "hookflow.hooks.predict:Predict",
    "profiler": "hookflow.hooks.profiler:Profiler",
    "scheduler": "hookflow.hooks.scheduler:Scheduler",
    "spike_guard": "hookflow.hooks.spike_guard:SpikeGuard",
    "swa": "hookflow.hooks.swa:SWA",
    "sync_buffers": "hookflow.hooks.sync_buffers:SyncBuffers",
    "throughput": "hookflow.hooks.throughput:Throughput",
    "time_limit": "hookflow.hooks.time_limit:TimeLimit",
    "tta": "hookflow.hooks.tta:TTA",
    "whiten": "hookflow.zoo.whiten:Whiten",
}

HOOKS = Registry("hook", "hookflow.hooks", BUILT_IN)
