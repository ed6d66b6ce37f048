"""The training loop, as `hookflow.graph.points` draws it.

It has epochs of iterations, with validations between them.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import Any, NamedTuple

from hookflow.events.records import CommandRecord, Status
from hookflow.runner.builder.rate_scaling import make_rate_scaling
from hookflow.runner.data.batches import call_before_each, sets_of
from hookflow.runner.distributed.consensus import (
    END_EPOCH,
    REPORT_SAVE,
    RUN_COMMANDS,
    SAVE,
    STOP,
    THROTTLE,
    VALIDATE,
)
from hookflow.runner.iteration.context import RunContext
from hookflow.runner.iteration.iteration import Iterate, make_too_few_batches_error
from hookflow.runner.iteration.update import OptimizerUpdate
from hookflow.runner.logging.timing import COMMANDS
from hookflow.runner.loop.control import CHANGING_COMMANDS, CommandHandler
from hookflow.runner.loop.evaluation import EvaluationLoop, ValSchedule
from hookflow.runner.loop.sanity import run_sanity_check
from hookflow.runner.process.forks import end_if_forked, watch_for_forks
from hookflow.runner.process.signals import SignalCollector, StopReason, WorkerHangError
from hookflow.runner.state.checkpoint_manager import CheckpointManager
from hookflow.runner.state.iteration_start import IterationStart, RecordingRate, recording_rate

STOP_PRIORITY = ("finished", "stopped", "interrupted", "failed")
"""The ways for a run to end, the gravest last.

