"""Throttled hooks: how often each fires now, which the thread that measures them asks to change."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

from hookflow.graph.plan import Plan
from hookflow.runner.process.state import RunState


class Change(NamedTuple):
    """A hook fires at every so many times that it is due from now on, and why."""

    hook: str
    every: int
    why: str


class Throttles:
    """How often the throttled hooks of a run fire: `every` holds 1 where a hook fires whenever it is due.

    All ranks make the changes that rank 0 asks for, at the same safe point; `record` makes a record of each.
    """

    def __init__(self, plan: Plan, state: RunState, record: Callable[..., None]) -> None:
        self.every = {hook.name: 1 for hook in plan.hooks if hook.throttle}
        self.asked: deque[Change] = deque()
        self._state, self._record = state, record

    def ask(self, change: Change) -> None:
        """Ask for a change; any thread may."""
        self.asked.append(change)
        self._state.attention = True

    def take(self) -> list[Change]:
        """Return the changes that wait."""
        return [self.asked.popleft() for _ in range(len(self.asked))]

    def make(self, change: Change) -> None:
        """Make a change, and record it."""
        self.every[change.hook] = change.every
        self._record("throttle", **change._asdict())

    def state_dict(self) -> dict[str, int]:
        return dict(self.every)

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Take back what `state_dict` returned; hooks that are no longer throttled fire whenever they are due."""
        for hook in self.every:
            self.every[hook] = 1
            if (every := state.get(hook, 1)) > 1:
                self.make(Change(hook, every, "as the checkpoint has it"))
