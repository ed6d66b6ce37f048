"""All that a run must not forget, taken out of it and put back: to the bit."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from hookflow.runner.runner import Runner


def capture(run: Runner) -> dict[str, Any]:
    """Return the state of the run at a boundary: nothing but numbers, strings, tensors, lists and mappings."""
    return {
        "model": run.model.state_dict(),
        "optimizer": run.optimizer.state_dict(),
        "position": {"iter": run.iter, "epoch": run.epoch, "batch_idx": run.batch_idx},
        "metrics": dict(run.metrics),
        "hooks": {name: hook.state_dict() for name, hook in run.hooks.items() if hasattr(hook, "state_dict")},
        "triggers": {_key(run, id_): trigger.state_dict() for id_, trigger in run.triggers.items()},
        "random": _random_state(run.device),
    }


def restore(run: Runner, state: dict[str, Any]) -> None:
    """Put the state back. Hooks that the checkpoint does not know start anew, and the run says so."""
    run.model.load_state_dict(state["model"])
    run.optimizer.load_state_dict(state["optimizer"])
    position = state["position"]
    run.iter, run.epoch, run.batch_idx = position["iter"], position["epoch"], position["batch_idx"]
    run.metrics = dict(state["metrics"])
    saved = state["hooks"]
    for name, hook in run.hooks.items():
        if name in saved:
            hook.load_state_dict(saved[name])
        else:
            run.say(f'the checkpoint does not know the hook "{name}": it starts anew', "warn")
    for name in saved.keys() - run.hooks.keys():
        run.say(f'the checkpoint knows a hook "{name}" that this pipeline does not have', "warn")
    for id_, trigger in run.triggers.items():
        if _key(run, id_) in state["triggers"]:
            trigger.load_state_dict(state["triggers"][_key(run, id_)])
    _set_random_state(state["random"])


def _key(run: Runner, binding_id: int) -> str:
    binding = run.plan.bindings[binding_id]
    return f"{binding.hook}@{binding.point}"


def _random_state(device: torch.device) -> dict[str, Any]:
    kind, words, position, has_gauss, gauss = np.random.get_state(legacy=True)
    return {
        "python": random.getstate(),
        "numpy": (kind, torch.from_numpy(np.asarray(words, dtype=np.int64)), position, has_gauss, gauss),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if device.type == "cuda" else [],
    }


def _set_random_state(state: dict[str, Any]) -> None:
    random.setstate(state["python"])
    kind, words, *rest = state["numpy"]
    np.random.set_state((kind, words.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(state["torch"])
    if state["cuda"]:
        torch.cuda.set_rng_state_all(state["cuda"])
