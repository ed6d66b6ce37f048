"""Safe points: between iterations, after an epoch, after a validation, where nothing is half done.

Only there a run stops, saves, pauses, or obeys a command. Over several ranks no rank acts alone: they agree
(`hookflow.runner.distributed.consensus`) on what happens at a safe point, and then all do it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from hookflow.events.records import CommandRecord, Put
from hookflow.runner.checkpoint.manager import CheckpointManager
from hookflow.runner.distributed.consensus import END_EPOCH, OBEY, SAVE, STOP, TELL, AnyConsensus
from hookflow.runner.logging.timing import Timeline
from hookflow.runner.loop.requests import Requests
from hookflow.runner.process.signals import Signals, Stop
from hookflow.runner.process.state import RunState

GRAVITY = ("finished", "stopped", "interrupted", "failed")
"""The ways for a run to end. Where there are several reasons for it, the gravest counts, and of two the earlier."""

POLL = 0.05
"""Seconds between looks for what ends a pause."""


class SafePoint:
    """Does at safe points what has been asked for. `stop` says why the run ends, once it does; all ranks agree."""

    def __init__(
        self,
        state: RunState,
        requests: Requests,
        signals: Signals,
        consensus: AnyConsensus,
        checkpoints: CheckpointManager,
        timeline: Timeline,
        record: Put,
    ) -> None:
        self.stop: Stop | None = None
        self._state = state
        self._requests = requests
        self._signals = signals
        self._consensus = consensus
        self._checkpoints = checkpoints
        self._timeline = timeline
        self._record = record
        self._heard: Stop | None = None
        self._synchronizes = False

    def synchronize(self) -> None:
        """Let all ranks agree at the next safe point: a hook that may ask for something fires on all of them alike."""
        self._synchronizes = self._state.attention = True

    def process(self, *, wait: bool = False) -> None:
        """Do what has been asked for since the last safe point: commands first, then a stop, then a checkpoint.

        `wait` is for several ranks: it says that they wait for one another here anyway.
        """
        state, requests = self._state, self._requests
        state.attention = False  # before looking: what comes from here on sets it again
        synchronizes, self._synchronizes = self._synchronizes, False
        wants = self._wants()
        agreed = self._consensus.settle(wants) if wait or synchronizes else self._consensus.step(state.iter, wants)
        if not agreed:
            return
        saves = bool(agreed & SAVE)
        if agreed & OBEY:
            saves |= self._execute_commands()
        if agreed & STOP:
            saves |= self._stop_as_agreed()
        if agreed & END_EPOCH:
            requests.end_epoch()
        if agreed & TELL:
            self._checkpoints.report()
        if saves:
            self._checkpoints.save()

    def check_stop(self) -> None:
        """Look, before the training begins, whether a hook has asked to stop already."""
        if self._consensus.settle(self._wants() & STOP) & STOP:
            self._stop_as_agreed()

    def should_abort(self, batches: int) -> bool:
        """Say whether a signal ends the current evaluation, of which so many batches are done.

        What else is due waits for the next safe point: it is still wanted there.
        """
        wants = STOP if self._signal else 0
        if self._consensus.step(batches, wants) & STOP:
            self._stop_as_agreed()
            return True
        return False

    @property
    def _signal(self) -> Stop | None:
        """The signal that has come and not been heeded."""
        return None if self._signals.stop is self._heard else self._signals.stop

    def _wants(self) -> int:
        """Return what this process has been asked for and has not done."""
        requests = self._requests
        wants = OBEY if self._signals.commands else 0
        if requests.stop_reason is not None or self._signal is not None:
            wants |= STOP
        if requests.saves:
            wants |= SAVE
        if self._checkpoints.has_written:
            wants |= TELL
        return wants | END_EPOCH if requests.epoch_end_reason is not None else wants

    def _stop_as_agreed(self) -> bool:
        """Let the run end, for the gravest reason that any rank has; return whether its state is to be saved first."""
        signal, reason = self._signal, self._requests.take_stop()
        self._heard = self._signals.stop
        if signal is not None:
            text = f"{signal.reason}: stopping after iteration {self._state.iter}"
            self._record("message", level="warn", source="hookflow", text=text)
        asked = Stop(reason, "finished", 0, save=False) if reason is not None else None
        return self._stop_for(*self._consensus.all_gather_object(signal or asked))

    def _stop_for(self, *reasons: Stop | None) -> bool:
        before = self.stop
        given = [stop for stop in (before, *reasons) if stop is not None]
        self.stop = max(given, key=lambda stop: GRAVITY.index(stop.status))
        if saves := self.stop.save and self.stop != before:
            self._requests.save(["last"])
        return saves

    def _execute_commands(self) -> bool:
        """Execute the commands that have come, and answer each; return whether the state is to be saved at once.

        A pause lasts until a command or a signal ends it. Rank 0 hears commands for all.
        """
        state, saves = self._state, False
        before = state.stage
        with self._timeline.excluded():
            while True:
                asks, report, over = self._consensus.broadcast_object(self._next_commands())
                for ask in asks:
                    saves |= self._execute(ask)
                if report:
                    self._checkpoints.report()
                if over or state.stage != "paused":
                    break
        state.enter(before)
        return saves

    def _next_commands(self) -> tuple[list[CommandRecord], bool, bool]:
        """Return the commands that have come, whether a checkpoint is there to be told of, and whether a pause is over.

        In a pause it waits a little for something to come; of several ranks the first one does.
        """
        signals, checkpoints = self._signals, self._checkpoints
        if self._state.stage == "paused" and self._consensus.ranks.first:
            until = time.monotonic() + 0.5
            while time.monotonic() < until and not (signals.commands or signals.stop or checkpoints.has_written):
                time.sleep(POLL)
        asks = [signals.commands.popleft() for _ in range(len(signals.commands))]
        return asks, checkpoints.has_written, signals.stop is not None

    def _execute(self, ask: Mapping[str, Any]) -> bool:
        state, note, command, saves = self._state, "", ask.get("cmd"), False
        match command:
            case "pause":
                state.enter("paused")
            case "resume":
                state.enter("train")
            case "checkpoint":
                self._requests.save(["last"])
                self._checkpoints.save()
            case "stop":
                state.enter("train")
                saves = self._stop_for(Stop(f"stopped by {ask.get('by', 'somebody')}", "stopped", 0, save=True))
            case _:
                note = f"there is no command {command!r}"
        self._record("ack", id=ask.get("id", ""), cmd=str(command), asked=ask.get("t", 0.0), ok=not note, note=note)
        return saves
