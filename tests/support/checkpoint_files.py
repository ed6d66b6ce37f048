"""Checkpoints that are saved without a run."""

from pathlib import Path
from typing import Any

import torch

from hookflow.runner.checkpoint.store import CheckpointStore


def save(store: CheckpointStore, it: int, *names: str, **moved: int) -> Path:
    return store.save(
        {"model": {"w": torch.ones(2) * it}, "more": [it]}, names, {"it": it, "ep": 0}, moved
    ).path


class Evil:
    def __reduce__(self) -> Any:
        return Path.touch, (Path("pwned"),)
