"""Empty cache: gives memory that PyTorch holds in reserve back to the device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hookflow.hooks.base import Hook

if TYPE_CHECKING:
    from hookflow.hooks.run import Run


class EmptyCache(Hook):
    """Calls `torch.cuda.empty_cache` after each epoch of training and after each validation.

    For a device that other processes use too, or where validation needs blocks of other sizes than training: what is
    given back has to be fetched again, so it costs time, and the run itself gets no more memory by it. It waits for
    the device. Where the run does not compute on CUDA it does nothing.
    """

    points = ("after_train_epoch", "after_val")
    phase = "last"

    def after_train_epoch(self, run: Run) -> None:
        if run.device.type == "cuda":
            from torch import cuda

            cuda.empty_cache()

    after_train_iter = after_val = after_train_epoch
