"""The loops, as `hookflow.graph.points` draws them. They walk, count and fire; what they walk over is the runner's."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Literal

import torch

from hookflow.runner.device import autocast

if TYPE_CHECKING:
    from hookflow.runner.runner import Runner


def train(run: Runner) -> None:
    """Train until `max_iters`, or until somebody stops the run."""
    run.stage = "train"
    run.fire("before_train")
    while run.iter < run.max_iters and not run.stopping:
        _epoch(run)
    run.fire("after_train")


def _epoch(run: Runner) -> None:
    """Walk over the training data once, from where the run is in it."""
    began = time.perf_counter()
    run.model.train()
    if run.batch_idx == 0:
        run.fire("before_train_epoch")
    run.batches = run.iters_per_epoch
    run.meter.restart()
    for batch in run.data["train"].epoch(run.epoch, start=run.batch_idx):
        run.meter.book("data")
        _iteration(run, batch)
        if _validates(run, run.max_epochs is None):
            evaluate(run, "val")
        run.boundary()
        if run.stopping or run.iter >= run.max_iters:
            break
    if run.batch_idx < run.iters_per_epoch:
        return
    run.epoch += 1
    run.batch_idx = 0
    run.record("epoch", seconds=time.perf_counter() - began)
    run.fire("after_train_epoch")
    if _validates(run, run.max_epochs is not None):
        evaluate(run, "val")
    run.boundary()


def _iteration(run: Runner, batch: Any) -> None:
    """One training iteration, from the batch to the new weights."""
    meter, index = run.meter, run.batch_idx
    run.batch_size = batch_size_of(batch)
    run.fire("before_train_iter", batch, index)
    with autocast(run.device, run.precision):
        outputs = run.task.step(run.model, batch)
    meter.book("forward")
    run.fire("after_forward", batch, index, outputs)
    run.fire("before_backward", batch, index, outputs)
    run.optimizer.zero_grad(set_to_none=True)
    outputs["loss"].backward()
    meter.book("backward")
    run.fire("after_backward", batch, index, outputs)
    run.fire("before_optimizer_step", batch, index, outputs)
    run.optimizer.step()
    meter.book("optimizer")
    run.fire("after_optimizer_step", batch, index, outputs)
    run.iter += 1
    run.batch_idx += 1
    run.fire("after_train_iter", batch, index, outputs)
    meter.iteration(run.batch_size)


def _validates(run: Runner, now_is_the_unit: bool) -> bool:
    """Say whether validation is due: every `val_every` of the loop's unit, and at the end of training.

    `now_is_the_unit` says whether what has just ended (an iteration or an epoch) is what `val_every` counts.
    """
    if not now_is_the_unit or "val" not in run.data:
        return False
    done = run.iter if run.max_epochs is None else run.epoch
    return done % run.val_every == 0 or run.iter >= run.max_iters


def evaluate(run: Runner, split: Literal["val", "test"]) -> None:
    """Walk over the validation or test data once and leave what was found in `run.metrics`."""
    began = time.perf_counter()
    before = run.stage, run.batch_idx, run.batches
    with run.meter.aside():
        run.stage = split
        run.fire(f"before_{split}")
        run.model.eval()
        run.fire(f"before_{split}_epoch")
        run.metrics = metrics = {"loss": _mean_loss(run, split)}
        run.fire(f"after_{split}_epoch", metrics)
        run.fire(f"after_{split}", metrics)
        run.record("metrics", split=split, v=metrics, seconds=time.perf_counter() - began)
        run.model.train()
    run.stage, run.batch_idx, run.batches = before


def _mean_loss(run: Runner, split: str) -> float:
    """Evaluate every batch and return the mean loss over the examples; it stays on the device until the end."""
    total: Any = 0.0
    seen = 0
    run.batches = len(run.data[split])
    for index, batch in enumerate(run.data[split].epoch(0)):
        run.batch_idx, run.batch_size = index, batch_size_of(batch)
        run.fire(f"before_{split}_iter", batch, index)
        with torch.no_grad(), autocast(run.device, run.precision):
            outputs = run.task.evaluate(run.model, batch)
        total = total + outputs["loss"].detach() * run.batch_size
        seen += run.batch_size
        run.fire(f"after_{split}_iter", batch, index, outputs)
    return float(total) / max(seen, 1)


def batch_size_of(batch: Any) -> int:
    """Return the length of the first tensor in a batch."""
    if isinstance(batch, torch.Tensor):
        return len(batch)
    return batch_size_of(next(iter(batch.values() if isinstance(batch, dict) else batch)))
