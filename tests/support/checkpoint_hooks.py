"""Hooks that stand around a save: named by tests' pipelines as "./checkpoint_hooks.py:…"."""

import os
import time
from typing import Any

from hookflow.runner.checkpoint import store
from hookflow.runner.logging import recorder
from hookflow.runner.state import checkpoint_manager as manager


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
