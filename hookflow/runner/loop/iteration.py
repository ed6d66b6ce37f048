"""One training iteration, from the batch to the new weights, in its three forms.

`choose` picks one before the loop. Each is a function of the epoch's batches that trains until the loop has to look up:
attention is set, or `RunState.next_stop` iterations are done.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from time import perf_counter
from typing import Any

from hookflow.errors import Problem, UserError
from hookflow.hooks.builtin.means import WeightedSum
from hookflow.numbers import counted
from hookflow.runner.dispatch.dispatcher import Firing
from hookflow.runner.logging.timing import DATA, FORWARD
from hookflow.runner.loop.context import Context, Offering
from hookflow.runner.loop.requests import BEFORE_THE_STEP, SKIPPED
from hookflow.runner.loop.task import check_outputs, single_numbers, steps_itself
from hookflow.runner.loop.update import Update, clears_gradients
from hookflow.runner.numerics.precision import in_precision
from hookflow.runner.process.state import RunState

Iterate = Callable[[Iterator[Any]], None]
"""Trains on batches until the loop has to look up."""

Step = Callable[[Any, Any], dict[str, Any]]


class Iteration:
    """Everything that an iteration may need; `step` is the task's, in autocast where there is any."""

    def __init__(self, context: Context, run: Any, update: Update) -> None:
        parts = context.parts
        self.context = context
        self.state = context.state
        self.run = run
        self.step: Step = context.module_hooks.settled(in_precision(parts.task.step, parts.device, parts.precision))
        self.engine = context.engine
        self.requests = context.requests
        self.update = update
        self.optimizers = parts.optimizers
        self.scalars = context.scalars
        self.sizes = context.sizes["train"]
        self.strategy = parts.strategy
        self.consensus = context.consensus
        self.timeline = context.timeline
        self.accumulate = parts.section.accumulate
        self.steps_itself = steps_itself(parts.task)


def choose(it: Iteration) -> Iterate:
    """Return the iteration that does what this run needs and nothing else."""
    if it.steps_itself:
        return SelfStepping(it)
    steers = [
        binding
        for point in ("before_train_iter", *BEFORE_THE_STEP)
        for binding in it.engine.plan.at(point)
        if {"batch", "control"}.intersection(binding.writes)
    ]
    if it.accumulate > 1 or it.strategy.several or it.update.guard or steers:
        return Accumulated(it)
    return plain(it)


def plain(it: Iteration) -> Iterate:
    """Return the iteration of one batch, on one process, in which no hook changes the batch or the control flow.

    This is the hot path: whatever can be decided before is decided above `iterate`. A call that is not there costs
    nothing, and `tests/runner/test_calls.py` counts those that are.
    """
    s, run, step, requests, update = it.state, it.run, it.step, it.requests, it.update
    before_iter, after_iter = it.engine.call("before_train_iter"), it.engine.call("after_train_iter")
    after_forward, before_backward = it.engine.call("after_forward"), it.engine.call("before_backward")
    after_backward = it.engine.call("after_backward")
    before_step, after_step = it.engine.call("before_optimizer_step"), it.engine.call("after_optimizer_step")
    optimizers = [*it.optimizers.values()]
    clear = clears_gradients(optimizers)
    early = update.clears_before_forward
    watch = update.losses.watch if update.losses else None
    take = it.scalars.take if it.scalars.watched else None
    size, clock, end = it.sizes.local, perf_counter, it.timeline.iteration
    checked, done = False, s.done

    def iterate(batches: Iterator[Any]) -> None:
        nonlocal checked
        for batch in batches:
            data = clock()
            index = s.batch_idx
            s.batch_size = size(index, batch) or 0
            if before_iter:
                before_iter(batch, index)
            if early:
                clear()
            outputs = step(run, batch)
            if not checked:
                check_outputs(outputs, "step")
                checked = True
            forward = clock()
            try:
                if take:
                    take(outputs)
                if after_forward:
                    after_forward(batch, index, outputs)
                if before_backward:
                    before_backward(batch, index, outputs)
                if not early:
                    clear()
                loss = outputs["loss"]
                if watch:
                    watch(loss, batch)
                loss.backward()
            except Exception:
                check_outputs(outputs, "step")  # was the task's first answer right, and this one is not?
                raise
            backward = clock()
            if after_backward:
                after_backward(batch, index, outputs)
            s.batch_idx = index + 1
            if requests.skips_step:  # the task may read it, too
                requests.skips_step = False
                update.leave_out(True)
                optimizer = clock()
            else:
                if before_step:
                    before_step(batch, index, outputs)
                for each in optimizers:
                    each.step()  # looked up each time: schedulers and hooks put wrappers there
                optimizer = clock()
                if after_step:
                    after_step(batch, index, outputs)
            s.iter = done[0] = s.iter + 1
            if after_iter:
                after_iter(batch, index, outputs)
            end(data, forward, backward, optimizer, s.batch_size)
            del batch, outputs, loss  # or they would take up memory during the next forward pass
            if s.attention or s.iter >= s.next_stop:
                return

    return iterate


