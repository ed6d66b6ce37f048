"""Arguments with which each built-in hook can be made, and what each needs of a pipeline."""

import json
from pathlib import Path
from typing import Any

from hookflow.graph.points import DEFAULT_POINTS
from hookflow.graph.slots import root
from hookflow.hooks.base import Hook
from hookflow.hooks.inspect import find_methods, read_slots
from hookflow.hooks.registry import find_hook
from hookflow.pipeline.registry import HOOKS

SAMPLES: dict[str, dict[str, Any]] = {
    "accumulation_schedule": {"batches": [["1ep", 4]]},
    "accuracy": {"stages": ["train", "val", "test"]},
    "activation_checkpoint": {"match": ["body"]},
    "activation_stats": {},
    "checkpoint": {"monitor": "accuracy", "top": 3, "keep": 9},
    "confusion_matrix": {},
    "cutmix": {"classes": 3, "probability": 0.5},
    "early_stop": {"monitor": "accuracy", "patience": 3, "min_delta": 0.9},
    "ema": {"decay": 0.9},
    "empty_cache": {},
    "env_info": {},
    "export": {"formats": ["state_dict"]},
    "freeze": {"params": ["body.*"], "begin": "1ep", "end": "14it"},
    "grad_clip": {"max_norm": 1.0},
    "grad_norm": {},
    "images": {"output": "image"},
    "log": {"window": 4, "mean": "epoch"},
    "lr_finder": {"start": 1e-4, "end": 1.0, "iters": 14},
    "lr_monitor": {"also": ["momentum"]},
    "lr_schedule": {"warmup": "10%"},
    "memory": {},
    "metrics": {"metrics": {"f1": {"use": "MulticlassF1Score", "args": {"num_classes": 3}}}},
    "mixup": {"classes": 3},
    "param_schedule": {"momentum": [[0, 0.95], ["30%", 0.85], ["100%", 0.95]]},
    "param_stats": {"stats": ["mean", "max"], "histogram": True},
    "precise_bn": {"batches": 2},
    "predict": {"outputs": ["logits"]},
    "profiler": {"wait": 1, "warmup": 1, "active": 2},
    "prune": {"params": ["*.weight"], "end": "8it", "every": 4},
    "resize": {"scales": [[0, 0.5], ["2ep", 1.0]]},
    "sam": {"rho": 0.1},
    "scheduler": {"chain": [{"use": "LinearLR", "length": "10%"}, {"use": "CosineAnnealingLR"}]},
    "spike_guard": {"window": 8, "sigmas": 0.5, "patience": 100, "rollback": True},
    "swa": {"begin": "1ep", "every": "2it"},
    "sync_buffers": {},
    "throughput": {
        "window": 2,
        "tokens_per_sample": 64,
        "flops_per_sample": 1e9,
        "peak_flops": 1e12,
    },
    "time_limit": {"limit": "3.8h"},
    "tta": {"transforms": ["hflip"]},
}
"""Arguments with which each built-in hook can be made; `whiten` belongs to one network and is
tested with it, and `comm_hook` is for several ranks alone (`test_comm_hook.py`);
`batch_size_finder` ends a run before its first iteration.

Of a hook that has a state they are such that the rest of a run depends on it: the contract makes
sure of that.
"""


NEEDS = {
    "images": ['task.use="./own_tasks.py:paints"'],
    "resize": ['model.use="./toy.py:Pooled"', 'data.train.use="./toy.py:Squares"'],
    "tta": [
        'model.use="./toy.py:Pooled"',
        'data.val.use="./toy.py:Squares"',
        'data.test.use="./toy.py:Squares"',
    ],
}
"""What a hook needs of the pipeline, as overrides."""


def inline(value: Any) -> str:
    """Return a value as TOML in one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {inline(inner)}" for key, inner in value.items()) + "}"
    return f"[{', '.join(map(inline, value))}]" if isinstance(value, list) else json.dumps(value)


def hook_class(name: str) -> type[Hook]:
    result = find_hook(HOOKS.built_in[name], Path(), None)
    assert isinstance(result, type)
    return result


def slots_of(name: str) -> set[str]:
    """Return the roots of the slots that a hook declares to read or write."""
    hook = hook_class(name)
    names = {method.name for method in find_methods(hook, DEFAULT_POINTS)[0]}
    by_kind = (read_slots(hook, kind, names)[0] for kind in ("reads", "writes"))
    return {root(slot) for by_method in by_kind for of_one in by_method.values() for slot in of_one}


TOUCHING = [name for name in SAMPLES if {"model", "grads"} & slots_of(name)]
