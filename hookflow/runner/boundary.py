"""What happens between iterations, where nothing is half done: commands, stops and checkpoints that were asked for."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from hookflow.events.records import CommandRecord
from hookflow.runner.distributed.agreement import END_EPOCH, OBEY, SAVE, STOP, TELL, Agreement
from hookflow.runner.signals import Signals, Stop

if TYPE_CHECKING:
    from hookflow.runner.runner import Runner

PERIOD = 0.05
"""Seconds between looks for what may end a pause."""

GRAVITY = ("finished", "stopped", "interrupted", "failed")
"""The ways for a run to end. Where there are several reasons for it, the gravest counts, and of two the earlier."""


class Boundary:
    """The boundaries of a run. `stop` says why it ends, once it does; over several ranks they all agree on it."""

    def __init__(self, run: Runner, signals: Signals, agreement: Agreement) -> None:
        self.stop: Stop | None = None
        self._run = run
        self._signals = signals
        self._agreement = agreement
        self._wish: Stop | None = None
        self._heard: Stop | None = None

    def ask_to_stop(self, reason: str) -> None:
        """Let the run end at the next boundary, as if it had come to its end."""
        self._wish = self._wish or Stop(reason, "finished", 0, save=False)

    def cross(self, *, wait: bool = False) -> None:
        """Do what has been asked for since the last boundary: commands first, then a stop, then a checkpoint.

        `wait` is for several ranks: it says that they wait for one another here anyway.
        """
        run = self._run
        agreed = self._agreement.settle(self._wants(), wait=wait)
        if not agreed:
            return
        saves = bool(agreed & SAVE)
        if agreed & OBEY:
            saves |= self._obey()
        if agreed & STOP:
            saves |= self._stop_as_agreed()
        if agreed & END_EPOCH:
            run.course.end_epoch()
        if agreed & TELL:
            run.saver.tell()
        if saves:
            run.saver.save()

    def heed_stops(self) -> None:
        """Look, before the training begins, whether a hook has asked to stop already."""
        if self._agreement.settle(self._wants() & STOP, wait=True) & STOP:
            self._stop_as_agreed()

    def cuts_short(self) -> bool:
        """Say whether a signal ends the evaluation at hand, whose batch is done.

        What else is due waits for the next boundary: it is still wanted there.
        """
        if self._agreement.settle(STOP if self._signal else 0) & STOP:
            self._stop_as_agreed()
            return True
        return False

    @property
    def _signal(self) -> Stop | None:
        """The signal that has come and not been heeded."""
        return None if self._signals.stop is self._heard else self._signals.stop

    def _wants(self) -> int:
        """Return what this process has been asked for and has not done."""
        run = self._run
        wants = OBEY if self._signals.commands else 0
        if self._wish is not None or self._signal is not None:
            wants |= STOP
        if run.saver.asked:
            wants |= SAVE
        if run.saver.has_written:
            wants |= TELL
        return wants | END_EPOCH if run.course.wants_epoch_to_end else wants

    def _stop_as_agreed(self) -> bool:
        """Let the run end, for the gravest reason that any rank has; return whether its state is to be saved first."""
        signal, wish = self._signal, self._wish
        self._heard, self._wish = self._signals.stop, None
        if signal is not None:
            self._run.say(f"{signal.reason}: stopping after iteration {self._run.iter}", "warn")
        return self._stop_for(*self._agreement.gather(signal or wish))

    def _stop_for(self, *reasons: Stop | None) -> bool:
        before = self.stop
        given = [stop for stop in (before, *reasons) if stop is not None]
        self.stop = max(given, key=lambda stop: GRAVITY.index(stop.status))
        if saves := self.stop.save and self.stop != before:
            self._run.saver.ask(["last"])
        return saves

    def _obey(self) -> bool:
        """Carry out the commands that have come, and answer each; return whether the state is to be saved at once.

        A pause lasts until a command or a signal ends it. Rank 0 hears commands for all.
        """
        run, saves = self._run, False
        before = run.stage
        with run.meter.aside():
            while True:
                asks, tell, over = self._agreement.first(self._next_commands())
                for ask in asks:
                    saves |= self._carry_out(ask)
                if tell:
                    run.saver.tell()
                if over or run.stage != "paused":
                    break
        run.stage = before
        return saves

    def _next_commands(self) -> tuple[list[CommandRecord], bool, bool]:
        """Return the commands that have come, whether a checkpoint is there to be told of, and whether a pause is over.

        In a pause it waits a little for something to come; of several ranks the first one does.
        """
        signals, saver = self._signals, self._run.saver
        waits = self._run.stage == "paused" and self._agreement.ranks.first
        if waits and not (signals.commands or signals.stop or saver.has_written):
            time.sleep(PERIOD)
        asks = [signals.commands.popleft() for _ in range(len(signals.commands))]
        return asks, saver.has_written, signals.stop is not None

    def _carry_out(self, ask: CommandRecord) -> bool:
        run, note, command, saves = self._run, "", ask.get("cmd"), False
        match command:
            case "pause":
                run.stage = "paused"
            case "resume":
                run.stage = "train"
            case "checkpoint":
                run.saver.ask(["last"])
                run.saver.save()
            case "stop":
                run.stage = "train"
                saves = self._stop_for(Stop(f"stopped by {ask.get('by', 'somebody')}", "stopped", 0, save=True))
            case _:
                note = f"there is no command {command!r}"
        run.record("ack", id=ask.get("id", ""), cmd=command, asked=ask.get("t", 0.0), ok=not note, note=note)
        return saves
