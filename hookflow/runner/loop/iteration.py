"""One training iteration, from the batch to the new weights, in its three forms; `choose` picks one before the loop."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

from hookflow.errors import Problem, UserError
from hookflow.hooks.run import BEFORE_THE_STEP
from hookflow.hooks.tensors import Weight, WeightedSum
from hookflow.numbers import counted
from hookflow.runner.logging.timing import DATA, FORWARD
from hookflow.runner.loop.context import Context
from hookflow.runner.loop.ignored_targets import IgnoredTargets
from hookflow.runner.loop.requests import SKIPPED
from hookflow.runner.loop.task import check_outputs, single_numbers, steps_itself
from hookflow.runner.loop.update import Update, clears_gradients
from hookflow.runner.process.state import RunState

Iterate = Callable[[Iterator[Any]], None]
"""Trains on batches until attention is set, or `RunState.next_stop` iterations are done."""


Step = Callable[[Any, Any], Any]
"""A task's step, in the run's precision."""


def choose(context: Context, run: Any, update: Update) -> Iterate:
    """Return the iteration that does what this run needs and nothing else."""
    parts, plan = context.parts, context.plan
    if steps_itself(parts.task):
        return SelfStepping(context, run, update)
    bindings = [binding for point in ("before_train_iter", *BEFORE_THE_STEP) for binding in plan.at(point)]
    steered = any("batch" in binding.writes or "control" in binding.writes for binding in bindings)
    weighs_on_device = update.weighs and parts.device.type != "cpu"
    if parts.section.accumulate > 1 or parts.strategy.several or update.guard or steered or weighs_on_device:
        return Accumulated(context, run, update)
    return plain(context, run, update)


def plain(context: Context, run: Any, update: Update) -> Iterate:
    """Return the iteration of one batch, on one process, in which no hook changes the batch or the control flow.

    This is the hot path: whatever can be decided before is decided above `iterate`. A call that is not there costs
    nothing, and `tests/runner/test_calls.py` counts those that are.
    """
    s, requests, point = context.state, context.requests, context.engine.call
    task = context.parts.task
    step = context.computed(task.step)
    optimizers = [*context.parts.optimizers.values()]
    clear = clears_gradients(optimizers)
    early = update.clears_before_forward
    watch = update.losses.watch if update.losses else None
    take = context.scalars.take if context.scalars.watched else None
    size, timeline = context.sizes["train"].local, context.timeline
    weigh = context.weigh
    clock, end = timeline.clock, timeline.iteration
    checked, done = False, s.done

    def iterate(batches: Iterator[Any]) -> None:
        nonlocal checked
        before_iter, after_iter = point("before_train_iter"), point("after_train_iter")  # commands change them
        after_forward, before_backward = point("after_forward"), point("before_backward")
        after_backward = point("after_backward")
        before_step, after_step = point("before_optimizer_step"), point("after_optimizer_step")
        for batch in batches:
            data = clock()
            index = s.batch_idx
            s.batch_size = size(index, batch) or 0
            if before_iter:
                before_iter(batch, index)
            if weigh:
                s.batch_weight = weigh(batch)
            if early:
                clear()
            outputs = step(run, batch)
            if not checked:
                check_outputs(outputs, task, "step")
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
                if s.batch_weight != 0:
                    if watch:
                        watch(loss, batch)
                    loss.backward()
            except Exception:
                check_outputs(outputs, task, "step")  # was the task's first answer right, and this one is not?
                raise
            backward = clock()
            if after_backward:
                after_backward(batch, index, outputs)
            s.batch_idx = index + 1
            if requests.skips_step:  # the task may read it, too
                requests.skips_step = False
                update.leave_out(True)
                optimizer = clock()
            elif s.batch_weight == 0:
                update.empty_steps.left_out()
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
    def __init__(self, context: Context, run: Any, update: Update) -> None:
        self.context = context
        self.state = context.state
        self.run = run
        self.task = context.parts.task
        self.step = context.computed(self.task.step)
        if not update.weighs and not context.parts.section.compile:
            self.step = self._first_step(self.step)
        self.update = update
        self.strategy = context.parts.strategy
        self.timeline = context.timeline

    def __call__(self, batches: Iterator[Any]) -> None:
        s, engine = self.state, self.context.engine
        while True:
            entered = len(engine.arounds)
            offered = self.iteration(batches)
            s.iter = s.done[0] = s.iter + 1
            if offered is None:
                engine.leave(entered)
                s.batch_size = 0
            else:
                engine.fire("after_train_iter", *offered)
                offered = None  # or it would take up memory during the next forward pass
            self.timeline.end_iteration(s.batch_size)
            if s.attention or s.iter >= s.next_stop:
                return

    def _first_step(self, step: Step) -> Step:
        """Return a step that at its first call looks for targets that the loss leaves out."""

        def look_and_step(run: Any, batch: Any) -> Any:
            self.step = step
            ignored = IgnoredTargets("the training data", self.context.log.say)
            with ignored:
                outputs = step(run, batch)
            ignored.warn()
            return outputs

        return look_and_step

    @abstractmethod
    def iteration(self, batches: Iterator[Any]) -> tuple[Any, ...] | None:
        """Do one iteration; return what the points are offered, or None where every batch was skipped."""

    def next(self, batches: Iterator[Any]) -> Any:
        """Return the next batch; learn how many examples it has, and what the loss of this rank counts of the whole.

        The latter is learnt here unless the task says what a batch weighs.

        Raises UserError when there is none, though the data promised more.
        """
        s, sizes = self.state, self.context.sizes["train"]
        for batch in batches:
            self.timeline.mark(DATA)
            s.batch_size = sizes.local(s.batch_idx, batch) or 0
            if self.strategy.several and not self.update.weighs:
                self.update.group.on_all_ranks = total = sizes.total(s.batch_idx, batch) or 1
                self.update.loss_weight = s.batch_size * self.context.parts.data_ranks.world / total
            return batch
        raise too_few(s)


class Accumulated(_Batchwise):
    """An iteration of one batch or several whose gradients add up, over any number of ranks, with all that may change
    it: batches replaced and skipped, steps skipped, losses scaled."""

    def __init__(self, context: Context, run: Any, update: Update) -> None:
        super().__init__(context, run, update)
        self.accumulate = context.parts.section.accumulate
        fired = context.engine.firings("before_train_iter") if self.accumulate > 1 else ()
        self.writers = [f for f in fired if "batch" in f.binding.writes and f.binding.half == "whole"]
        """The hooks that fire at the later batches of an iteration, too: those that write the batch."""
        for firing in self.writers:
            firing.ask_once_per_iteration(self.state)
        self.skips_some = any("control" in firing.binding.writes for firing in self.writers)

    def iteration(self, batches: Iterator[Any]) -> tuple[Any, ...] | None:
        s, update, every = self.state, self.update, self.update.every
        first = s.batch_idx
        last = min(first + self.accumulate, s.batches_per_epoch)
        grouped, examples, sums = self.accumulate > 1, 0, dict[str, WeightedSum]()
        total_weight: Weight = 0
        offered: tuple[Any, ...] | None = None
        while s.batch_idx < last:
            writers = self.writers if s.batch_idx > first else None
            batch = self.context.offer("before_train_iter", self.next(batches), writers)
            if batch is not SKIPPED:
                if grouped:
                    self.strategy.require_sync(self.skips_some or s.batch_idx + 1 == last)
                update.weigh(batch)
                if update.clears_before_forward:
                    update.clear(every)
                outputs = self.step(self.run, batch)
                check_outputs(outputs, self.task, "step")
                self.timeline.mark(FORWARD)
                self.context.scalars.take(outputs)
                offered, weight = (batch, s.batch_idx, outputs), update.loss_weight
                if grouped:
                    weight = weight * update.group.share(last - first)
                    examples += s.batch_size
                    batch_weight = s.batch_size if s.batch_weight is None else s.batch_weight
                    total_weight = total_weight + batch_weight
                    for name, value in single_numbers(outputs).items():
                        sums.setdefault(name, WeightedSum()).add(value, batch_weight)  # not every batch may have it
                update.backward(offered, every, weight)
                if s.batch_idx + 1 < last:
                    update.keep_gradients()
            s.batch_idx += 1
        if offered is not None:
            if grouped:
                s.batch_size = examples
                if update.weighs:
                    s.batch_weight = total_weight
                means = {name: item.mean for name, item in sums.items()}
                self.context.scalars.take(means)
                offered = *offered[:2], {**offered[2], **means}
            update.step(offered, every)
        return offered


class SelfStepping(_Batchwise):
    """An iteration of a task that calls `run.backward` and `run.step` itself: one call of its `step`."""

    def iteration(self, batches: Iterator[Any]) -> tuple[Any, ...] | None:
        s = self.state
        batch = self.context.offer("before_train_iter", self.next(batches))
        offered: tuple[Any, ...] | None = None
        if batch is not SKIPPED:
            self.update.weigh(batch)
            s.batch = batch
            outputs = self.step(self.run, batch)
            s.batch = None
            check_outputs(outputs, self.task, "step")
            self.update.keep_gradients()
            self.update.idle = not self.update.stepping
            self.timeline.mark(FORWARD)
            self.context.scalars.take(outputs)
            offered = batch, s.batch_idx, outputs
        s.batch_idx += 1
        self.strategy.broadcast_buffers()  # what its last step has not shared yet
        return offered


def too_few(state: RunState) -> UserError:
    """Return the error of data that end before they promised to."""
    message = f"the training data promised {counted(state.batches_per_epoch, 'batch')}, and gave {state.batch_idx}"
    return UserError(Problem(message, hint="its __len__ must be the number of batches that it yields in an epoch"))