class _Batchwise(ABC):
    """The common part of iterations that take several batches."""

    def __init__(self, it: Iteration) -> None:
        self.it = it
        self.several = it.strategy.several
        self.total = 0
        """The examples of the current batch on all ranks."""
        self.offered = Offering("before_train_iter", it.run, it.context)
        """The batch after the hooks; of the later ones of an iteration, those alone that write the batch."""
        self.writers = self._writers() if it.accumulate > 1 else ()

    def __call__(self, batches: Iterator[Any]) -> None:
        s = self.it.state
        while True:
            self.iteration(batches)
            if s.attention or s.iter >= s.next_stop:
                return

    @abstractmethod
    def iteration(self, batches: Iterator[Any]) -> None:
        """Do one iteration."""

    def next(self, batches: Iterator[Any]) -> Any:
        """Return the next batch. Raises UserError when there is none, though the data promised more."""
        it, s = self.it, self.it.state
        for batch in batches:
            it.timeline.mark(DATA)
            self._weigh(batch)
            return batch
        raise too_few(s)

    def _weigh(self, batch: Any) -> None:
        """Learn how many examples the batch has, and what the loss of this rank counts of the whole."""
        it, s = self.it, self.it.state
        if self.several:
            s.batch_size, self.total = it.sizes.local(s.batch_idx, batch) or 0, it.sizes.total(s.batch_idx, batch) or 1
            it.update.loss_weight = s.batch_size * it.consensus.ranks.world / self.total
        else:
            s.batch_size = it.sizes.local(s.batch_idx, batch) or 0

    def _writers(self) -> tuple[Firing, ...]:
        """Return what fires before each batch of an iteration that has several: hooks that write it."""
        fired = self.it.engine.firings("before_train_iter")
        writers = tuple(f for f in fired if "batch" in f.binding.writes and f.binding.half == "whole")
        for firing in writers:
            firing.ask_once_per_iteration(self.it.state)
        return writers


class Accumulated(_Batchwise):
    """An iteration of one batch or several whose gradients add up, over any number of ranks, with all that may change
    it: batches replaced and skipped, steps skipped, losses scaled."""

    def __init__(self, it: Iteration) -> None:
        super().__init__(it)
        self.skips_some = any("control" in firing.binding.writes for firing in self.writers)

    def iteration(self, batches: Iterator[Any]) -> None:
        it, s = self.it, self.it.state
        entered, first = len(it.engine.arounds), s.batch_idx
        last = min(first + it.accumulate, s.batches_per_epoch)
        group = Group(it, last - first) if it.accumulate > 1 else None
        offered: tuple[Any, ...] | None = None
        while s.batch_idx < last:
            batch = self.offered(self.next(batches), self.writers if s.batch_idx > first else None)
            if batch is not SKIPPED:
                if group:
                    it.strategy.require_sync(self.skips_some or s.batch_idx + 1 == last)
                if it.update.clears_before_forward:
                    it.update.clear(it.update.every)
                outputs = it.step(it.run, batch)
                check_outputs(outputs, "step")
                it.timeline.mark(FORWARD)
                it.scalars.take(outputs)
                offered = batch, s.batch_idx, outputs
                examples = self.total if self.several else s.batch_size
                weight = group.weight(outputs, examples) if group else it.update.loss_weight
                it.update.backward(offered, it.update.every, weight)
            s.batch_idx += 1
        if offered is not None:
            if group:
                offered = *offered[:2], group.close(offered[2])
            it.update.step(offered, it.update.every)
        _close(it, entered, offered)


class Group:
    """The batches of an iteration that accumulates gradients: together they are worth one big batch.

    Each counts by its examples. How many there will be is guessed from the first batch, and put right at the end.
    """

    def __init__(self, it: Iteration, batches: int) -> None:
        self.it = it
        self.batches = batches
        self.expected = self.examples = self.local = 0
        self.sums: dict[str, WeightedSum] = {}

    def weight(self, outputs: Mapping[str, Any], examples: int) -> float:
        """Take in what the task has made of a batch of so many examples on all ranks; return what its loss counts."""
        it, size = self.it, self.it.state.batch_size
        self.expected = self.expected or max(self.batches * examples, 1)
        self.examples += examples
        self.local += size
        for name, value in single_numbers(outputs).items():
            self.sums.setdefault(name, WeightedSum()).add(value, size)  # not every batch may have it
        return it.update.loss_weight * examples / self.expected

    def close(self, outputs: Mapping[str, Any]) -> dict[str, Any]:
        """Put the gradients right, and return the last batch's outputs with the mean of each number over all."""
        if self.examples != self.expected:
            self.it.update.scale(self.expected / max(self.examples, 1))
        self.it.state.batch_size = self.local
        means = {name: item.total / max(item.weight, 1) for name, item in self.sums.items()}
        self.it.scalars.take(means)
        return {**outputs, **means}


class SelfStepping(_Batchwise):
    """An iteration of a task that calls `run.backward` and `run.step` itself: one call of its `step`."""

    def iteration(self, batches: Iterator[Any]) -> None:
        it, s = self.it, self.it.state
        entered = len(it.engine.arounds)
        batch = self.offered(self.next(batches))
        offered: tuple[Any, ...] | None = None
        if batch is not SKIPPED:
            s.batch = batch
            outputs = it.step(it.run, batch)
            s.batch = None
            check_outputs(outputs, "step", own_steps=True)
            it.timeline.mark(FORWARD)
            it.scalars.take(outputs)
            offered = batch, s.batch_idx, outputs
        s.batch_idx += 1
        it.strategy.broadcast_buffers()  # what its last step has not shared yet
        _close(it, entered, offered)


def _close(it: Iteration, entered: int, offered: tuple[Any, ...] | None) -> None:
    """Count the iteration and fire `after_train_iter`, unless every batch of it was skipped."""
    s = it.state
    s.iter = s.done[0] = s.iter + 1
    if offered is None:
        it.engine.leave(entered)
        s.batch_size = 0
    else:
        it.engine.fire("after_train_iter", *offered)
    it.timeline.end_iteration(s.batch_size)


def too_few(state: RunState) -> UserError:
    """Return what is wrong with data that end before they promised to."""
    message = f"the training data promised {counted(state.batches_per_epoch, 'batch')}, and gave {state.batch_idx}"
    return UserError(Problem(message, hint="its __len__ must be the number of batches that it yields in an epoch"))
