"""A toy framework: its session calls listeners, those of a lower rank first."""

from typing import Any


class Listener:
    """Base class of Chorus' hooks."""

    rank = 50

    def started(self, session: Any) -> None:
        """The session begins."""

    def step_done(self, session: Any, loss: float) -> None:
        """A step is done; its number counts from 1."""

    def stopped(self, session: Any) -> None:
        """The session ends."""


class LossSum(Listener):
    """Adds up the losses."""

    rank = 20

    def __init__(self, key: str = "loss_sum", start: float = 0.0) -> None:
        self.key = key
        self.total = start

    def step_done(self, session: Any, loss: float) -> None:
        self.total += loss
        session.note(self.key, self.total)


class StepEcho(Listener):
    """Tells the number of each step, and the end."""

    rank = 10

    def step_done(self, session: Any, loss: float) -> None:
        session.note("chorus_step", session.step)

    def stopped(self, session: Any) -> None:
        session.say(f"stopped after {session.step}")


class Conductor(Listener):
    """Needs Chorus' own session."""

    def started(self, session: Any) -> None:
        session.conduct()
