"""The loops, as `hookflow.graph.points` draws them. They walk, count and fire; what they walk over is the runner's."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import torch

from hookflow.errors import Problem, UserError
from hookflow.runner.contract import (
    as_number,
    batch_size_of,
    check_outputs,
    evaluation_of,
    single_numbers,
    steps_itself,
)
from hookflow.runner.device import autocast
from hookflow.runner.state import capture

if TYPE_CHECKING:
    from hookflow.runner.runner import Runner


def train(run: Runner) -> None:
    """Train until `max_iters`, or until somebody stops the run."""
    run.stage = "train"
    run.reach("before_train")
    run.control.begin()
    if run.validation_due:
        _validate(run)
        run.boundary()
    while run.iter < run.max_iters and not run.stopping:
        _epoch(run)
    run.reach("after_train")
    run.boundary()


def _epoch(run: Runner) -> None:
    """Walk over the training data once, from where the run is in it."""
    began = time.perf_counter_ns() - run.meter.apart  # so that what is spent apart is left out
    entered = run.dispatcher.entered
    run.model.train()
    if run.batch_idx == 0:
        run.reach("before_train_epoch")
    else:
        run.dispatcher.enter("before_train_epoch")
    run.batches = run.iters_per_epoch
    _batches(run)
    if run.batch_idx < run.iters_per_epoch or run.before_cut is not None:
        run.dispatcher.leave(entered)
        return
    run.epoch += 1
    run.batch_idx = 0
    run.record("epoch", seconds=(time.perf_counter_ns() - run.meter.apart - began) / 1e9)
    run.reach("after_train_epoch")
    if _validates(run, run.max_epochs is not None):
        _validate(run)
    run.boundary()


def _batches(run: Runner) -> None:
    """Train on what is left of the epoch; cut it short when the run is at its end, or is stopped."""
    run.meter.restart()
    for batch in run.data["train"].epoch(run.epoch, start=run.batch_idx):
        run.meter.book("data")
        _iteration(run, batch)
        if _validates(run, run.max_epochs is None):
            _validate(run)
        run.boundary()
        if run.stopping or run.iter >= run.max_iters or run.batch_idx == run.iters_per_epoch:
            return
    if run.batch_idx < run.iters_per_epoch:
        said = f"the training data said that it has {run.iters_per_epoch} batches, and gave {run.batch_idx}"
        raise UserError(Problem(said, hint="its __len__ must be the number of batches that it yields in an epoch"))


def _iteration(run: Runner, batch: Any) -> None:
    """One training iteration, from the batch to the new weights."""
    meter, index = run.meter, run.batch_idx
    run.batch_size = batch_size_of(batch)
    run.reach("before_train_iter", batch, index)
    with autocast(run.device, run.precision):
        outputs = run.task.step(run, batch)
    check_outputs(outputs, "step")
    meter.book("forward")
    run.scalars.take(outputs)
    run.reach("after_forward", batch, index, outputs)
    run.reach("before_backward", batch, index, outputs)
    run.optimizer.zero_grad(set_to_none=True)
    outputs["loss"].backward()
    meter.book("backward")
    run.reach("after_backward", batch, index, outputs)
    run.reach("before_optimizer_step", batch, index, outputs)
    run.optimizer.step()
    meter.book("optimizer")
    run.reach("after_optimizer_step", batch, index, outputs)
    run.iter += 1
    run.batch_idx += 1
    run.reach("after_train_iter", batch, index, outputs)
    meter.iteration(run.batch_size)


def _validates(run: Runner, now_is_the_unit: bool) -> bool:
    """Say whether validation is due: every `val_every` of the loop's unit, and at the end of training.

    `now_is_the_unit` says whether what has just ended (an iteration or an epoch) is what `val_every` counts.
    """
    if not now_is_the_unit or "val" not in run.data:
        return False
    done = run.iter if run.max_epochs is None else run.epoch
    return done % run.val_every == 0 or run.iter >= run.max_iters


def _validate(run: Runner) -> None:
    """Validate. When a signal cuts that short, what will be saved is the state from before it.

    So a resumed run validates first, and goes on as if nothing had been. To keep that state costs nothing: its
    tensors are the run's own, and a validation leaves them as they were.
    """
    run.validation_due = False
    state = capture(run, validation_due=True)
    if not evaluate(run, "val"):
        run.before_cut = state


def evaluate(run: Runner, split: Literal["val", "test"]) -> bool:
    """Walk over the validation or test data once and leave what was found in `run.metrics`.

    Return False when a signal has cut the walk short: then nobody gets half the metrics. `after_X_epoch` and
    `after_X` do not fire, but what was entered around them is left.
    """
    began = time.perf_counter()
    before = run.stage, run.batch_idx, run.batches
    entered = run.dispatcher.entered
    with run.meter.aside():
        run.stage = split
        run.reach(f"before_{split}")
        run.model.eval()
        run.reach(f"before_{split}_epoch")
        means = _means(run, split)
        if means is None:
            run.dispatcher.leave(entered)
        else:
            metrics: dict[str, Any] = {**means, **_further(run.task, means)}
            run.metrics = metrics
            run.reach(f"after_{split}_epoch", metrics)
            metrics.update({name: as_number(value, f'metrics["{name}"]') for name, value in metrics.items()})
            run.metrics = MappingProxyType(metrics)
            run.reach(f"after_{split}", run.metrics)
            run.record("metrics", split=split, v=metrics, seconds=time.perf_counter() - began)
        run.model.train()
    run.stage, run.batch_idx, run.batches = before
    return means is not None


def _further(task: Any, means: Mapping[str, float]) -> Mapping[str, float]:
    """Return the metrics that the task makes of the means, if it makes any."""
    made: Mapping[str, float] = task.metrics(means) if hasattr(task, "metrics") else {}
    return made


def _means(run: Runner, split: str) -> dict[str, float] | None:
    """Evaluate every batch; return the mean over the examples of each single number that the task gives, "loss" first.

    The sums stay on the device until the end. Return None when a signal has come: the batch at hand was the last.
    """
    sums: dict[str, Any] = {}
    seen: dict[str, int] = {}
    own_steps = steps_itself(run.task)
    evaluate = evaluation_of(run.task)
    run.batches = len(run.data[split])
    for index, batch in enumerate(run.data[split].epoch(0)):
        run.batch_idx, run.batch_size = index, batch_size_of(batch)
        run.reach(f"before_{split}_iter", batch, index)
        with torch.no_grad(), autocast(run.device, run.precision):
            outputs = evaluate(run, batch)
        check_outputs(outputs, "evaluate", own_steps)
        for name, value in single_numbers(outputs).items():
            sums[name] = sums.get(name, 0.0) + value * run.batch_size
            seen[name] = seen.get(name, 0) + run.batch_size
        run.reach(f"after_{split}_iter", batch, index, outputs)
        if run.control.stop is not None:
            return None
    return {name: float(total) / max(seen[name], 1) for name, total in sums.items()}
