"""The training loop, as `hookflow.graph.points` draws it: epochs of iterations, with validations between them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hookflow.events.records import Put
from hookflow.pipeline.schema import Interval
from hookflow.runner.checkpoint.manager import CheckpointManager
from hookflow.runner.checkpoint.snapshot import Snapshot
from hookflow.runner.dispatch.engine import Engine
from hookflow.runner.distributed.consensus import AnyConsensus
from hookflow.runner.logging.timing import Timeline
from hookflow.runner.loop.evaluation import Evaluation
from hookflow.runner.loop.iteration import Iterate, too_few
from hookflow.runner.loop.safe_point import SafePoint
from hookflow.runner.loop.update import Update
from hookflow.runner.numerics.compiling import Compiled
from hookflow.runner.process.signals import Signals, WorkerHangs
from hookflow.runner.process.state import RunState


class Loop:
    """Trains until `max_epochs` or `max_iters`, or until somebody stops the run."""

    def __init__(
        self,
        state: RunState,
        engine: Engine,
        iterate: Iterate,
        update: Update,
        evaluate: Evaluation,
        snapshot: Snapshot,
        checkpoints: CheckpointManager,
        safe_point: SafePoint,
        consensus: AnyConsensus,
        signals: Signals,
        timeline: Timeline,
        data: Mapping[str, Any],
        val_every: Interval,
        compiled: Compiled | None,
        record: Put,
        *,
        accumulate: int,
        sanity: Callable[[], None] | None = None,
    ) -> None:
        self._state = state
        self._engine = engine
        self._iterate = iterate
        self._update = update
        self._evaluate = evaluate
        self._snapshot = snapshot
        self._checkpoints = checkpoints
        self._safe_point = safe_point
        self._consensus = consensus
        self._signals = signals
        self._timeline = timeline
        self._data = data
        self._val_every = val_every
        self._validates = "val" in data
        self._compiled = compiled
        self._record = record
        self._accumulate = accumulate
        self._sanity = sanity

    def train(self) -> None:
        """Train, from where the run is."""
        state, safe_point = self._state, self._safe_point
        self._begin()
        self._signals.be_graceful()
        safe_point.check_stop()
        if state.validation_due:
            self._validate()
            safe_point.process(wait=True)
        while safe_point.stop is None and (state.epoch_is_over or not state.finished):
            self._epoch()
        self._update.settle()
        self._engine.fire("after_train")
        self._checkpoints.request_last()
        safe_point.process(wait=True)

    def train_once(self, epochs: int, iters: int) -> None:
        """Fire each point of the training: in a few iterations, at the end of their epoch, in a validation after it.

        Between two epochs, what hooks have asked for is saved; a stop that they have asked for is not obeyed.
        """
        self._begin()
        for epoch in range(epochs):
            if epoch:
                self._safe_point.process(wait=True)
            self._short_epoch(epoch, iters)
        self._update.settle()
        self._engine.fire("after_train")

    def _short_epoch(self, epoch: int, iters: int) -> None:
        state, engine = self._state, self._engine
        engine.fire("before_train_epoch")
        state.batches, state.next_stop = state.batches_per_epoch, min(state.iter + iters, state.max_iters)
        self._timeline.restart()
        batches: Iterator[Any] = iter(self._data["train"].epoch(epoch))
        while (done := state.iter) < state.next_stop and not state.epoch_is_over:
            self._iterate(batches)
            if state.iter == done:
                raise too_few(state)
        state.epoch, state.batch_idx, state.epoch_ends = epoch + 1, 0, False
        engine.fire("after_train_epoch")
        if self._validates:
            self._validate()

    def _begin(self) -> None:
        self._state.enter("train")
        self._engine.fire("before_train")
        self._update.check_parameters()
        if self._sanity:
            with self._state.during("start"):  # in which no hook inside the network fires
                self._sanity()

    def _epoch(self) -> None:
        """Walk over the training data once, from where the run is in it."""
        state, engine = self._state, self._engine
        began = time.perf_counter() - self._timeline.excluded_s
        entered = len(engine.arounds)
        if state.batch_idx == 0:
            engine.fire("before_train_epoch")
        else:
            engine.enter_again("before_train_epoch")
        state.batches = state.batches_per_epoch
        if self._compiled:
            self._compiled.look()
        if not state.epoch_is_over:
            self._iterations()
        if self._compiled:
            self._compiled.look()
        if not state.epoch_is_over or self._checkpoints.before_validation is not None:
            engine.cut(entered)
            return
        state.epoch += 1
        state.batch_idx = 0
        state.epoch_ends = False
        self._record("epoch", seconds=time.perf_counter() - self._timeline.excluded_s - began)
        engine.fire("after_train_epoch")
        if self._validation_due("ep", state.epoch):
            self._validate()
        self._safe_point.process(wait=True)

    def _iterations(self) -> None:
        """Train on what is left of the epoch; cut it short when the run is at its end, or is stopped."""
        state, safe_point = self._state, self._safe_point
        batches: Iterator[Any] = iter(self._data["train"].epoch(state.epoch, start=state.batch_idx))
        self._timeline.restart()
        while True:
            state.next_stop = self._next_stop()
            before = state.iter
            try:
                self._iterate(batches)
            except WorkerHangs:
                if self._accumulate > 1 or self._consensus.ranks.world > 1:
                    raise  # in the middle of an iteration; or the other ranks would wait for this one
            if state.iter < state.next_stop and not state.attention:
                raise too_few(state)
            validates = state.iter > before and self._validation_due("it", state.iter)
            if validates:
                self._validate()
            safe_point.process(wait=validates)
            if safe_point.stop is not None or state.finished or state.epoch_is_over:
                return

    def _next_stop(self) -> int:
        """Return the iterations done at which the loop must look up by count."""
        state, every = self._state, self._val_every
        stops = [state.iter + state.iters_left(self._accumulate), self._consensus.next_iteration]
        if state.max_epochs is None:
            stops.append(state.max_iters)
        if self._validates and every.unit == "it":
            stops.append((state.iter // every.value + 1) * every.value)
        return int(min(stops))

    def _validation_due(self, unit: str, done: int) -> bool:
        """Say whether validation is due: every `val_every` and at the end of the training, never twice at one place.

        `done` is how many iterations ("it") or epochs ("ep") are.
        """
        state, every = self._state, self._val_every
        if not self._validates:
            return False
        if every.unit == unit:
            return done % every.value == 0 or state.finished
        at_end = not state.epoch_is_over if unit == "it" else state.validated_at != state.iter
        return state.finished and at_end

    def _validate(self) -> None:
        """Validate. When a signal cuts that short, what will be saved is the state from before it.

        So a resumed run validates first, and continues as if nothing had been. To keep that state costs nothing: its
        tensors are the run's own, and a validation leaves them as they were.
        """
        state = self._state
        state.validation_due = False
        before = self._snapshot.capture(validation_due=True)
        state.validated_at = state.iter
        if not self._evaluate("val"):
            self._checkpoints.before_validation = before
