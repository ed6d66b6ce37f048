"""Plays a recording: a moment that moves on with the clock, or where a key puts it."""

from __future__ import annotations

import time

from hookflow.graph.plan import Plan
from hookflow.monitor.feed import Recording
from hookflow.monitor.formatting import span
from hookflow.monitor.keys import Action
from hookflow.monitor.state import RunState

SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)


FAR = 0.05
"""The share of a recording that a long step takes."""


class Player:
    """Holds the moment that is shown."""

    def __init__(self, recording: Recording, speed: float) -> None:
        self.moment = recording.first
        self._recording = recording
        self._speed = speed
        self._playing = True
        self._before = time.monotonic()

    @property
    def state(self) -> RunState:
        return self._recording.state

    @property
    def plan(self) -> Plan | None:
        return self._recording.plan

    @property
    def badge(self) -> str:
        first, last = self._recording.first, self._recording.last
        sign = "▶" if self._playing else "‖"
        at = self.moment - first
        return f"REPLAY {self._speed:g}x {sign} {span(at)}.{int(at * 10) % 10} / {span(last - first)}"

    def tick(self) -> None:
        """Move on by the time that has passed."""
        passed = time.monotonic() - self._before
        self._before += passed
        if self._playing:
            self._show(self.moment + passed * self._speed)
            self._playing = self.moment < self._recording.last

    def obey(self, action: Action) -> None:
        match action:
            case "play":
                if self.moment >= self._recording.last:
                    self._show(self._recording.first)
                self._playing = not self._playing
            case "slower":
                self._speed = max((speed for speed in SPEEDS if speed < self._speed), default=self._speed)
            case "faster":
                self._speed = min((speed for speed in SPEEDS if speed > self._speed), default=self._speed)
            case "first" | "last":
                self._playing = False
                self._show(self._recording.first if action == "first" else self._recording.last)
            case "back" | "on":
                self._playing = False
                self.moment = self._recording.step(-1 if action == "back" else 1)
            case "far back" | "far on":
                far = FAR * (self._recording.last - self._recording.first)
                self._show(self.moment - far if action == "far back" else self.moment + far)

    def _show(self, moment: float) -> None:
        self.moment = min(max(moment, self._recording.first), self._recording.last)
        self._recording.seek(self.moment)
