"""One training iteration, from the batch to the new weights, in its three forms.

`choose_iteration` picks one before the loop.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

from hookflow.errors import Problem, UserError
from hookflow.hooks.run import BEFORE_THE_STEP
from hookflow.hooks.tensors import Weight, WeightedSum
from hookflow.numbers import format_count
from hookflow.runner.dispatch.dispatcher import HookCall
from hookflow.runner.iteration.context import RunContext
from hookflow.runner.iteration.ignored_targets import IgnoredTargets
from hookflow.runner.iteration.requests import SKIP_MARKER
from hookflow.runner.iteration.update import OptimizerUpdate, make_gradient_clearer
from hookflow.runner.logging.timing import DATA, FORWARD
from hookflow.runner.model.task import check_outputs, single_numbers, steps_itself, training_step
from hookflow.runner.process.state import NO_BATCH, RunState

Iterate = Callable[[Iterator[Any]], None]
"""Trains on batches until `RunState.attention` is set or `RunState.next_stop` is reached."""

Step = Callable[[Any, Any], Any]
"""A task's step, in the run's precision."""


def choose_iteration(context: RunContext, run: Any, update: OptimizerUpdate) -> Iterate:
    """Return the iteration that does what this run needs and nothing else."""
    parts = context.parts
    plan = context.plan
    if steps_itself(parts.task):
        return SelfSteppingIteration(context, run, update)
    bindings = [
        binding for point in ("before_train_iter", *BEFORE_THE_STEP) for binding in plan.at(point)
    ]
    steered = any("batch" in binding.writes or "control" in binding.writes for binding in bindings)
    weighs_on_device = update.weighs and parts.device.type != "cpu"
    if (
        parts.section.accumulate.most > 1
        or parts.strategy.several
        or update.guard
        or steered
        or weighs_on_device
    ):
        return AccumulatedIteration(context, run, update)
    return plain_iteration(context, run, update)


def plain_iteration(  # noqa: C901, PLR0915  # the hot path: a call of a helper would cost time in every iteration
    context: RunContext, run: Any, update: OptimizerUpdate
) -> Iterate:
    """Return the iteration of one batch, on one process, that no hook changes.

    No hook replaces its batch or changes its control flow. This is the hot path: whatever can be
    decided before is decided above `iterate`. A call that is not there costs nothing, and
    `tests/runner/test_calls.py` counts those that are.
    """
    s = context.state
    requests = context.requests
    point = context.engine.call
    task = context.parts.task
    step = context.computed(training_step(task, context.parts.data))
    optimizers = [*context.parts.optimizers.values()]
    clear = make_gradient_clearer(optimizers)
    early = update.clears_before_forward
    watch = None
    if update.losses:
        watch = update.losses.watch
    take = None
    if context.scalars.watched:
        take = context.scalars.take
    size = context.sizes["train"].local
    timeline = context.timeline
    weigh = context.weigh
    counter = context.data_counter
    clock = timeline.clock
    end = timeline.iteration
    checked = False
    done = s.done

    def iterate(batches: Iterator[Any]) -> None:  # noqa: C901, PLR0912, PLR0915  # as above
        nonlocal checked
        # A command may switch a hook, which changes these functions.
        before_iter, after_iter = point("before_train_iter"), point("after_train_iter")
        after_forward = point("after_forward")
        before_backward = point("before_backward")
        after_backward = point("after_backward")
        before_step = point("before_optimizer_step")
        after_step = point("after_optimizer_step")
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
                check_outputs(outputs, task, "step", run)
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
                # The check of the first outputs does not cover these, and they may be the cause.
                check_outputs(outputs, task, "step", run)
                raise
            backward = clock()
            if after_backward:
                after_backward(batch, index, outputs)
            s.batch_idx = index + 1
            if requests.skips_step:  # the task may read it, too
                requests.skips_step = False
                update.record_skipped_step(True)
                optimizer = clock()
            elif s.batch_weight == 0:
                update.empty_steps.note_left_out()
                update.record_skipped_step(True)
                optimizer = clock()
            else:
                if before_step:
                    before_step(batch, index, outputs)
                for each in optimizers:
                    each.step()  # looked up each time: schedulers and hooks put wrappers there
                optimizer = clock()
                if after_step:
                    after_step(batch, index, outputs)
            if counter:
                counter.take(index, batch, s.batch_size or None)
                counter.commit()
            s.iter = done[0] = s.iter + 1
            if after_iter:
                after_iter(batch, index, outputs)
            end(data, forward, backward, optimizer, s.batch_size)
            del batch, outputs, loss  # or they would take up memory during the next forward pass
            if s.attention or s.iter >= s.next_stop:
                return

    return iterate


class _IterationBase(ABC):
    """What the iterations that are not plain have in common: the loop around `train_iteration`."""

    def __init__(self, context: RunContext, run: Any, update: OptimizerUpdate) -> None:
        self.context = context
        self.state = context.state
        self.run = run
        self.task = context.parts.task
        self.step = context.computed(training_step(self.task, context.parts.data))
        if not update.weighs and not context.parts.section.compile:
            self.step = self._first_step(self.step)
        self.update = update
        self.strategy = context.parts.strategy
        self.timeline = context.timeline
        self.counter = context.data_counter

    def __call__(self, batches: Iterator[Any]) -> None:
        s = self.state
        engine = self.context.engine
        while True:
            entered = len(engine.arounds)
            offered = self.train_iteration(batches)
            if self.counter:
                self.counter.commit()
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
        """Return a step whose first call looks for targets that the loss leaves out."""

        def check_and_step(run: Any, batch: Any) -> Any:
            self.step = step
            ignored = IgnoredTargets("the training data", self.context.log.say)
            with ignored:
                outputs = step(run, batch)
            ignored.warn()
            return outputs

        return check_and_step

    @abstractmethod
    def train_iteration(self, batches: Iterator[Any]) -> tuple[Any, ...] | None:
        """Do one iteration.

        Returns what the points are offered, or None where every batch was skipped.
        """

    def take_batch(self, batches: Iterator[Any]) -> Any:
        """Return the next batch, and count its examples.

        Over several ranks this sets the weight of this rank's loss by the examples, unless the task
        says what a batch weighs.

        Raises UserError when there is no batch, though the data promised more.
        """
        s = self.state
        sizes = self.context.sizes["train"]
        total: int | None = None
        for batch in batches:
            self.timeline.mark(DATA)
            s.batch_size = sizes.local(s.batch_idx, batch) or 0
            if self.strategy.several and not self.update.weighs:
                self.update.group.on_all_ranks = total = sizes.total(s.batch_idx, batch) or 1
                self.update.loss_weight = s.batch_size * self.context.parts.data_ranks.world / total
            if self.counter:
                self.counter.take(s.batch_idx, batch, total)
            return batch
        raise make_too_few_batches_error(s)


class AccumulatedIteration(_IterationBase):
    """An iteration of one batch or several whose gradients add up, over any number of ranks.

    All may change in it: batches are replaced and skipped, steps skipped, losses scaled.
    """

    def __init__(self, context: RunContext, run: Any, update: OptimizerUpdate) -> None:
        super().__init__(context, run, update)
        fired: tuple[HookCall, ...] = ()
        if context.parts.section.accumulate.most > 1:
            fired = context.engine.firings("before_train_iter")
        self.writers = [
            firing
            for firing in fired
            if "batch" in firing.binding.writes and firing.binding.half == "whole"
        ]
        """The hooks that write the batch: they fire at the later batches of an iteration, too."""
        for firing in self.writers:
            firing.ask_once_per_iteration(self.state)
        self.skips_some = any("control" in firing.binding.writes for firing in self.writers)

    def train_iteration(self, batches: Iterator[Any]) -> tuple[Any, ...] | None:
        s = self.state
        update = self.update
        names = update.optimizer_names
        first = s.batch_idx
        last = min(first + s.accumulate, s.batches_per_epoch)
        grouped = s.accumulate > 1
        totals = BatchTotals()
        offered: tuple[Any, ...] | None = None
        s.mixes_sets = False
        while s.batch_idx < last:
            writers = None
            if s.batch_idx > first:
                writers = self.writers
            batch = self.take_batch(batches)
            batch = self.context.fire_with_batch("before_train_iter", batch, writers)
            if batch is not SKIP_MARKER:
                if grouped:
                    self.strategy.require_sync(self.skips_some or s.batch_idx + 1 == last)
                update.weigh(batch)
                if update.clears_before_forward:
                    update.clear(names)
                outputs = self.step(self.run, batch)
                check_outputs(outputs, self.task, "step", self.run)
                self.timeline.mark(FORWARD)
                self.context.scalars.take(outputs)
                offered = (batch, s.batch_idx, outputs)
                weight = update.loss_weight
                if grouped:
                    weight = weight * update.group.share(last - first)
                    totals.add(s, self.run.batch_set, outputs)
                update.backward(offered, names, weight)
                if s.batch_idx + 1 < last:
                    update.keep_gradients()
            s.batch_idx += 1
        if offered is None:
            return None
        if grouped:
            batch, index, outputs = offered
            means = self._merge_totals(totals)
            offered = batch, index, {**outputs, **means}
        update.step(offered, names)
        return offered

    def _merge_totals(self, totals: "BatchTotals") -> dict[str, Any]:
        """Let the run show what all batches of an iteration have together.

        Returns the means of their outputs.
        """
        s = self.state
        s.mixes_sets = len(totals.sets) > 1
        s.batch_size = totals.examples
        if self.update.weighs:
            s.batch_weight = totals.weight
        means = {name: weighted_sum.mean for name, weighted_sum in totals.outputs.items()}
        self.context.scalars.take(means)
        return means


class BatchTotals:
    """The totals of the batches of one iteration: examples, weight, and the numbers of outputs.

    `sets` are the training sets that the batches are of.
    """

    def __init__(self) -> None:
        self.examples = 0
        self.weight: Weight = 0
        self.sets: set[str | None] = set()
        self.outputs: dict[str, WeightedSum] = {}

    def add(self, state: RunState, batch_set: str | None, outputs: Any) -> None:
        """Add the current batch; not every batch may have each number."""
        self.sets.add(batch_set)
        self.examples += state.batch_size
        weight: Weight = state.batch_size
        if state.batch_weight is not None:
            weight = state.batch_weight
        self.weight = self.weight + weight
        for name, value in single_numbers(outputs).items():
            self.outputs.setdefault(name, WeightedSum()).add(value, weight)


class SelfSteppingIteration(_IterationBase):
    """An iteration of a task that calls `run.backward` and `run.step` itself.

    It is one call of the task's `step`.
    """

    def train_iteration(self, batches: Iterator[Any]) -> tuple[Any, ...] | None:
        s = self.state
        batch = self.context.fire_with_batch("before_train_iter", self.take_batch(batches))
        offered: tuple[Any, ...] | None = None
        if batch is not SKIP_MARKER:
            self.update.weigh(batch)
            s.batch = batch
            outputs = self.step(self.run, batch)
            s.batch = NO_BATCH
            check_outputs(outputs, self.task, "step", self.run)
            self.update.keep_gradients()
            self.update.idle = not self.update.stepping
            self.timeline.mark(FORWARD)
            self.context.scalars.take(outputs)
            offered = batch, s.batch_idx, outputs
        s.batch_idx += 1
        # The forward pass after the last step may have changed buffers once more.
        self.strategy.broadcast_buffers()
        return offered


def make_too_few_batches_error(state: RunState) -> UserError:
    """Return the error for data that have fewer batches in an epoch than their length says."""
    message = (
        f"the training data promised {format_count(state.batches_per_epoch, 'batch')}, and gave"
        f" {state.batch_idx}"
    )
    return UserError(
        Problem(
            message, hint="its __len__ must be the number of batches that it yields in an epoch"
        )
    )
