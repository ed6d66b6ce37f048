"""Memory: how much of the host's and of the device's the training process holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hookflow.hooks.base import Hook

if TYPE_CHECKING:
    import torch

    from hookflow.hooks.run import Run


MIB = 2**20


class Memory(Hook):
    """Logs the memory of this process in MiB: `memory/rss` of the host, `memory/allocated` and `memory/peak` on CUDA.

    `rss` is the resident set, `allocated` what tensors take up on the device, and `peak` the most that they have taken
    up since the process began, as PyTorch's allocator counts them; to ask it does not wait for the device. The workers
    of a data loader are processes of their own, and are not counted. Each rank logs its own.
    """

    phase = "late"

    def after_train_iter(self, run: Run) -> None:
        for name, value in memory(run.device).items():
            run.log(f"memory/{name}", value)


def memory(device: torch.device) -> dict[str, float]:
    """Return what this process holds of the host's memory, and of the device's where that is CUDA, in MiB."""
    import psutil

    found = {"rss": psutil.Process().memory_info().rss / MIB}
    if device.type == "cuda":
        from torch import cuda

        found["allocated"] = cuda.memory_allocated(device) / MIB
        found["peak"] = cuda.max_memory_allocated(device) / MIB
    return found
