"""Hooks that stand around a save: named by tests' pipelines as "./checkpoint_hooks.py:…"."""

import os
import time
from collections.abc import Iterator
from typing import Any

import torch

from hookflow.runner.checkpoint import store
from hookflow.runner.logging import recorder
from hookflow.runner.state import checkpoint_manager as manager


class Swaps:
    """Lets a checkpoint have zeros where the head's weights are."""

    def around_save_checkpoint(self, run: Any) -> Iterator[None]:
        weights = run.model.head.weight
        kept = weights.detach().clone()
        with torch.no_grad():
            weights.zero_()
            yield
            weights.copy_(kept)


class Keeps:
    """Keeps every state that it is told is safe,
    and says at the end whether they are still what is on the disk.
    """

    def __init__(self) -> None:
        self.kept: list[tuple[Any, Any]] = []

    def after_save_checkpoint(self, checkpoint: Any, path: Any) -> None:
        self.kept.append((checkpoint, path))

    def after_run(self, run: Any) -> None:
        same = [
            torch.equal(checkpoint["model"][name], tensor)
            for checkpoint, path in self.kept
            for name, tensor in torch.load(path / "model.pt", weights_only=True).items()
        ]
        run.say(
            "all are as they were written"
            if all(same) and len(self.kept) > 2
            else "some have changed"
        )


class SlowDisk:
    """Lets the first checkpoint of rank 0 take so many seconds on its way to the disk;
    at the end nobody waits long.
    """

    ranks = "zero"

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def before_run(self, run: Any) -> None:
        real = os.fsync

        def slow(descriptor: int) -> None:
            seconds, self.seconds = self.seconds, 0.0
            time.sleep(seconds)
            real(descriptor)

        os.fsync = slow
        manager.ABANDON_GRACE_SECONDS = recorder.GRACE_SECONDS = 0.5


class SlowReads:
    """Lets rank 0 take so many seconds to read the checkpoint that a run resumes from."""

    ranks = "zero"

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def before_run(self, run: Any) -> None:
        take = store.CheckpointStore.take

        def slow(*args: Any) -> Any:
            time.sleep(self.seconds)
            return take(*args)

        store.CheckpointStore.take = slow