Of several reasons to end, the gravest counts, and of two that are alike the earlier.
"""

POLL_PERIOD_SECONDS = 0.05
"""Seconds between looks for what ends a pause."""

LONGEST_WAIT_SECONDS = 0.5
"""Seconds that rank 0 waits in a pause, at most, before it shares what has come."""


class ReceivedEvents(NamedTuple):
    """What has come to rank 0 since the safe point looked last."""

    commands: list[CommandRecord]
    has_written: bool
    """Whether a checkpoint has been written."""
    has_signal: bool
    """Whether a signal ends the run."""


@dataclass
class SafePoint:
    """Does at safe points what has been asked for.

    `stop` says why the run ends, once it does. It is the same on all ranks.
    """

    context: RunContext
    signals: SignalCollector
    checkpoints: CheckpointManager
    control: CommandHandler
    stop: StopReason | None = None
    handled_signal: StopReason | None = None
    synchronizes: bool = False

    def __post_init__(self) -> None:
        self.state = self.context.state
        self.requests = self.context.requests
        self.consensus = self.context.consensus
        self.pid = watch_for_forks(self.state)

    def synchronize(self) -> None:
        """Let all ranks agree at the next safe point.

        A hook that may make a request then fires on all of them.
        """
        self.synchronizes = self.state.attention = True

    def process(self, *, wait: bool = False) -> None:
        """Do what has been requested since the last safe point.

        Commands come first, then a stop, then a checkpoint.

        With `wait`, several ranks wait for one another here and agree at once. Without it they
        agree some iterations later.
        """
        end_if_forked(self.pid)
        state = self.state
        state.attention = False  # before looking: what comes from here on sets it again
        if self.context.engine.offloaded:
            self.context.engine.offloaded.raise_failures()
        self.checkpoints.prepare()
        waits = wait or self.synchronizes or self.control.paused
        self.synchronizes = False
        wishes = self._read_wishes()
        if waits:
            agreed = self.consensus.settle(wishes)
        else:
            agreed = self.consensus.step(state.iter, wishes)
        if not agreed:
            return
        if self._execute_agreed(agreed):
            self.checkpoints.save()
        if self.control.rewind:
            self.checkpoints.report()
            raise self.control.rewind

    def _execute_agreed(self, agreed: int) -> bool:
        """Do what the ranks have agreed on, all but saving.

        Returns whether a checkpoint is to be saved.
        """
        saves = bool(agreed & SAVE)
        stops = bool(agreed & STOP)
        if agreed & RUN_COMMANDS:
            stops |= self._execute_commands()
            if self.control.stop:
                saves |= self._stop_for(self.control.stop)
        if stops:
            saves |= self._stop_as_agreed()
        if agreed & END_EPOCH:
            self.requests.end_epoch()
        if agreed & VALIDATE:
            self._accept_validations()
        if agreed & THROTTLE:
            for change in self.consensus.broadcast_object(self.context.throttles.take()):
                self.context.throttles.make(change)
        if agreed & REPORT_SAVE:
            self.checkpoints.report()
        return saves

    def check_stop(self) -> None:
        """Look, before the training begins, whether a hook has asked to stop already."""
        if self.consensus.settle(self._read_wishes() & STOP) & STOP:
            self._stop_as_agreed()

    def should_abort(self, batches: int) -> bool:
        """Return whether a signal ends the current evaluation, after so many of its batches."""
        wishes = 0
        if self._signal:
            wishes = STOP
        if self.consensus.step(batches, wishes) & STOP:
            self._stop_as_agreed()
            return True
        return False

    @property
    def _signal(self) -> StopReason | None:
        """The signal that ends the run, until `_stop_as_agreed` has handled it."""
        if self.signals.stop is self.handled_signal:
            return None
        return self.signals.stop

    def _accept_validations(self) -> None:
        """Let the loop validate on the sets that any rank has requested.

        At the end of an epoch it does so once that is closed.
        """
        requests = self.requests
        state = self.state
        own = frozenset(requests.validates)
        wanted = frozenset[str]().union(*self.consensus.all_gather_object(own))
        if state.epoch_is_over:
            requests.validates.update(wanted)
            return
        requests.validates.difference_update(wanted)
        sets = [name for name in sets_of("val", self.context.parts.data) if name in wanted]
        state.validation_due = [name for name in sets if state.validated.get(name) != state.iter]

    def _read_wishes(self) -> int:
        requests = self.requests
        wishes = 0
        if self.signals.commands or self.control.paused:
            wishes = RUN_COMMANDS
        is_requested = requests.failure is not None or requests.stop_reason() is not None
        if is_requested or self._signal is not None:
            wishes |= STOP
        elif requests.stops:  # it waits for run.min_iters, which no safe point announces
            self.state.attention = True
        if requests.saves:
            wishes |= SAVE
        if requests.validates and not self.state.epoch_is_over:
            wishes |= VALIDATE
        if self.context.throttles.asked:
            wishes |= THROTTLE
        if self.checkpoints.has_written:
            wishes |= REPORT_SAVE
        if requests.epoch_end_reason is not None:
            wishes |= END_EPOCH
        return wishes

    def _stop_as_agreed(self) -> bool:
        """Let the run end, for the gravest reason that any rank has.

        Returns whether its state is to be saved first.
        """
        say = self.context.log.say
        done = self.state.iter
        signal = self._signal
        requested = self._accept_requested_stop()
        failure = self._take_requested_failure()
        if failure is not None:
            say(f"failed after iteration {done}: {failure.reason}", "warn")
        if signal is not None:
            self.handled_signal = signal
            say(f"{signal.reason}: stopping after iteration {done}", "warn")
        own = failure or signal or requested
        return self._stop_for(*self.consensus.all_gather_object(own))

    def _accept_requested_stop(self) -> StopReason | None:
        """Return the stop that hooks of this rank have requested, and forget the requests."""
        reason = self.requests.stop_reason()
        if reason is None:
            return None
        status: Status = "finished"
        if self.requests.accept_stop(reason):
            status = "stopped"
        return StopReason(reason, status, 0, save=False)

    def _take_requested_failure(self) -> StopReason | None:
        failure = self.requests.take_failure()
        if failure is None:
            return None
        return StopReason(failure.reason, "failed", 1, save=failure.checkpoint)

    def _stop_for(self, *reasons: StopReason | None) -> bool:
        """Let the run end for the gravest of these reasons, and of an earlier one.

        Returns whether its state is to be saved first.
        """
        before = self.stop
        self.stop = max(
            filter(None, (before, *reasons)), key=lambda stop: STOP_PRIORITY.index(stop.status)
        )
        saves = self.stop.save and self.stop != before
        if saves:
            self.requests.save(["last"])
        return saves

    def _execute_commands(self) -> bool:
        """Execute the commands that have come, and answer each.

        A pause lasts until a command or a signal ends it. Commands come to rank 0, which shares
        them. Returns whether a signal ends the run.
        """
        state = self.state
        control = self.control
        before = state.stage
        with self.context.timeline.excluded(COMMANDS):
            while True:
                state.stage = before
                if control.waits:
                    state.stage = "paused"
                    self._wait_for_events()
                events = self.consensus.broadcast_object(self._take_events())
                self._execute_all(events)
                if events.has_signal or not control.waits:
                    break
        state.stage = before
        state.attention |= control.paused
        return events.has_signal

    def _execute_all(self, events: ReceivedEvents) -> None:
        """Execute commands, save and report what they need, and answer them."""
        control = self.control
        saves = [control.execute(command) for command in events.commands]
        changes = any(command["cmd"] in CHANGING_COMMANDS for command in events.commands)
        # A hook may be switched off on one rank alone, which refuses commands about it.
        if events.commands and self.consensus.any_rank(any(saves)):
            self.requests.save(["last"])
            self.checkpoints.save()
        if events.has_written or changes:
            self.checkpoints.report()
        control.answer()

    def _wait_for_events(self) -> None:
        """Wait on rank 0 until something comes, but not for long: the others wait for it."""
        if not self.consensus.ranks.first:
            return
        signals = self.signals
        until = time.monotonic() + LONGEST_WAIT_SECONDS
        while time.monotonic() < until:
            if signals.commands or signals.stop or self.checkpoints.has_written:
                return
            time.sleep(POLL_PERIOD_SECONDS)

    def _take_events(self) -> ReceivedEvents:
        commands = self._take_commands()
        return ReceivedEvents(commands, self.checkpoints.has_written, self.signals.stop is not None)

    def _take_commands(self) -> list[CommandRecord]:
        commands = self.signals.commands
        return [commands.popleft() for _ in range(len(commands))]

    def reject_remaining_commands(self) -> None:
        """Answer the commands that have come too late."""
        for command in self._take_commands():
            self.control.execute(command)
        self.control.answer()


@dataclass
class TrainingLoop:
    """Trains until `max_epochs` or `max_iters`, whichever comes first, or until a stop."""

    context: RunContext
    iterate: Iterate
    update: OptimizerUpdate
    evaluate: EvaluationLoop
    checkpoints: CheckpointManager
    safe_point: SafePoint
    sanity: bool

    def __post_init__(self) -> None:
        self.state = self.context.state
        self.engine = self.context.engine
        self.timeline = self.context.timeline
        self.section = self.context.parts.section
        self.data = self.context.parts.data
        self.sets = sets_of("val", self.data)
        plan = self.context.plan
        fired_after_epoch = {binding.hook for binding in plan.at("after_train_epoch")}
        own_after_epoch = fired_after_epoch & self.context.parts.own_hooks.keys()
        self.hooks_may_raise = any(
            hook.name in own_after_epoch and not hook.queue for hook in plan.hooks
        )
        """Whether an epoch ends with hooks of the user's, before which the state is kept."""
        train = self.data.get("train")
        self.iteration_start: IterationStart | None = None
        """The state at the start of the current iteration.

        It is kept where a hung worker may cut one short in its middle.
        """
        if self.context.parts.ranks.world == 1 and train is not None:
            rate = recording_rate(train, plan, self.section.accumulate.most)
            if rate is not RecordingRate.NEVER:
                self.iteration_start = IterationStart(self.checkpoints.snapshot, rate)
        self.rate_scaling = make_rate_scaling(self.context.parts, self.context.log.say)
        every = self.context.parts.val_every
        request = self.context.requests.validate_on
        self.schedules = {
            name: ValSchedule(name, every[name], self.state, partial(request, [name]))
            for name in self.sets
        }

    def train(self) -> None:
        """Train, from where the run is."""
        state = self.state
        safe_point = self.safe_point
        self._begin()
        report_wait = None
        if self.context.parts.ranks.world > 1:
            report_wait = self._report_wait
        safe_point.signals.be_graceful(report_wait, refetches=self.context.refetches_batches)
        safe_point.check_stop()
        if state.validation_due:
            self._validate(state.validation_due)
            self._safe_point(wait=True)
        try:
            if self.context.parts.ranks.first:  # the others learn of it
                for schedule in self.schedules.values():
                    schedule.start()
            while safe_point.stop is None and (state.epoch_is_over or not state.finished):
                self._epoch()
        finally:
            for schedule in self.schedules.values():
                schedule.stop()
        safe_point.control.end()
        self.update.settle()
        self.engine.fire("after_train")
        if safe_point.stop is None or safe_point.stop.status != "failed":
            self.checkpoints.request_last()
        safe_point.process(wait=True)

    def train_once(self, epochs: int, iters: int) -> None:
        """Fire each point of the training, in `epochs` of `iters` iterations, each validated.

        A stop is not obeyed.
        """
        state = self.state
        engine = self.engine
        self._begin()
        for epoch in range(epochs):
            if epoch:
                self.safe_point.process(wait=True)
            engine.fire("before_train_epoch")
            state.batches = state.batches_per_epoch
            state.next_stop = state.iter + iters
            if state.max_iters:
                state.next_stop = min(state.next_stop, state.max_iters)
            self.timeline.restart()
            batches = self._batches(epoch)
            while (done := state.iter) < state.next_stop and not state.epoch_is_over:
                state.iterating = True
                self.iterate(batches)
                state.iterating = False
                if state.iter == done:
                    raise make_too_few_batches_error(state)
            state.close_epoch()
            engine.fire("after_train_epoch")
            if self.sets:
                self._validate(self.sets)
        self.update.settle()
        engine.fire("after_train")

    def _begin(self) -> None:
        self.state.stage = "train"
        self.engine.fire("before_train")
        self.checkpoints.begin()
        self.update.check_parameters()
        if self.sanity and self.sets:
            # In the stage "start", hooks inside the network do not fire.
            with self.state.during("start"), self.timeline.excluded():
                run_sanity_check(self.context, self.update)

    def _epoch(self) -> None:
        """Walk over the training data once, from where the run is in it."""
        state = self.state
        engine = self.engine
        began = time.perf_counter() - self.timeline.excluded_s
        entered = len(engine.arounds)
        if self.rate_scaling is not None:
            if state.batch_idx == 0:
                self.rate_scaling.begin_epoch(state.epoch)
            else:
                self.rate_scaling.continue_epoch(state.epoch)
        if state.batch_idx == 0:
            engine.fire("before_train_epoch")
        else:
            engine.enter_again("before_train_epoch")
        state.batches = state.batches_per_epoch
        if not state.epoch_is_over:
            self._train_iterations()
        if not state.epoch_is_over or self.checkpoints.repeats:
            engine.cut(entered)
            return
        if self.hooks_may_raise:
            self.checkpoints.keep_state()
        state.close_epoch()
        self.context.log.put(
            "epoch", seconds=time.perf_counter() - self.timeline.excluded_s - began
        )
        engine.fire("after_train_epoch")
        self.checkpoints.forget_kept_state()
        due = self._list_due_sets(epoch_done=True)
        if self.safe_point.control.validation_due and self.safe_point.stop is None:
            self._validate_by_command()
        elif due:
            self._validate(due)
        self._safe_point(wait=True)

    def _safe_point(self, *, wait: bool) -> None:
        """Do what has been asked for, and validate where that was a request or a command.

        At the end of an epoch a command waits until that is closed, as a request does: a validation
        that is due there answers it.
        """
        control = self.safe_point.control
        state = self.state
        self.safe_point.process(wait=wait)
        while self.safe_point.stop is None:
            if control.validation_due and not state.epoch_is_over:
                self._validate_by_command()
            elif state.validation_due:
                self._validate(state.validation_due)
                control.answer()
            else:
                return
            self.safe_point.process(wait=True)

    def _validate_by_command(self) -> None:
        """Validate on all sets, save the state, and answer the command."""
        control = self.safe_point.control
        control.validation_due = False
        self._validate(self.sets)
        if self.safe_point.stop is None:  # else a signal has cut it short
            self.context.requests.save(["last"])
            self.checkpoints.save()
            self.checkpoints.report()
        control.answer()

    def _batches(self, epoch: int, start: int = 0) -> Iterator[Any]:
        """Return the training batches of an epoch; `before_fetch` fires before each."""
        batches = self.context.epoch_of("train", epoch, start)
        if self.engine.plan.at("before_fetch"):
            batches = call_before_each(
                batches, lambda: self.engine.fire("before_fetch", self.state.batch_idx)
            )
        if self.iteration_start is not None:
            batches = self.iteration_start.recording(batches)
        return batches

    def _train_iterations(self) -> None:
        """Train on what is left of the epoch.

        It is cut short when the run is at its end, or is stopped.
        """
        state = self.state
        safe_point = self.safe_point
        batches = self._batches(state.epoch, start=state.batch_idx)
        self.timeline.restart()
        while True:
            state.next_stop = self._next_stop()
            before = state.iter
            state.iterating = True
            entered = len(self.engine.arounds)
            try:
                self.iterate(batches)
            except WorkerHangError:
                self.engine.leave(entered)
                started = None
                if self.iteration_start is not None:
                    started = self.iteration_start.state()
                if started is not None:
                    self.checkpoints.keep_state(started)
            state.iterating = False
            if state.iter < state.next_stop and not state.attention:
                raise make_too_few_batches_error(state)
            due = []
            if state.iter > before:
                due = self._list_due_sets(epoch_done=False)
            if due:
                self._validate(due)
            self._safe_point(wait=bool(due))
            if safe_point.stop is not None or state.finished or state.epoch_is_over:
                return

    def _report_wait(self, text: str) -> None:
        self.context.log.say(text, "warn")

    def _next_stop(self) -> int:
        """Return the count of iterations at which the loop must look whether something is due."""
        state = self.state
        batches_left = state.batches_per_epoch - state.batch_idx
        left = ceil(batches_left / state.accumulate)
        stops: list[float] = [state.iter + left, self.context.consensus.next_iteration]
        if state.iter_limit is not None:
            stops.append(state.iter_limit)
        stops += [schedule.next_iteration() for schedule in self.schedules.values()]
        return int(min(stops))

    def _list_due_sets(self, *, epoch_done: bool) -> list[str]:
        """Return the sets of data on which a validation is due after this iteration or epoch."""
        return [
            name for name, schedule in self.schedules.items() if schedule.due(epoch_done=epoch_done)
        ]

    def _validate(self, sets: Sequence[str]) -> None:
        """Validate on these sets of data.

        When a signal or an error cuts the validation short, the state from before it is saved, with
        the validation still due. That state is a copy in the host's memory, since a hook may change
        the weights during the validation.
        """
        state = self.state
        state.validation_due = ()
        self.checkpoints.keep_state(validation_due=sets)
        state.validated |= dict.fromkeys(sets, state.iter)
        if self.evaluate("val", sets):
            self.checkpoints.forget_kept_state()
        for name in sets:
            self.schedules[name].restart()
