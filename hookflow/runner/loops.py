"""The loops, as `hookflow.graph.points` draws them. They walk, count and fire; what they walk over is the runner's."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import torch

from hookflow.errors import Problem, UserError
from hookflow.runner.checkpoint.state import capture
from hookflow.runner.contract import (
    as_number,
    check_outputs,
    evaluation_of,
    single_numbers,
)
from hookflow.runner.means import Means
from hookflow.runner.numerics.device import autocast

if TYPE_CHECKING:
    from hookflow.runner.runner import Runner


def train(run: Runner) -> None:
    """Train until `max_epochs` or `max_iters`, or until somebody stops the run."""
    run.stage = "train"
    run.reach("before_train")
    run.control.begin()
    run.boundary.heed_stops()
    if run.validation_due:
        _validate(run)
        run.boundary.cross(wait=True)
    while not run.stopping and (run.epoch_is_over or not run.finished):
        _epoch(run)
    run.update.settle()
    run.reach("after_train")
    run.boundary.cross(wait=True)


def _epoch(run: Runner) -> None:
    """Walk over the training data once, from where the run is in it."""
    began = time.perf_counter_ns() - run.meter.apart  # so that what is spent apart is left out
    entered = run.dispatcher.entered
    run.model.train()
    if run.batch_idx == 0:
        run.reach("before_train_epoch")
    else:
        run.dispatcher.enter("before_train_epoch")
    run.batches = run.batches_per_epoch
    if run.compiled:
        run.compiled.look()
    if not run.epoch_is_over:
        _iterations(run)
    if run.compiled:
        run.compiled.look()
    if not run.epoch_is_over or run.before_cut is not None:
        run.dispatcher.leave(entered)
        return
    run.epoch += 1
    run.batch_idx = 0
    run.course.epoch_ends = False
    run.record("epoch", seconds=(time.perf_counter_ns() - run.meter.apart - began) / 1e9)
    run.reach("after_train_epoch")
    if _validates_after_epoch(run):
        _validate(run)
    run.boundary.cross(wait=True)


def _iterations(run: Runner) -> None:
    """Train on what is left of the epoch; cut it short when the run is at its end, or is stopped."""
    batches = iter(run.data["train"].epoch(run.epoch, start=run.batch_idx))
    run.meter.restart()
    while True:
        _iteration(run, batches)
        if validates := _validates_after_iteration(run):
            _validate(run)
        run.boundary.cross(wait=validates)
        if run.stopping or run.finished or run.epoch_is_over:
            return


def _next(run: Runner, batches: Iterator[Any]) -> Any:
    """Return the next training batch. Raises UserError when there is none, though the data promised more."""
    for batch in batches:
        run.meter.book("data")
        run.batch_size = run.sizes["train"].local(run.batch_idx, batch) or 0
        run.share.weigh(batch)
        return batch
    said = f"the training data said that it has {run.batches_per_epoch} batches, and gave {run.batch_idx}"
    raise UserError(Problem(said, hint="its __len__ must be the number of batches that it yields in an epoch"))


def _iteration(run: Runner, batches: Iterator[Any]) -> None:
    """One training iteration, from the batch to the new weights; from several where gradients are accumulated."""
    entered, first = run.dispatcher.entered, run.batch_idx
    last = min(first + run.accumulate, run.batches_per_epoch)
    group = Group(last - first) if run.accumulate > 1 else None
    offered: tuple[Any, ...] | None = None
    while run.batch_idx < last:
        batch = _offered(run, "train", _next(run, batches), run.batch_idx, again=run.batch_idx > first)
        if not run.course.taken("train"):
            if group:
                run.strategy.synchronize(run.skips_batches or run.batch_idx + 1 == last)
            offered = batch, run.batch_idx, _step(run, batch)
            if not run.steps_itself:
                share = group.share(run, offered[2]) if group else run.share.weight
                run.update.backward(offered, run.update.every, share)
        run.batch_idx += 1
    if offered is not None and not run.steps_itself:
        if group:
            offered = *offered[:2], group.close(run, offered[2])
        run.update.step(offered, run.update.every)
    if run.steps_itself:
        run.strategy.share_buffers()  # those that its last step has not shared yet
    run.iter += 1
    if offered is None:
        run.dispatcher.leave(entered)
        run.batch_size = 0
    else:
        run.reach("after_train_iter", *offered)
    run.meter.iteration(run.batch_size)


def _offered(run: Runner, split: Literal["train", "val", "test"], batch: Any, index: int, again: bool = False) -> Any:
    """Fire `before_X_iter` with a batch, and return the batch that hooks have made of it.

    `again` is for the later batches of one iteration: then those hooks alone are called that write the batch.
    """
    run.course.offered = offered = [run, batch, index]
    if not again:
        run.dispatcher.offer(f"before_{split}_iter", offered)
    else:
        for firing in run.batch_writers:
            run.dispatcher.call_within(firing, offered)
    return offered[1]


def _step(run: Runner, batch: Any) -> dict[str, Any]:
    """Return what the task makes of a training batch."""
    run.at_hand = batch if run.steps_itself else None
    with autocast(run.device, run.precision):
        outputs: dict[str, Any] = run.task.step(run, batch)
    run.at_hand = None
    check_outputs(outputs, "step", run.steps_itself)
    run.meter.book("forward")
    run.scalars.take(outputs)
    return outputs


class Group:
    """The batches of an iteration that accumulates gradients: together they are worth one big batch.

    Each counts by its examples. How many there will be is guessed from the first batch, and put right at the end.
    """

    def __init__(self, batches: int) -> None:
        self.batches = batches
        self.expected = self.examples = self.here = 0
        self.sums: dict[str, Any] = {}

    def share(self, run: Runner, outputs: Mapping[str, Any]) -> float:
        """Take in what the task has made of the batch at hand, and return what its loss is to be multiplied with."""
        examples = run.share.examples
        self.expected = self.expected or max(self.batches * examples, 1)
        self.examples += examples
        self.here += run.batch_size
        for name, value in single_numbers(outputs).items():
            self.sums[name] = self.sums.get(name, 0.0) + value * run.batch_size
        return run.share.weight * examples / self.expected

    def close(self, run: Runner, outputs: Mapping[str, Any]) -> dict[str, Any]:
        """Put the gradients right, and return the last batch's outputs with the mean of each number over all."""
        if self.examples != self.expected:
            run.update.scale(self.expected / max(self.examples, 1))
        run.batch_size = self.here
        means = {name: total / max(self.here, 1) for name, total in self.sums.items()}
        run.scalars.take(means)
        return {**outputs, **means}


