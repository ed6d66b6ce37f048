"""The state of every global random generator: Python's, NumPy's, torch's and the device's own."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def random_state(device: torch.device) -> dict[str, Any]:
    """Return the state of every global random generator, as plain values and tensors: a number each is slow to save."""
    version, own, next_gauss = random.getstate()
    kind, words, position, has_gauss, gauss = np.random.get_state(legacy=True)
    return {
        "python": (version, torch.tensor(own, dtype=torch.int64), next_gauss),
        "numpy": (kind, torch.from_numpy(np.asarray(words, dtype=np.int64)), position, has_gauss, gauss),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
    }


def set_random_state(state: dict[str, Any], device: torch.device) -> None:
    """Put back what `random_state` returned, maybe of a run on another kind of device."""
    version, own, next_gauss = state["python"]
    random.setstate((version, tuple(own.tolist()), next_gauss))
    kind, words, *rest = state["numpy"]
    np.random.set_state((kind, words.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"], device)
