"""Buffers that are the mean over all ranks, as the running statistics of batch norms."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from hookflow.hooks.base import Hook, Slots

if TYPE_CHECKING:
    from hookflow.hooks.run import Run


class SyncBuffers(Hook):
    """Averages floating-point buffers (batch-norm statistics) over all ranks after each backward pass.

    Without it every rank has the running statistics of rank 0, which has seen its share of the batches alone; the
    ranks have the same in either case. A rank counts alike, whatever its examples. It costs one small all-reduce an
    iteration, and nothing where there is one rank.
    """

    reads: ClassVar[Slots] = {"after_backward": ("model",)}
    writes: ClassVar[Slots] = {"after_backward": ("model",)}

    def after_backward(self, run: Run) -> None:
        if run.world == 1:
            return
        import torch

        buffers = [buffer for buffer in run.model.buffers() if buffer.is_floating_point()]
        if not buffers:
            return
        means = run.mean(torch.cat([buffer.flatten().double() for buffer in buffers]))
        for buffer, mean in zip(buffers, means.split([buffer.numel() for buffer in buffers]), strict=True):
            buffer.copy_(mean.view_as(buffer))