def _validates_after_iteration(run: Runner) -> bool:
    """Say whether validation is due: every `val_every` iterations and after the last, or in an epoch that is cut."""
    if "val" not in run.data:
        return False
    if run.val_every.unit == "it":
        return run.iter % run.val_every.value == 0 or run.finished
    return run.finished and not run.epoch_is_over


def _validates_after_epoch(run: Runner) -> bool:
    """Say whether validation is due: every `val_every` epochs and after the last, unless it has just been."""
    if "val" not in run.data:
        return False
    if run.val_every.unit == "ep":
        return run.epoch % run.val_every.value == 0 or run.finished
    return run.finished and run.validated_at != run.iter


def _validate(run: Runner) -> None:
    """Validate. When a signal cuts that short, what will be saved is the state from before it.

    So a resumed run validates first, and goes on as if nothing had been. To keep that state costs nothing: its
    tensors are the run's own, and a validation leaves them as they were.
    """
    run.validation_due = False
    state = capture(run, validation_due=True)
    run.validated_at = run.iter
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


def _means(run: Runner, split: Literal["val", "test"]) -> dict[str, float] | None:
    """Evaluate every batch; return the mean over the examples of each single number that the task gives, "loss" first.

    Those are the examples of all ranks, of which each has its own: they learn the same means, to the bit. Return None
    when a signal has come: the batch at hand was the last.
    """
    sizes = run.sizes[split]
    means = Means(sizes.exact)
    evaluate = evaluation_of(run.task)
    run.batches = len(run.data[split])
    for index, given in enumerate(run.data[split].epoch(0)):
        run.batch_idx, run.batch_size = index, sizes.local(index, given) or 0
        entered = run.dispatcher.entered
        batch = _offered(run, split, given, index)
        if run.course.taken(split):
            run.dispatcher.leave(entered)
            continue
        with torch.no_grad(), autocast(run.device, run.precision):
            outputs = evaluate(run, batch)
        check_outputs(outputs, "evaluate", run.steps_itself)
        means.add(single_numbers(outputs), run.batch_size or None)
        run.reach(f"after_{split}_iter", batch, index, outputs)
        if run.boundary.cuts_short():
            return None
    return means.over_ranks(run.agreement.gather)
