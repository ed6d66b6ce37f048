"""What a hook sees of the run: the part of the runner that hooks may lean on, as a protocol.

It stands here because hooks know no runner; the runner is checked against it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch
    from torch import nn


class Run(Protocol):
    """The run that every point offers."""

    iter: int
    """Training iterations that are done."""
    epoch: int
    """Epochs of training that are done."""
    max_iters: int
    """Training iterations of the whole run."""
    max_epochs: int | None
    """Epochs of the whole run; None in the iteration-based loop."""
    iters_per_epoch: int
    """Batches in one pass over the training data."""
    batch_size: int
    """Examples in the batch at hand."""
    device: torch.device
    model: nn.Module
    optimizer: torch.optim.Optimizer
    task: Any
    data: Mapping[str, Any]
    """The data sources by split: "train", and "val" and "test" where the pipeline has them.

    `hookflow.runner.source.Source` says what each can do.
    """
    metrics: Mapping[str, float]
    """What the latest validation or test found."""
    rank: int
    """Which of the processes that train together this is; 0 where there is one."""
    hooks: Mapping[str, Any]
    """Every hook by name."""
    dir: Path
    """The run directory."""

    def log(self, name: str, value: float | torch.Tensor) -> None:
        """Record a number (or a tensor of one element, which stays on the device until somebody else fetches it).

        Raises TypeError when it is something else.
        """

    def say(self, text: str, level: str = "info") -> None:
        """Record a line for people: "info", "warn" or "error"."""

    def fire(self, point: str, *offered: Any) -> None:
        """Fire a point that the pipeline declares for itself, with what it offers beside the run, in that order.

        Who is bound there is called before this returns; their time is theirs, not the caller's. Raises UserError
        with the nearest name when there is no such point, or when it offers more or less.
        """

    def stop(self, reason: str) -> None:
        """End the training at the next boundary: after this iteration, or after this epoch's validation."""

    def save_checkpoint(self, *names: str, moved: Mapping[str, int] = ..., keep: int | None = None) -> None:
        """Save the state at the next boundary, to go by `names` ("last" if there are none).

        That is after this iteration, this epoch's validation, the end of training, or the test; asked for at
        `on_exception`, it is what stands then, and no run goes on from it. With that, `moved` gives names to
        checkpoints that stand, by their iteration. `keep` is how many of the newest whole ones stay, beside those that
        bear a name; all of them if nobody says. It does not wait for the disk.
        """

    def metric(self, name: str) -> float:
        """Return a metric of the latest validation. Raises UserError with the nearest name when there is none."""
